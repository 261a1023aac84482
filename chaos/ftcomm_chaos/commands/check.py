"""``ftcomm-chaos check``: judge recorded histories."""

import sys
from pathlib import Path

import click

from ftcomm.config.plurals import counted
from ftcomm_chaos import checkers
from ftcomm_chaos.checkers import RULES, RuleViolation
from ftcomm_chaos.history import History, HistoryError, read_history

HOLDS, BROKEN, NOTHING, UNREADABLE = 0, 1, 2, 3  # exit statuses
FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--reference", type=FOLDER, help="A history of the same job in peace.")
def check(folder: Path, reference: Path | None) -> None:
    """Check the histories that FTCOMM_HISTORY=FOLDER has left.

    Exit status: 0 all rules hold, 1 one is broken, 2 there is nothing to check, 3 something
    cannot be read.
    """
    try:
        history = read_history(folder)
        peace = None if reference is None else read_history(reference)
    except HistoryError as error:
        click.echo(_shown(str(error)))
        sys.exit(UNREADABLE)
    for name, read in ((folder, history), (reference, peace)):
        if read is not None and not read.records:
            click.echo(
                f"{_shown(str(name))}: no incarnation is recorded there - set FTCOMM_HISTORY"
            )
            sys.exit(NOTHING)
    violations = checkers.check(history, peace)
    click.echo(_text(history, violations))
    sys.exit(BROKEN if violations else HOLDS)


def _shown(text: str) -> str:
    """Fit for a terminal: a file's content and name may come from anybody."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _calls(history: History) -> int:
    return sum(len(record.returns) for record in history.records)


def _text(history: History, violations: list[RuleViolation]) -> str:
    head = (
        f"{counted(len(history.records), 'incarnation')} of {counted(history.size, 'rank')},"
        f" {counted(_calls(history), 'call')} returned"
    )
    tail = "FAILED" if violations else f"all {len(RULES)} rules hold"
    return "\n".join([head, *(_shown(str(violation)) for violation in violations), tail])
