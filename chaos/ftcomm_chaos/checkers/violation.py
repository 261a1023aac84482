"""What a checker is given, and what it says."""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from ftcomm.diagnostics.history import Entered, Planned, Raised, Returned
from ftcomm.protocol.position import Position
from ftcomm_chaos.history.model import History, LifeRecord, Line, lines_of

K = TypeVar("K")
V = TypeVar("V")
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What "bounded" means.

    Attributes:
        mismatch_within_s: from the last rank's entering to `CollectiveMismatchError` on all.
        ends_within_s: from the end of the last fault to the end of every process.
        stall_s: a stop shorter than this part of `detect_within` may evict nobody. Half of it is
            what the tracker allows for its own lateness.
        rss_growth: bytes that a life may grow by after its first quarter.
        fds_growth: descriptors that a life may grow by after its first quarter, beside links.
        fds_per_rank: descriptors that links to one other rank may take: two transports, old and
            new epoch.
    """

    mismatch_within_s: float = 1.0
    ends_within_s: float = 60.0
    stall_s: float = 0.5
    rss_growth: int = 64 * MIB
    fds_growth: int = 16
    fds_per_rank: int = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that does not hold.

    Attributes:
        rule: its stable name.
        who: the life, as worker id and incarnation; empty where it is about the job.
        where: position or epoch.
        what: in one sentence.
        lines: evidence, as file and line.
    """

    rule: str
    who: str
    where: str
    what: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        place = " ".join(
            part for part in (self.who, f"at {self.where}" if self.where else "") if part
        )
        return f"{self.rule}: {place}: {self.what} ({', '.join(self.lines)})"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A call of a life that returned."""

    life: LifeRecord
    line: Line[Returned]

    @property
    def event(self) -> Returned:
        """What it was given."""
        return self.line.event

    def finding(self, rule: str, what: str, *others: Line[Any]) -> Finding:
        """A finding about this call."""
        at = tuple(line.at for line in (self.line, *others))
        return Finding(rule, self.life.name, str(self.event.position), what, at)


class Case:
    """A history with what several checkers look at, each computed once."""

    def __init__(self, history: History, reference: History | None, limits: Limits) -> None:
        self.history = history
        self.reference = None if reference is None else Case(reference, None, limits)
        self.limits = limits

    @property
    def lives(self) -> tuple[LifeRecord, ...]:
        """All lives."""
        return self.history.lives

    @property
    def has_one_clock(self) -> bool:
        """Whether times of two lives can be compared."""
        return len({life.started.event.host for life in self.lives}) == 1

    @functools.cached_property
    def deliveries(self) -> list[Delivery]:
        """Every call that returned, life by life."""
        return [Delivery(life, line) for life in self.lives for line in life.returns]

    @functools.cached_property
    def by_position(self) -> dict[Position, list[Delivery]]:
        """Calls that returned, but not loads and checkpoints, by position."""
        return _grouped((d.event.position, d) for d in self.deliveries if d.event.version is None)

    @functools.cached_property
    def by_version(self) -> dict[int, list[Delivery]]:
        """Loads and checkpoints that returned, by version."""
        return _grouped(
            (d.event.version, d) for d in self.deliveries if d.event.version is not None
        )

    @functools.cached_property
    def plans(self) -> dict[int, list[tuple[LifeRecord, Line[Planned]]]]:
        """Plans that were taken, by epoch."""
        return _grouped((p.event.epoch, (life, p)) for life in self.lives for p in life.plans)

    @functools.cached_property
    def entered(self) -> list[tuple[LifeRecord, Line[Entered]]]:
        """Every call that was made."""
        return [(life, line) for life in self.lives for line in lines_of(life.lines, Entered)]

    @functools.cached_property
    def first_called(self) -> dict[tuple[int, Position], Line[Entered]]:
        """When a life of a rank first made a call, by rank and position."""
        first: dict[tuple[int, Position], Line[Entered]] = {}
        for life, line in self.entered:
            known = first.setdefault((life.rank, line.event.position), line)
            if line.t < known.t:
                first[life.rank, line.event.position] = line
        return first

    @functools.cached_property
    def raised(self) -> list[tuple[LifeRecord, Line[Raised]]]:
        """Every call that raised."""
        return [(life, line) for life in self.lives for line in lines_of(life.lines, Raised)]

    @functools.cached_property
    def closed(self) -> list[LifeRecord]:
        """Lives that ended well."""
        return [x for x in self.lives if x.ended is not None and x.ended.event.how == "closed"]


Checker = Callable[[Case], Iterator[Finding]]


def _grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)


def outliers(deliveries: list[Delivery], digest: Callable[[Delivery], str]) -> Iterator[Delivery]:
    """Those whose digest is not that of the first."""
    first = digest(deliveries[0])
    return (delivery for delivery in deliveries if digest(delivery) != first)
