"""Messages between operators and the tracker: commands of people, and supervisors of workers.

Every request has exactly one answer, in order.  A supervisor is also told, unasked, that the job
is over: a `WorkerStatusReply` whose number is 0.
"""

from ftcomm.protocol.field_types import (
    U32,
    Address,
    Blob,
    Document,
    Name,
    Prose,
    Ticks,
    UserPort,
)
from ftcomm.protocol.position import Position
from ftcomm.protocol.value_classes import dataclass


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """An operator asks how the job stands."""


@dataclass(frozen=True, slots=True)
class StatusReply:
    """The job's state as one JSON document."""

    document: Document


@dataclass(frozen=True, slots=True)
class StopRequest:
    """An operator ends the job for all, with a reason that every rank will raise."""

    reason: Prose


@dataclass(frozen=True, slots=True)
class Done:
    """An operator's request has been carried out."""


@dataclass(frozen=True, slots=True)
class WorkerStatusRequest:
    """A supervisor asks about its worker; the answer carries the same number, from 1.

    It says which process of `host` runs as that worker, and for how long: ``pid`` 0 is none.
    """

    number: U32
    worker_id: Name
    host: Name
    pid: U32
    age_ms: U32


@dataclass(frozen=True, slots=True)
class WorkerStatusReply:
    """Answer that decides whether a worker is started again.

    ``connected``: one of its incarnations is.  ``missed``: none is, though there is a place for it.
    ``closed``: its rank has completed its close().
    ``progress`` is the highest position known of any member.  ``over``: the job has ended, well if
    ``error`` is empty, else by that exception with that cause.  ``generation`` is the tracker's.
    ``process`` is about the one that the supervisor has named last: ``starting`` before its hello,
    ``joined``, ``left`` once it has said that it leaves the job, empty if none is known.
    ``pid`` and ``start`` name the process that has said hello, as in `Hello`: a start script may
    have started it.  ``pid`` is 0 if none has that is known to be of the supervisor's host.
    ``is_spare``: the group is complete without the worker, and the job lacks a spare.
    """

    number: U32
    connected: bool
    missed: bool
    closed: bool
    progress: Position
    state: Name
    epoch: U32
    detect_within_ms: U32
    over: bool
    error: Name = ""
    cause: Prose = ""
    generation: U32 = 0
    process: Name = ""
    replace_within_ms: U32 = 0
    attempt: U32 = 0
    pid: U32 = 0
    start: Ticks = 0
    is_spare: bool = False


@dataclass(frozen=True, slots=True)
class DeathNotice:
    """A supervisor says how its worker's process `pid` ended, and why as far as it knows."""

    worker_id: Name
    pid: U32
    how: Prose


@dataclass(frozen=True, slots=True)
class KillRequest:
    """An operator wants a worker's process killed by whoever has started it."""

    worker_id: Name


@dataclass(frozen=True, slots=True)
class KillReply:
    """The answer: whether anybody is there who has started it, and has been told."""

    sent: bool


@dataclass(frozen=True, slots=True)
class KillOrder:
    """The tracker tells a supervisor, unasked, to kill its worker's process."""

    worker_id: Name


@dataclass(frozen=True, slots=True)
class LivenessAssertion:
    """A supervisor saw its worker's process use the CPU: it is alive, heartbeats or not."""

    worker_id: Name


@dataclass(frozen=True, slots=True)
class GivenUpNotice:
    """A supervisor will not start this worker again.

    ``script_failed``: the script fails by the same error in every process.
    """

    worker_id: Name
    reason: Prose
    script_failed: bool


@dataclass(frozen=True, slots=True)
class DialBack:
    """`doctor` asks the tracker to dial `port` at the address from which it asks.

    The tracker sends `nonce` on that connection and ends it: whoever listens there knows that it
    was the tracker.
    """

    port: UserPort
    nonce: Blob


@dataclass(frozen=True, slots=True)
class DialedBack:
    """The tracker has dialled `address`, from which it is asked, or `cause` says why not."""

    address: Address
    cause: Prose


@dataclass(frozen=True, slots=True)
class SupersededNotice:
    """A tracker tells another one that the workers of `job_id` follow it in ``generation``."""

    job_id: Name
    generation: U32


OperatorMessage = (
    StatusRequest
    | StatusReply
    | StopRequest
    | Done
    | WorkerStatusRequest
    | WorkerStatusReply
    | LivenessAssertion
    | GivenUpNotice
    | DialBack
    | DialedBack
    | DeathNotice
    | KillRequest
    | KillReply
    | KillOrder
    | SupersededNotice
)
