"""Reads histories. A file may come from a killed process or from anybody: all is checked.

A torn last line is what SIGKILL leaves and is passed over; anything else that is malformed is a
`HistoryError` with file and line.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Never

from ftcomm.config.setting_kinds import CheckpointPeriod
from ftcomm.diagnostics.history import (
    EXECUTED,
    FORMAT,
    SERVED,
    Ended,
    Entered,
    Over,
    Planned,
    Raised,
    Resources,
    Returned,
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
    parse = _PARSERS.get(name)
    if parse is None:
        raise ValueError(f"no event is called {name[:60]!r}")
    return parse(fields)


def _format(fields: Fields) -> int:
    number = fields.whole("format")
    if number != FORMAT:
        raise ValueError(f"it has format {number}, and this reader knows {FORMAT}")
    return number


def _started(fields: Fields) -> Started:
    started = Started(
        format=_format(fields),
        job=fields.text("job"),
        worker=fields.text("worker"),
        incarnation=fields.whole("incarnation", 1),
        rank=fields.whole("rank"),
        size=fields.whole("size", 1),
        pid=fields.whole("pid"),
        host=fields.text("host"),
        detect_within=fields.seconds("detect_within"),
        replicas=fields.whole("replicas", 1),
    )
    if started.rank >= started.size:
        raise ValueError(f"rank {started.rank} of {started.size} places")
    return started


def _planned(fields: Fields) -> Planned:
    return Planned(
        epoch=fields.whole("epoch", 1),
        rank=fields.whole("rank"),
        position=fields.position("position"),
        frontier=fields.position("frontier"),
        members=fields.members("members"),
    )


def _entered(fields: Fields) -> Entered:
    return Entered(
        position=fields.position("position"),
        kind=fields.one_of("kind", KINDS),
        signature=fields.hexadecimal("signature"),
        site=fields.text("site"),
        input=fields.digest("input"),
        local=fields.digest("local"),
    )


def _returned(fields: Fields) -> Returned:
    return Returned(
        position=fields.position("position"),
        kind=fields.one_of("kind", KINDS),
        how=fields.one_of("how", HOW),
        epoch=fields.whole("epoch", 1),
        result=fields.hexadecimal("result"),
        input=fields.digest("input"),
        version=fields.version("version"),
        local=fields.digest("local"),
    )


def _raised(fields: Fields) -> Raised:
    return Raised(
        position=fields.position("position"),
        kind=fields.one_of("kind", KINDS),
        error=fields.text("error"),
        cause=fields.text("cause"),
        epoch=fields.whole("epoch"),
        input=fields.digest("input"),
    )


def _over(fields: Fields) -> Over:
    return Over(
        error=fields.text("error"),
        cause=fields.text("cause"),
        epoch=fields.whole("epoch"),
        position=fields.position("position"),
    )


def _period(fields: Fields) -> str:
    text = fields.text("every")
    CheckpointPeriod.of(text)
    return text


_PARSERS: dict[str, Callable[[Fields], Event]] = {
    Started.event: _started,
    Planned.event: _planned,
    Entered.event: _entered,
    Returned.event: _returned,
    Raised.event: _raised,
    Over.event: _over,
    Resources.event: lambda f: Resources(f.whole("rss"), f.whole("fds")),
    Ended.event: lambda f: Ended(f.text("how"), f.text("cause")),
    HarnessStarted.event: lambda f: HarnessStarted(_format(f)),
    Spawned.event: lambda f: Spawned(f.text("worker"), f.whole("pid")),
    Exited.event: lambda f: Exited(f.text("worker"), f.whole("pid"), f.whole("status", -128)),
    FaultFired.event: lambda f: FaultFired(f.text("kind"), f.text("target"), f.seconds("seconds")),
    EverythingLost.event: lambda f: EverythingLost(
        f.whole("attempt"), f.version("version"), _period(f), f.seconds("served_s")
    ),
    AttemptFound.event: lambda f: AttemptFound(
        f.whole("attempt", 1), f.version("version"), f.version("newest")
    ),
}
