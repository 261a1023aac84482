"""Events that a harness records beside the histories of the processes that it starts."""

from dataclasses import dataclass
from typing import ClassVar

KILL = "kill"  # a fault that ends a process
STOP = "stop"  # a fault that stops a process for some seconds
TWIN = "twin"  # a second process under the same worker id
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
        kind: ``kill``, ``stop``, ``twin``, or the harness's own word for anything else.
        target: a worker id; ``*`` for the tracker, the network, or all.
        seconds: how long it lasts; 0 for what is over at once.
    """

    event: ClassVar[str] = "fault"
    kind: str
    target: str
    seconds: float


Harness = HarnessStarted | Spawned | Exited | FaultFired
