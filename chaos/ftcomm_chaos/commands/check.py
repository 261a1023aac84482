"""``ftcomm-chaos check``: judge recorded histories."""

import dataclasses
import json
import sys
from pathlib import Path

import click

from ftcomm.config.plurals import counted
from ftcomm_chaos import checkers
from ftcomm_chaos.checkers import RULES, Finding
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
        if read is not None and not read.lives:
            text = f"{_shown(str(name))}: no life is recorded there - set FTCOMM_HISTORY"
            _say(text, {"error": text}, as_json=as_json)
            sys.exit(NOTHING)
    findings = checkers.check(history, peace)
    _say(_text(history, findings), _document(history, findings), as_json=as_json)
    sys.exit(BROKEN if findings else HOLDS)


def _say(text: str, document: dict[str, object], *, as_json: bool) -> None:
    click.echo(json.dumps({"format": 1, **document}) if as_json else text)


def _shown(text: str) -> str:
    """Fit for a terminal: what a file holds, and what it is called, may be a stranger's."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _calls(history: History) -> int:
    return sum(len(life.returns) for life in history.lives)


def _text(history: History, findings: list[Finding]) -> str:
    head = (
        f"{counted(len(history.lives), 'life', 'lives')} of {counted(history.size, 'rank')},"
        f" {counted(_calls(history), 'call')} returned"
    )
    tail = "FAILED" if findings else f"all {len(RULES)} rules hold"
    return "\n".join([head, *(_shown(str(finding)) for finding in findings), tail])


def _document(history: History, findings: list[Finding]) -> dict[str, object]:
    return {
        "ok": not findings,
        "ranks": history.size,
        "lives": len(history.lives),
        "killed": [life.name for life in history.killed],
        "calls": _calls(history),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
