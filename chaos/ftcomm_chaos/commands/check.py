"""``ftcomm-chaos check``: judge recorded histories."""

import sys
from pathlib import Path
from typing import NoReturn

import click

from ftcomm.config.plurals import counted
from ftcomm_chaos import checkers
from ftcomm_chaos.history import HistoryError, read_history

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
        _end(UNREADABLE, _shown(error))
    for name, read in ((folder, history), (reference, peace)):
        if read is not None and not read.records:
            _end(NOTHING, f"{_shown(name)}: no incarnation is recorded there - set FTCOMM_HISTORY")
    violations = checkers.check(history, peace)
    calls = sum(len(record.returns) for record in history.records)
    ranks = f"{counted(len(history.records), 'incarnation')} of {counted(history.size, 'rank')}"
    tail = "FAILED" if violations else f"all {len(checkers.RULES)} rules hold"
    lines = [f"{ranks}, {counted(calls, 'call')} returned", *map(_shown, violations), tail]
    _end(BROKEN if violations else HOLDS, "\n".join(lines))


def _end(status: int, text: str) -> NoReturn:
    click.echo(text)
    sys.exit(status)


def _shown(what: object) -> str:
    """Fit for a line of a terminal: a file's content and name may come from anybody."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in str(what))
