"""Exit statuses of workers and commands in one table, from the errors themselves."""

import inspect
from dataclasses import dataclass
from textwrap import fill

from ftcomm import errors
from ftcomm.durable.store import DamagedObjectError, MissingObjectError, StoreError
from ftcomm_tracker.launcher.restart_policy import FINAL


@dataclass(frozen=True, slots=True)
class ExitCode:
    """One row of the table.

    Attributes:
        status: as a shell shows it.
        name: the error, or who ends so.
        meaning: what happened.
        again: whether to start a worker that ended so again.
    """

    status: str
    name: str
    meaning: str
    again: str


_BEFORE = (
    ExitCode("0", "", "the job ended well for every rank", "no"),
    ExitCode(
        "1",
        "any other exception",
        "the script failed; for doctor: a check failed; for any command: its output could not be"
        " written",
        "yes",
    ),
    ExitCode("2", "wrong usage", "an option of the command is wrong; it says which", "no"),
)
_AFTER = (
    ExitCode("128 + N", "signal N", "ended by that signal: 130 by Ctrl-C, 137 killed", "yes"),
)
STORE_ERRORS: tuple[type[errors.FtcommError], ...] = (
    StoreError,
    MissingObjectError,
    DamagedObjectError,
)


def error_classes() -> list[type[errors.FtcommError]]:
    """Every error of the library, in the order of its module."""
    return [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.FtcommError)
    ][1:]


def exit_codes() -> list[ExitCode]:
    """All rows, by status."""
    found: dict[int, list[type[errors.FtcommError]]] = {}
    for kind in (*error_classes(), *STORE_ERRORS):
        found.setdefault(kind.exit_code, []).append(kind)
    return [*_BEFORE, *(_row(status, kinds) for status, kinds in sorted(found.items())), *_AFTER]


def exit_code_lines() -> str:
    """The table for a terminal."""
    rows = exit_codes()
    wide = max(len(row.status) for row in rows)
    lines = [
        f"{row.status:>{wide}}  {row.name + ': ' if row.name else ''}{row.meaning};"
        f" start a worker again: {row.again}"
        for row in rows
    ]
    return "\n".join(fill(line, 90, subsequent_indent=" " * (wide + 2)) for line in lines)


def exit_code_table() -> str:
    """The table in Markdown, for the documents."""
    rows = [f"| {row.status} | {row.name} | {row.meaning} | {row.again} |" for row in exit_codes()]
    head = ["| status | of | meaning | start a worker again |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def _row(status: int, kinds: list[type[errors.FtcommError]]) -> ExitCode:
    name = ", ".join(kind.__name__ for kind in kinds)
    meaning = (kinds[0].__doc__ or "").splitlines()[0].rstrip(".")
    if status == errors.FtcommError.exit_code:
        meaning = "any error of ftcomm without a status of its own; its text says what to do"
    if status == errors.TrackerLostError.exit_code:
        meaning += "; for serve: its journal is lost, and not all members came"
        return ExitCode(str(status), name, meaning, "yes, after the tracker")
    if status == errors.FencedError.exit_code:
        meaning += "; for serve: a newer tracker has taken the job over"
    return ExitCode(str(status), name, meaning, "no" if status in FINAL else "yes")
