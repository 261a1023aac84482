"""Input and output of a checker."""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from ftcomm.config.setting_kinds import MIB
from ftcomm.diagnostics.history import Entered, Planned, Raised, Returned
from ftcomm.protocol.position import Position
from ftcomm_chaos.history.model import History, HistoryLine, IncarnationRecord, lines_of

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """Limits within which a history counts as bounded.

    Attributes:
        mismatch_within_s: from the last rank's entering to `CollectiveMismatchError` on all.
        stall_s: a stop shorter than this part of `detect_within` may evict nobody. Half of it is
            what the tracker allows for its own lateness.
        rss_growth: bytes that an incarnation may grow by after its first quarter.
        fds_growth: descriptors that an incarnation may grow by after its first quarter, beside
            links.
        fds_per_rank: descriptors that links to one other rank may take: two transports, old and
            new epoch.
        durable_within_s: from the commit of a checkpoint that is due to its record in the store.
    """

    mismatch_within_s: float = 1.0
    stall_s: float = 0.5
    rss_growth: int = 64 * MIB
    fds_growth: int = 16
    fds_per_rank: int = 4
    durable_within_s: float = 10.0


@dataclass(frozen=True, slots=True)
class RuleViolation:
    """A rule that does not hold.

    Attributes:
        who: the incarnation, as worker id and incarnation; empty where it is about the job.
        where: position or epoch.
        what: in one sentence.
        lines: evidence, as file and line.
        rule: its stable name, which `check` adds.
    """

    who: str
    where: str
    what: str
    lines: tuple[str, ...]
    rule: str = ""

    def __str__(self) -> str:
        place = " ".join(
            part for part in (self.who, f"at {self.where}" if self.where else "") if part
        )
        return f"{self.rule}: {place}: {self.what} ({', '.join(self.lines)})"


@dataclass(frozen=True, slots=True)
class ReturnedCall:
    """A call of an incarnation that returned."""

    record: IncarnationRecord
    line: HistoryLine[Returned]

    @property
    def event(self) -> Returned:
        """Event of the call's return."""
        return self.line.event

    def violation(self, what: str, *others: HistoryLine[Any]) -> RuleViolation:
        """A violation about this call."""
        at = tuple(line.at for line in (self.line, *others))
        return RuleViolation(self.record.name, str(self.event.position), what, at)


class Case:
    """A history of one attempt with what several checkers look at, each computed once.

    Attributes:
        history: of this attempt.
        reference: of the job in peace, None without one.
        limits: what "bounded" means.
        earlier: the attempts before it.
    """

    def __init__(
        self,
        history: History,
        reference: History | None,
        limits: HistoryLimits,
        earlier: tuple["Case", ...] = (),
    ) -> None:
        self.history = history
        self.reference = None if reference is None else Case(reference, None, limits)
        self.limits = limits
        self.earlier = earlier

    @property
    def attempt(self) -> int:
        """Number of this attempt."""
        return self.history.attempt

    @property
    def records(self) -> tuple[IncarnationRecord, ...]:
        """All incarnations."""
        return self.history.records

    @property
    def has_one_clock(self) -> bool:
        """True if times of two incarnations can be compared."""
        return len({record.started.event.host for record in self.records}) == 1

    @functools.cached_property
    def deliveries(self) -> list[ReturnedCall]:
        """Every call that returned, incarnation by incarnation."""
        return [ReturnedCall(record, line) for record in self.records for line in record.returns]

    @functools.cached_property
    def by_position(self) -> dict[Position, list[ReturnedCall]]:
        """Calls that returned, but not loads and checkpoints, by position."""
        return _grouped((d.event.position, d) for d in self.deliveries if d.event.version is None)

    @functools.cached_property
    def by_version(self) -> dict[int, list[ReturnedCall]]:
        """Loads and checkpoints that returned, by version."""
        return _grouped(
            (d.event.version, d) for d in self.deliveries if d.event.version is not None
        )

    @functools.cached_property
    def plans(self) -> dict[int, list[tuple[IncarnationRecord, HistoryLine[Planned]]]]:
        """Plans that were taken, by epoch."""
        return _grouped(
            (p.event.epoch, (record, p)) for record in self.records for p in record.plans
        )

    @functools.cached_property
    def entered(self) -> list[tuple[IncarnationRecord, HistoryLine[Entered]]]:
        """Every call that was made."""
        return [
            (record, line) for record in self.records for line in lines_of(record.lines, Entered)
        ]

    @functools.cached_property
    def first_called(self) -> dict[tuple[int, Position], HistoryLine[Entered]]:
        """First call of each position by an incarnation of each rank."""
        first: dict[tuple[int, Position], HistoryLine[Entered]] = {}
        for record, line in self.entered:
            known = first.setdefault((record.rank, line.event.position), line)
            if line.t < known.t:
                first[record.rank, line.event.position] = line
        return first

    @functools.cached_property
    def raised(self) -> list[tuple[IncarnationRecord, HistoryLine[Raised]]]:
        """Every call that raised."""
        return [
            (record, line) for record in self.records for line in lines_of(record.lines, Raised)
        ]

    @functools.cached_property
    def closed(self) -> list[IncarnationRecord]:
        """Incarnations that ended well."""
        return [x for x in self.records if x.ended is not None and x.ended.event.how == "closed"]


Checker = Callable[[Case], Iterator[RuleViolation]]


def _grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)


def outliers(
    deliveries: list[ReturnedCall], digest: Callable[[ReturnedCall], str]
) -> Iterator[ReturnedCall]:
    """Those whose digest is not that of the first."""
    first = digest(deliveries[0])
    return (delivery for delivery in deliveries if digest(delivery) != first)
