"""A history in memory: incarnations with their events in order, and what a harness did to them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from ftcomm.diagnostics.history import Ended, Entered, Over, Planned, Returned, Started, WorkerEvent
from ftcomm.protocol.position import Position
from ftcomm_chaos.history.harness_events import (
    AttemptFound,
    EverythingLost,
    FaultFired,
    Harness,
)

E = TypeVar("E", bound=WorkerEvent | Harness)
E_co = TypeVar("E_co", bound=WorkerEvent | Harness, covariant=True)


@dataclass(frozen=True, slots=True)
class HistoryLine(Generic[E_co]):
    """One event of a file.

    Attributes:
        event: what happened.
        t: seconds of the machine's monotonic clock.
        at: file and line, as evidence.
    """

    event: E_co
    t: float
    at: str


def lines_of(lines: Iterable[HistoryLine[Any]], kind: type[E]) -> list[HistoryLine[E]]:
    """Those with an event of `kind`, in order."""
    return [line for line in lines if isinstance(line.event, kind)]


@dataclass(frozen=True)
class IncarnationRecord:
    """One incarnation of a worker id, from its first plan.

    A long script makes 100,000 lines, so they are sorted out once and not for each question.

    Attributes:
        started: the first line.
        lines: all others, in the order in which they were written.
    """

    started: HistoryLine[Started]
    lines: tuple[HistoryLine[WorkerEvent], ...]

    @property
    def name(self) -> str:
        """Worker id and incarnation, and the attempt from the second on."""
        later = f".{self.attempt}" if self.attempt > 1 else ""
        return f"{self.worker}-{self.started.event.incarnation}{later}"

    @property
    def worker(self) -> str:
        """The worker id."""
        return self.started.event.worker

    @property
    def incarnation(self) -> int:
        """Number of this incarnation among those of its worker id."""
        return self.started.event.incarnation

    @property
    def attempt(self) -> int:
        """Attempt of the job in which it lived; incarnations count anew in each."""
        return self.started.event.attempt

    @property
    def rank(self) -> int:
        """Its place."""
        return self.started.event.rank

    @cached_property
    def plans(self) -> tuple[HistoryLine[Planned], ...]:
        """The plans that it took."""
        return tuple(lines_of(self.lines, Planned))

    @cached_property
    def returns(self) -> tuple[HistoryLine[Returned], ...]:
        """The calls that returned."""
        return tuple(lines_of(self.lines, Returned))

    @cached_property
    def entered(self) -> Mapping[Position, HistoryLine[Entered]]:
        """The calls that it made, by position: the first of each."""
        return {line.event.position: line for line in reversed(lines_of(self.lines, Entered))}

    @cached_property
    def over(self) -> HistoryLine[Over] | None:
        """Line at which it learnt that the job is over."""
        return next(iter(lines_of(self.lines, Over)), None)

    @cached_property
    def ended(self) -> HistoryLine[Ended] | None:
        """Its last line, None where it was killed, or still runs."""
        return next(iter(lines_of(self.lines, Ended)), None)


@dataclass(frozen=True, slots=True)
class HarnessRecord:
    """Records of a harness.

    Attributes:
        faults: what it broke.
        losses: moments at which it killed everything, with the state of the store.
        attempts: those of the job, by its store, in order.
    """

    faults: tuple[HistoryLine[FaultFired], ...] = ()
    losses: tuple[HistoryLine[EverythingLost], ...] = ()
    attempts: tuple[HistoryLine[AttemptFound], ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """All of one job.

    Attributes:
        incarnations: by worker id and incarnation.
        harness: None where nobody but the incarnations wrote.
    """

    records: tuple[IncarnationRecord, ...] = ()
    harness: HarnessRecord | None = None

    @property
    def attempt(self) -> int:
        """Number of the newest attempt, 1 if nobody lived."""
        return max((record.attempt for record in self.records), default=1)

    @property
    def by_attempt(self) -> list["History"]:
        """The same, attempt by attempt; the harness's records are in each."""
        numbers = sorted({record.attempt for record in self.records}) or [1]
        return [
            History(tuple(r for r in self.records if r.attempt == number), self.harness)
            for number in numbers
        ]

    @property
    def size(self) -> int:
        """Number of places, 0 if nobody lived."""
        return max((record.started.event.size for record in self.records), default=0)

    @property
    def killed(self) -> list[IncarnationRecord]:
        """Incarnations that have not written their end."""
        return [record for record in self.records if record.ended is None]
