"""Events that a harness records beside the histories of the processes that it starts."""

from dataclasses import dataclass
from typing import ClassVar

KILL = "kill"  # a fault that ends a process
STOP = "stop"  # a fault that stops a process for some seconds
ANYONE = "*"  # a target: the network, the tracker, the machine


@dataclass(frozen=True, slots=True)
class HarnessStarted:
    """The first line of the harness's file."""

    event: ClassVar[str] = "harness"
    format: int


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process of `worker` was started."""

    event: ClassVar[str] = "spawned"
    worker: str
    pid: int


@dataclass(frozen=True, slots=True)
class Exited:
    """It has ended, with an exit status, or minus the number of the signal that killed it."""

    event: ClassVar[str] = "exited"
    worker: str
    pid: int
    status: int


@dataclass(frozen=True, slots=True)
class FaultFired:
    """Something was broken on purpose.

    Attributes:
        kind: ``kill``, ``stop``, or the harness's own word for anything else.
        target: a worker id; ``*`` for the tracker, the network, or all.
        seconds: how long it lasts; 0 for what is over at once.
    """

    event: ClassVar[str] = "fault"
    kind: str
    target: str
    seconds: float


@dataclass(frozen=True, slots=True)
class EverythingLost:
    """All workers and the tracker were killed at one moment.

    Attributes:
        attempt: newest one that the store has a record of, 0 for none.
        version: newest one that the store has a record of, None for none.
        every: how often a checkpoint was to be written to the store, such as ``60s`` or ``1v``.
        served_s: how long that tracker had run.
    """

    event: ClassVar[str] = "lost"
    attempt: int
    version: int | None
    every: str
    served_s: float


@dataclass(frozen=True, slots=True)
class AttemptFound:
    """The store has the record of an attempt.

    Attributes:
        attempt: its number.
        version: from which it begins, None for the beginning of the job.
        newest: newest one that the store had a record of before, None for none.
    """

    event: ClassVar[str] = "attempt"
    attempt: int
    version: int | None
    newest: int | None


Harness = HarnessStarted | Spawned | Exited | FaultFired | EverythingLost | AttemptFound
