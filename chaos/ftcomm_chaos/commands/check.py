"""``ftcomm-chaos check``: judge recorded histories."""

import dataclasses
import json
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(folder: Path, reference: Path | None, *, as_json: bool) -> None:
    """Check the histories that FTCOMM_HISTORY=FOLDER has left.

    Exit status: 0 all rules hold, 1 one is broken, 2 there is nothing to check, 3 something
    cannot be read.
    """
    try:
        history = read_history(folder)
        peace = None if reference is None else read_history(reference)
    except HistoryError as error:
        _say(_shown(str(error)), {"error": str(error)}, as_json=as_json)
        sys.exit(UNREADABLE)
    for name, read in ((folder, history), (reference, peace)):
        if read is not None and not read.records:
            text = f"{_shown(str(name))}: no incarnation is recorded there - set FTCOMM_HISTORY"
            _say(text, {"error": text}, as_json=as_json)
            sys.exit(NOTHING)
    violations = checkers.check(history, peace)
    _say(_text(history, violations), _document(history, violations), as_json=as_json)
    sys.exit(BROKEN if violations else HOLDS)


def _say(text: str, document: dict[str, object], *, as_json: bool) -> None:
    click.echo(json.dumps({"format": 1, **document}) if as_json else text)


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


def _document(history: History, violations: list[RuleViolation]) -> dict[str, object]:
    return {
        "ok": not violations,
        "ranks": history.size,
        "incarnations": len(history.records),
        "killed": [record.name for record in history.killed],
        "calls": _calls(history),
        "findings": [dataclasses.asdict(violation) for violation in violations],
    }
