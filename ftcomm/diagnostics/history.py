"""History: what one incarnation did and was given, one event a line (docs/history.md).  Pure.

Written where ``FTCOMM_HISTORY`` names a folder, read by ``ftcomm-chaos check``.  Digests are 32 hex
characters of BLAKE2b; two that are equal stand for the same bytes.
"""

import dataclasses
import json
from typing import Any, ClassVar, Protocol
from urllib.parse import quote

from ftcomm.protocol.position import Position
from ftcomm.protocol.value_classes import dataclass

FORMAT = 1  # raised when a reader of the old format could misread a new line
MAX_DIGITS = 10  # of the number of an attempt
MAX_TEXT = 4096  # characters of a field: causes are sentences, and what is longer is cut
EXECUTED = "executed"
SERVED = "served"
CLOSED = "closed"
LEFT = "left"


@dataclass(frozen=True, slots=True)
class Started:
    """An incarnation has its first plan; the first line of its file."""

    event: ClassVar[str] = "start"
    format: int  # `FORMAT`
    job: str  # the job's id
    worker: str  # the worker id
    incarnation: int  # as the tracker numbered this incarnation
    rank: int  # its place
    size: int  # number of places
    pid: int  # of its process
    host: str  # where it runs
    detect_within: float  # the job's setting, in seconds
    replicas: int  # the job's setting

    @property
    def attempt(self) -> int:
        """Attempt of the job in which this incarnation lived."""
        return attempt_in(self.job)[1]

    @property
    def series(self) -> str:
        """Name of the job over all its attempts."""
        return attempt_in(self.job)[0]


@dataclass(frozen=True, slots=True)
class Planned:
    """It has taken a plan."""

    event: ClassVar[str] = "plan"
    epoch: int  # of the plan
    rank: int  # its place
    position: Position  # where it stands, before anything is done in this epoch
    frontier: Position  # below it results are served, from it on executed by all
    members: tuple[tuple[str, int], ...]  # worker id and incarnation of each place, in rank order


@dataclass(frozen=True, slots=True)
class Entered:
    """The script has made a call."""

    event: ClassVar[str] = "enter"
    position: Position  # of the call
    kind: str  # the collective's name in lower case
    signature: str  # as hex, empty while it depends on an input that is not made yet
    site: str  # line of the script
    # Digest of what was passed, None where there is none yet; of a checkpoint's state.
    input: str | None = None
    local: str | None = None  # digest of a checkpoint's local state, None without one


@dataclass(frozen=True, slots=True)
class Returned:
    """The call has a result."""

    event: ClassVar[str] = "return"
    position: Position  # as entered
    kind: str  # as entered
    how: str  # ``executed`` by this incarnation, or ``served``: from a log, or a commit by a plan
    epoch: int  # in which it was executed; where it was served, the one in force at the return
    result: str  # digest of the result that all ranks have; of the state, of a checkpoint or load
    input: str | None = None  # digest of what was passed, taken again after the call
    version: int | None = None  # of a checkpoint or load
    # Digest of this rank's local state of a checkpoint or load, None without one.
    local: str | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """The call has raised."""

    event: ClassVar[str] = "raise"
    position: Position  # as entered
    kind: str  # as entered
    error: str  # name of the exception's class
    cause: str  # its text
    epoch: int  # in force
    input: str | None = None  # digest of what was passed, taken again after the call


@dataclass(frozen=True, slots=True)
class Over:
    """This incarnation was told that it is over: a fatal decision on the job, or fenced."""

    event: ClassVar[str] = "over"
    error: str  # name of the exception's class
    cause: str  # its text
    epoch: int  # in force
    position: Position  # where it stood; nothing at or behind it may complete any more


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of the process: `rss` bytes of memory and `fds` open descriptors."""

    event: ClassVar[str] = "resources"
    rss: int
    fds: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The communicator is over; the last line."""

    event: ClassVar[str] = "end"
    how: str  # ``closed``, ``left``, or the name of the error's class
    cause: str = ""  # why


WorkerEvent = Started | Planned | Entered | Returned | Raised | Over | Resources | Ended


class Recordable(Protocol):
    """A dataclass whose fields are JSON values or positions."""

    event: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


def encode(event: Recordable, t: float) -> bytes:
    """One line: the event at `t` seconds of the machine's monotonic clock."""
    record = {"event": event.event, "t": round(t, 6)}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        record[field.name] = _readable(value) if isinstance(value, str) else value
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _readable(text: str) -> str:
    """Cut `text` to what a reader takes: a script's exception may have any text, of any length."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode()


def attempt_in(job_id: str) -> tuple[str, int]:
    """The job's name over all its attempts, and the number of the attempt.

    A job without a store has one attempt, which its id does not name.
    """
    series, _, number = job_id.rpartition(".")
    if series and number.isdecimal() and len(number) <= MAX_DIGITS:
        return series, int(number)
    return job_id, 1


def file_name(worker: str, incarnation: int, attempt: int = 1) -> str:
    """Name of an incarnation's file; a worker id may hold what a file's name may not."""
    later = f".{attempt}" if attempt > 1 else ""
    return f"{quote(worker, safe='')}-{incarnation}{later}.jsonl"
