"""A history in memory: lives with their events in order, and what a harness did to them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ftcomm.diagnostics.history import Ended, LifeEvent, Over, Planned, Returned, Started
from ftcomm_chaos.history.harness_events import Exited, Fault, Harness, Spawned

E = TypeVar("E", bound=LifeEvent | Harness)
E_co = TypeVar("E_co", bound=LifeEvent | Harness, covariant=True)


@dataclass(frozen=True, slots=True)
class Line(Generic[E_co]):
    """One event of a file.

    Attributes:
        event: what happened.
        t: seconds of the machine's monotonic clock.
        at: file and line, as evidence.
    """

    event: E_co
    t: float
    at: str


def lines_of(lines: Iterable[Line[Any]], kind: type[E]) -> list[Line[E]]:
    """Those with an event of `kind`, in order."""
    return [line for line in lines if isinstance(line.event, kind)]


@dataclass(frozen=True, slots=True)
class LifeRecord:
    """One life of a worker id, from its first plan.

    Attributes:
        started: the first line.
        lines: all others, in the order in which they were written.
        torn: the last line was cut, as by SIGKILL.
    """

    started: Line[Started]
    lines: tuple[Line[LifeEvent], ...]
    torn: bool = False

    @property
    def name(self) -> str:
        """Worker id and incarnation."""
        return f"{self.worker}-{self.started.event.incarnation}"

    @property
    def worker(self) -> str:
        """The worker id."""
        return self.started.event.worker

    @property
    def incarnation(self) -> int:
        """Which life of its worker id it is."""
        return self.started.event.incarnation

    @property
    def rank(self) -> int:
        """Its place."""
        return self.started.event.rank

    @property
    def plans(self) -> list[Line[Planned]]:
        """The plans that it took."""
        return lines_of(self.lines, Planned)

    @property
    def returns(self) -> list[Line[Returned]]:
        """The calls that returned."""
        return lines_of(self.lines, Returned)

    @property
    def over(self) -> Line[Over] | None:
        """Where it was told that it is over."""
        return next(iter(lines_of(self.lines, Over)), None)

    @property
    def ended(self) -> Line[Ended] | None:
        """Its last line, None where it was killed, or still runs."""
        return next(iter(lines_of(self.lines, Ended)), None)


@dataclass(frozen=True, slots=True)
class WhatHappened:
    """What a harness wrote down.

    Attributes:
        spawned: processes that it started.
        exited: processes that have ended.
        faults: what it broke.
    """

    spawned: tuple[Line[Spawned], ...] = ()
    exited: tuple[Line[Exited], ...] = ()
    faults: tuple[Line[Fault], ...] = ()

    @property
    def quiet_from(self) -> float | None:
        """When the last fault was over, None if there was none."""
        return max((x.t + x.event.seconds for x in self.faults), default=None)


@dataclass(frozen=True, slots=True)
class History:
    """All of one job.

    Attributes:
        lives: by worker id and incarnation.
        harness: None where nobody but the lives wrote.
    """

    lives: tuple[LifeRecord, ...] = ()
    harness: WhatHappened | None = None

    @property
    def size(self) -> int:
        """Number of places, 0 if nobody lived."""
        return max((life.started.event.size for life in self.lives), default=0)

    def of_rank(self, rank: int) -> list[LifeRecord]:
        """The lives that had place `rank`, the latest last."""
        lives = [life for life in self.lives if life.rank == rank]
        return sorted(lives, key=lambda life: life.started.t)

    @property
    def killed(self) -> list[LifeRecord]:
        """Lives that have not written their end."""
        return [life for life in self.lives if life.ended is None]
