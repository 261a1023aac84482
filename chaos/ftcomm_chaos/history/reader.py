"""Reads histories. A file may come from a killed process or from anybody: all is checked.

A torn last line is what SIGKILL leaves and is passed over; anything else that is malformed is a
`HistoryError` with file and line.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Never, get_args

from ftcomm.config.setting_kinds import CheckpointPeriod
from ftcomm.diagnostics.history import (
    EXECUTED,
    FORMAT,
    SERVED,
    Started,
    WorkerEvent,
)
from ftcomm.protocol.signature import Kind
from ftcomm_chaos.history.fields import Fields
from ftcomm_chaos.history.harness_events import (
    AttemptFound,
    EverythingLost,
    Exited,
    FaultFired,
    Harness,
    HarnessStarted,
    Spawned,
)
from ftcomm_chaos.history.model import (
    HarnessRecord,
    History,
    HistoryLine,
    IncarnationRecord,
    lines_of,
)

MAX_LINE_BYTES = 1 << 20  # a plan of 1,024 members with the longest names takes 90 KB
MAX_FILES = 100_000  # a job of 1,024 workers, each of which died a hundred times
KINDS = frozenset(kind.name.lower() for kind in Kind)
HOW = frozenset((EXECUTED, SERVED))
Event = WorkerEvent | Harness


class HistoryError(Exception):
    """A history cannot be read: which file and line, what is wrong, and what to do."""

    def __init__(self, at: str, cause: str, remedy: str) -> None:
        self.at, self.cause, self.remedy = at, cause, remedy
        super().__init__(f"{at}: {cause} - {remedy}")


def read_history(folder: Path) -> History:
    """All ``*.jsonl`` files of `folder`; an empty history if there are none.

    Raises:
        HistoryError: a file cannot be read, or holds what no recorder writes.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".jsonl")
    except OSError as error:
        raise HistoryError(
            str(folder), error.strerror or "cannot be read", "name the folder of FTCOMM_HISTORY"
        ) from None
    if len(paths) > MAX_FILES:
        raise HistoryError(
            str(folder), f"it holds {len(paths)} files", f"check at most {MAX_FILES} at a time"
        )
    records: list[IncarnationRecord] = []
    harness: list[HistoryLine[Harness]] = []
    for path in paths:
        found = _read(path)
        if isinstance(found, IncarnationRecord):
            records.append(found)
        elif found is not None:
            harness += found
    return assembled(records, harness)


def assembled(records: list[IncarnationRecord], harness: list[HistoryLine[Harness]]) -> History:
    """A history of one job.

    Raises:
        HistoryError: two files tell of the same incarnation, or of different jobs.
    """
    seen: dict[str, IncarnationRecord] = {}
    for record in records:
        other = seen.setdefault(record.name, record)
        if other is not record:
            _two_jobs(
                record.started.at, f"{other.started.at} is of the same incarnation, {record.name}"
            )
        first = records[0].started
        if first.event.series != record.started.event.series:
            _two_jobs(record.started.at, f"{first.at} is of another job")
        if first.event.size != record.started.event.size:
            _two_jobs(record.started.at, f"{first.at} tells of another number of places")
    ordered = sorted(records, key=lambda each: (each.attempt, each.worker, each.incarnation))
    return History(tuple(ordered), _what_happened(harness) if harness else None)


def _two_jobs(at: str, cause: str) -> Never:
    raise HistoryError(at, cause, "record each job in a folder of its own")


def _what_happened(lines: list[HistoryLine[Harness]]) -> HarnessRecord:
    return HarnessRecord(
        tuple(lines_of(lines, Spawned)),
        tuple(lines_of(lines, Exited)),
        tuple(lines_of(lines, FaultFired)),
        tuple(lines_of(lines, EverythingLost)),
        tuple(lines_of(lines, AttemptFound)),
    )


def _read(path: Path) -> IncarnationRecord | list[HistoryLine[Harness]] | None:
    if not path.is_file():  # a pipe would be waited for
        raise HistoryError(str(path), "it is not a file", "take it out of the folder")
    try:
        with path.open("rb") as file:
            lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
            return parse_lines(lines, path.name)
    except OSError as error:
        cause = error.strerror or "cannot be read"
        raise HistoryError(str(path), cause, "make it readable") from None


def parse_lines(
    lines: Iterator[bytes], name: str
) -> IncarnationRecord | list[HistoryLine[Harness]] | None:
    """One file: an incarnation's, or the harness's; None where nothing was written before the kill.

    Args:
        lines: with their ends; the last may lack it, and is then passed over as torn.
        name: of the file, for evidence.

    Raises:
        HistoryError: naming the line.
    """
    parsed: list[HistoryLine[Event]] = []
    torn = False
    for number, raw in enumerate(lines, 1):
        at = f"{name}:{number}"
        if len(raw) > MAX_LINE_BYTES:
            raise HistoryError(at, f"the line is longer than {MAX_LINE_BYTES} bytes", _REMEDY)
        if not raw.endswith(b"\n"):
            torn = True
            break
        try:
            fields = Fields(raw)
            event = _event(fields)
            parsed.append(HistoryLine(event, fields.seconds("t"), at))
        except ValueError as error:
            raise HistoryError(at, str(error), _REMEDY) from None
    return _record(parsed, torn=torn) if parsed else None


_REMEDY = "the file was not written by a recorder of this version, or was damaged: record again"


def _record(
    parsed: list[HistoryLine[Event]], *, torn: bool
) -> IncarnationRecord | list[HistoryLine[Harness]]:
    first = parsed[0]
    if isinstance(first.event, Started):
        lines: list[HistoryLine[WorkerEvent]] = []
        for line in parsed[1:]:
            event = line.event
            if isinstance(event, Started):
                _two_jobs(line.at, "a second incarnation begins in this file")
            if isinstance(event, Harness):
                raise HistoryError(line.at, "a harness's event in an incarnation's file", _REMEDY)
            lines.append(HistoryLine(event, line.t, line.at))
        return IncarnationRecord(HistoryLine(first.event, first.t, first.at), tuple(lines), torn)
    if not isinstance(first.event, HarnessStarted):
        raise HistoryError(first.at, "the first line is neither start nor harness", _REMEDY)
    told: list[HistoryLine[Harness]] = []
    for line in parsed:
        if not isinstance(line.event, Harness):
            raise HistoryError(line.at, "an incarnation's event in the harness's file", _REMEDY)
        told.append(HistoryLine(line.event, line.t, line.at))
    return told


# --- one event --------------------------------------------------------------------------------


def _event(fields: Fields) -> Event:
    name = fields.text("event")
    kind = _EVENTS.get(name)
    if kind is None:
        raise ValueError(f"no event is called {name[:60]!r}")
    values = {
        each.name: (_READERS.get(f"{name}.{each.name}") or _READERS[each.name])(fields, each.name)
        for each in dataclasses.fields(kind)
    }
    event: Event = kind(**values)
    if isinstance(event, Started) and event.rank >= event.size:
        raise ValueError(f"rank {event.rank} of {event.size} places")
    return event


def _format(fields: Fields, name: str) -> int:
    number = fields.whole(name)
    if number != FORMAT:
        raise ValueError(f"it has format {number}, and this reader knows {FORMAT}")
    return number


def _from_one(fields: Fields, name: str) -> int:
    return fields.whole(name, 1)


def _period(fields: Fields, name: str) -> str:
    text = fields.text(name)
    CheckpointPeriod.of(text)
    return text


_EVENTS: dict[str, Any] = {
    kind.event: kind for kind in (*get_args(WorkerEvent), *get_args(Harness))
}
_TEXTS = ("job", "worker", "host", "site", "error", "cause", "target", "how", "fault.kind")
# By a field's name, and by an event's and the field's where it differs.
_READERS: dict[str, Callable[[Fields, str], object]] = {
    **dict.fromkeys(_TEXTS, Fields.text),
    **dict.fromkeys(("rank", "pid", "rss", "fds", "epoch", "attempt"), Fields.whole),
    **dict.fromkeys(("incarnation", "size", "replicas"), _from_one),
    **dict.fromkeys(("plan.epoch", "return.epoch", "attempt.attempt"), _from_one),
    **dict.fromkeys(("position", "frontier"), Fields.position),
    **dict.fromkeys(("signature", "result"), Fields.hexadecimal),
    **dict.fromkeys(("input", "local"), Fields.digest),
    **dict.fromkeys(("version", "newest"), Fields.version),
    **dict.fromkeys(("detect_within", "seconds", "served_s"), Fields.seconds),
    "format": _format,
    "every": _period,
    "members": Fields.members,
    "kind": lambda fields, name: fields.one_of(name, KINDS),
    "return.how": lambda fields, name: fields.one_of(name, HOW),
    "status": lambda fields, name: fields.whole(name, -128),
}
