"""Pairs of workers and of hosts whose links fail: the record, and the choice of detours (R12).

Pure.  A failure belongs to two incarnations: when either end is replaced, the pair begins anew.  A
pair that fails in two plans running cannot reach each other and is relayed by a third rank.  What
came between two failures decides whether they are "running".  A plan that has run for a while
without a failure of the pair shows that its link works, or is not needed, unless an end still waits
for the other.  A plan that ended early shows nothing.

What separates two workers on two hosts is most often between the hosts.  So failures count for the
pair of hosts too, whichever of their workers have them: one that fails in two plans running is
taken for cut, and all its pairs are relayed at once, by a rank on a third host.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter

from ftcomm.protocol.field_types import MAX_ROUTES
from ftcomm.protocol.messages import Route
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.silent_links import Pair, pair_of

RUNNING = 2  # plans in a row in which a pair has failed: it is unreachable

Incarnations = tuple[bytes, bytes]
HostPair = tuple[str, str]  # names of two hosts, in order


@dataclass(frozen=True, slots=True)
class Failing:
    """One pair that has failed.

    Attributes:
        incarnations: nonces of both ends.
        epoch: of the newest plan in which it failed.
        plans: in how many plans running it has failed.
        progress: where the job stood at the newest failure, as far as is known; None if a plan has
            lasted since.
        before: where it stood at the failure before; None if there was none, or a plan has lasted
            in between.
        cause: of the newest failure, in words.
        spoilt: the relays through which it failed too, one for each plan.
    """

    incarnations: Incarnations
    epoch: int
    plans: int
    progress: Position | None
    before: Position | None
    cause: str
    spoilt: tuple[int, ...] = ()

    @property
    def is_unreachable(self) -> bool:
        """True if the two ends cannot do without a relay."""
        return self.plans >= RUNNING

    @property
    def is_stuck(self) -> bool:
        """True if the job has come no farther since the failure before."""
        return self.progress is not None and self.before == self.progress

    @property
    def direct(self) -> int:
        """In how many plans its own link has failed."""
        return self.plans - len(self.spoilt)


@dataclass(frozen=True, slots=True)
class Cut:
    """Two hosts of which pairs of workers have failed.

    Attributes:
        incarnations: nonces of all workers of both hosts at the newest failure. A later incarnation
            of either host is tried directly again.
        epochs: of the newest plans running in which a pair has failed, at most `RUNNING`.
        cause: of the newest failure, in words.
        is_unreachable: taken for cut: no worker of one host reaches one of the other.
    """

    incarnations: frozenset[bytes]
    epochs: tuple[int, ...]
    cause: str
    is_unreachable: bool = False


@dataclass(frozen=True, slots=True)
class Parting:
    """An end of a pair was given up.

    Attributes:
        kept: the other end, and
        nonce: of its process.
        both: that one has replaced an end which was given up before.
    """

    kept: int
    nonce: bytes
    both: bool


def host_pair(one: str, other: str) -> HostPair:
    """The two hosts as a pair."""
    return (one, other) if one < other else (other, one)


@dataclass(slots=True)
class HostReachability:
    """Host of each rank and the separated pairs of hosts, for one decision."""

    of_rank: Mapping[int, str] = field(default_factory=dict)
    cuts: Mapping[HostPair, Cut] = field(default_factory=dict)
    nonces: Mapping[int, bytes] = field(default_factory=dict)

    def suspected_between(self, one: int, other: int) -> Cut | None:
        """Return the suspected cut between the hosts of these two incarnations."""
        hosts = self.of_rank.get(one, ""), self.of_rank.get(other, "")
        cut = self.cuts.get(host_pair(*hosts))
        if cut is None:
            return None
        both_were_there = {self.nonces[one], self.nonces[other]} <= cut.incarnations
        return cut if both_were_there else None

    def cut_between(self, one: int, other: int) -> Cut | None:
        """The cut that separates these two incarnations, if one is known."""
        cut = self.suspected_between(one, other)
        return cut if cut is not None and cut.is_unreachable else None

    def separated(self, present: Collection[int]) -> list[tuple[Pair, Cut]]:
        """The pairs of present ranks between which there is a cut, in order."""
        on_host: dict[str, list[int]] = {}
        for rank in sorted(present):
            on_host.setdefault(self.of_rank.get(rank, ""), []).append(rank)
        found = [
            (pair_of(a, b), self.cut_between(a, b))
            for (one, other), cut in self.cuts.items()
            if cut.is_unreachable
            for a in on_host.get(one, ())
            for b in on_host.get(other, ())
        ]
        return sorted(((pair, cut) for pair, cut in found if cut is not None), key=itemgetter(0))


@dataclass(slots=True)
class Pairs:
    """All pairs that have failed of late, by ranks, and by hosts.

    Attributes:
        parted: by pair, of which end was given up last; until a plan shows that the pair works.
    """

    parted: dict[Pair, Parting] = field(default_factory=dict)
    _failing: dict[Pair, Failing] = field(default_factory=dict)
    _cuts: dict[HostPair, Cut] = field(default_factory=dict)
    _lasted: int = 0  # the newest epoch whose plan has lasted

    def note_cut(
        self, hosts: HostPair, incarnations: Collection[bytes], *, epoch: int, cause: str
    ) -> None:
        """A direct link between workers of two hosts failed in the plan of `epoch`."""
        before = self._cuts.get(hosts) or Cut(frozenset(), (), "")
        epochs = (*(known for known in before.epochs if known != epoch), epoch)[-RUNNING:]
        cut = before.is_unreachable or len(epochs) == RUNNING
        self._cuts[hosts] = Cut(frozenset(incarnations), epochs, cause, cut)
        self._take_together()

    def _take_together(self) -> None:
        """Until a plan has lasted after two hosts were found cut, one failure of others suffices.

        Whatever cuts one pair of hosts often cuts several, and to wait for the second failure of
        each would cost an epoch for each.
        """
        newest = max(
            (cut.epochs[-1] for cut in self._cuts.values() if cut.is_unreachable), default=0
        )
        if newest < self._lasted or not newest:
            return
        self._cuts = {
            hosts: replace(cut, is_unreachable=True) if cut.epochs[-1] >= self._lasted else cut
            for hosts, cut in self._cuts.items()
        }

    def cuts(self, nonces: Collection[bytes]) -> dict[HostPair, Cut]:
        """Return the known cuts between hosts; forget those without a living incarnation."""
        living = set(nonces)
        self._cuts = {hosts: cut for hosts, cut in self._cuts.items() if cut.incarnations & living}
        return dict(self._cuts)

    def note_failure(
        self,
        pair: Pair,
        incarnations: Incarnations,
        *,
        epoch: int,
        progress: Position,
        cause: str,
        via: int | None = None,
    ) -> None:
        """The link of `pair` failed in the plan of `epoch`; `via` was its relay, if it had one."""
        before = self._failing.get(pair)
        if before is not None and before.incarnations != incarnations:
            before = None
        if before is not None and before.epoch == epoch:
            return  # the other end says so too
        spoilt = () if before is None else before.spoilt
        self._failing[pair] = Failing(
            incarnations=incarnations,
            epoch=epoch,
            plans=1 if before is None else before.plans + 1,
            progress=progress,
            before=None if before is None else before.progress,
            cause=cause,
            spoilt=spoilt if via is None else (*spoilt, via),
        )

    def note_progress(self, epoch: int, progress: Position) -> None:
        """All reports are in: so far had the job come when pairs failed in the plan of `epoch`.

        What was known when they failed came with heartbeats, and may be older.
        """
        for pair, failing in self._failing.items():
            if failing.epoch == epoch:
                self._failing[pair] = replace(failing, progress=progress)

    def forget_repaired(self, epoch: int, waiting: Collection[Pair] = ()) -> None:
        """The plan of `epoch` has run for a while: who has not failed in it begins anew.

        A relayed pair stays relayed: the plan shows that the relay works, not that the link does.
        Of a pair that is `waiting`, it shows nothing.
        """
        self._lasted = epoch
        self._cuts = {
            hosts: cut
            for hosts, cut in self._cuts.items()
            if cut.epochs[-1] == epoch or cut.is_unreachable
        }
        for pair, failing in list(self._failing.items()):
            if failing.epoch == epoch:
                continue
            if pair in waiting:
                self._failing[pair] = replace(failing, progress=None)
            elif failing.is_unreachable:
                self._failing[pair] = replace(failing, plans=RUNNING, progress=None, spoilt=())
            else:
                del self._failing[pair]
        left = {*waiting, *self._failing}
        self.parted = {pair: found for pair, found in self.parted.items() if pair in left}

    def forget_relay(self, via: int) -> None:
        """Another process is in the place of this rank: what failed through the old one is void.

        Its death ended the pairs' links too.
        """
        for pair, failing in list(self._failing.items()):
            spoilt = tuple(relay for relay in failing.spoilt if relay != via)
            plans = failing.plans - (len(failing.spoilt) - len(spoilt))
            if not plans:
                del self._failing[pair]
            elif spoilt != failing.spoilt:
                self._failing[pair] = replace(failing, plans=plans, progress=None, spoilt=spoilt)

    def of_incarnations(self, nonces: Mapping[int, bytes]) -> dict[Pair, Failing]:
        """The pairs whose ends both still live; the others are forgotten."""
        self._failing = {
            pair: failing
            for pair, failing in self._failing.items()
            if failing.incarnations == (nonces.get(pair[0]), nonces.get(pair[1]))
        }
        return dict(self._failing)


def choose_routes(
    failing: Mapping[Pair, Failing],
    present: Collection[int],
    leaving: Collection[int] = (),
    *,
    hosts: HostReachability | None = None,
    before: Iterable[Route] = (),
) -> tuple[tuple[Route, ...], tuple[Pair, ...]]:
    """A relay for every unreachable pair whose ends are present; and the pairs without a good one.

    The relay of a pair can reach both ends, and has not failed it in two plans.  Of several, one
    that no known cut between hosts separates from an end; then one that has not closed (`leaving`);
    then the one that has failed the pair or with either end least, and is on neither end of a
    suspected cut; then the one that relays the pair already (`before`), then the one with fewest
    pairs, then the lowest rank.

    A pair without a good one tries what has failed least: a relay that failed it or that may not
    reach an end, or its own link.  Its ends may have to stay, and then this is all that is left.

    Pairs that a cut between `hosts` separates are relayed before they have failed, where a third
    host can; there is room for `MAX_ROUTES`.
    """
    choice = _Choice(failing, present, leaving, hosts or HostReachability(), before)
    stranded: list[Pair] = []
    for pair, found in sorted(failing.items()):
        if found.is_unreachable and choice.has_both(pair) and not choice.relay(pair, found):
            stranded.append(pair)
    for pair, cut in choice.hosts.separated(present):
        choice.relay_ahead(pair, cut)
    return tuple(sorted(choice.routes.values(), key=lambda route: (route.a, route.b))), tuple(
        stranded
    )


class _Choice:
    """The routes of one plan, while they are chosen."""

    def __init__(
        self,
        failing: Mapping[Pair, Failing],
        present: Collection[int],
        leaving: Collection[int],
        hosts: HostReachability,
        before: Iterable[Route],
    ) -> None:
        self.hosts = hosts
        self.routes: dict[Pair, Route] = {}
        self._failing = failing
        self._leaving = leaving
        self._burden = dict.fromkeys(present, 0)
        self._before = {(route.a, route.b): route.via for route in before}

    def has_both(self, pair: Pair) -> bool:
        """True if both ends are present."""
        return pair[0] in self._burden and pair[1] in self._burden

    def relay(self, pair: Pair, found: Failing) -> bool:
        """Give the pair a relay, if there is room; False if none can be relied on."""
        others = [c for c in self._burden if c not in pair]
        able = [c for c in others if _can_relay(self._failing, found, pair, c)]
        doubts = {c: self._doubts(pair, found, c) for c in others}
        good = bool(able) and len(self.routes) < MAX_ROUTES
        if not good:
            able = [c for c in others if doubts[c] < found.direct]
        self._take(pair, able, doubts)
        return good

    def relay_ahead(self, pair: Pair, cut: Cut) -> None:
        """Relay a pair that need not fail first, by who reaches both ends as far as is known."""
        if pair in self.routes:
            return
        incarnations = (self.hosts.nonces[pair[0]], self.hosts.nonces[pair[1]])
        known = self._failing.get(pair) or Failing(
            incarnations, 0, 0, START, before=None, cause=cut.cause
        )
        others = [c for c in self._burden if c not in pair]
        doubts = {c: self._doubts(pair, known, c) for c in others}
        self._take(pair, [c for c in others if not doubts[c]], doubts)

    def _take(self, pair: Pair, able: Collection[int], doubts: Mapping[int, int]) -> None:
        if not able or len(self.routes) == MAX_ROUTES:
            return
        kept = self._before.get(pair)
        fit = [c for c in able if not any(self.hosts.cut_between(end, c) for end in pair)]
        via = min(
            fit or able,
            key=lambda c: (c in self._leaving, doubts[c], c != kept, self._burden[c], c),
        )
        self._burden[via] += 1
        self.routes[pair] = Route(*pair, via)

    def _doubts(self, pair: Pair, found: Failing, via: int) -> int:
        """In how many plans this relay has failed the pair, or may be taken to have."""
        cuts = (self.hosts.suspected_between(end, via) for end in pair)
        separated = sum(len(cut.epochs) for cut in cuts if cut is not None)
        return found.spoilt.count(via) + _failures(self._failing, via, pair) + separated


def _can_relay(failing: Mapping[Pair, Failing], pair: Failing, ends: Pair, via: int) -> bool:
    hops = (failing.get(pair_of(end, via)) for end in ends)
    worn = pair.spoilt.count(via) >= RUNNING
    return not worn and not any(hop and hop.is_unreachable for hop in hops)


def _failures(failing: Mapping[Pair, Failing], rank: int, others: Iterable[int]) -> int:
    hops = (failing.get(pair_of(rank, other)) for other in others)
    return sum(hop.plans for hop in hops if hop is not None)


def ends_to_give_up(failing: Mapping[Pair, Failing], pair: Pair) -> tuple[int, int]:
    """Both ends of a pair without a relay, the one first that had better be replaced.

    It is the one that fails with more of the others; then the one of which more hops are doubtful,
    on the way to a relay or as a relay itself; else the higher rank.
    """

    def bad(rank: int) -> tuple[int, int, int]:
        partners, hops = set[int](), set[int]()
        for ends, found in failing.items():
            if rank in ends:
                partners |= set(ends)
                hops |= set(found.spoilt)
            elif rank in found.spoilt:
                hops |= set(ends)
        return len(partners), len(hops - partners), rank

    first, second = sorted(pair, key=bad, reverse=True)
    return first, second
