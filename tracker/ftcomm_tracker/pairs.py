"""Pairs of workers whose link fails: the record of failures, and the choice of detours (R12).

Pure.  A failure belongs to two lives: when either end is replaced, the pair begins anew.  A pair
that fails in two plans running cannot reach each other and is relayed by a third rank.  What came
between two failures decides whether they are "running": a plan that has run for a while without
a failure of the pair shows that its link works, or is not needed; a plan that ended early shows
nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ftcomm.protocol.codec import MAX_ROUTES
from ftcomm.protocol.messages import Route
from ftcomm.protocol.position import Position
from ftcomm_tracker.silence import Pair, pair_of

RUNNING = 2  # plans in a row in which a pair has failed: it is unreachable

Lives = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Failing:
    """One pair that has failed.

    Attributes:
        lives: nonces of both ends.
        epoch: of the newest plan in which it failed.
        plans: in how many plans running it has failed.
        progress: where the job stood at the newest failure.
        stuck: the job has come no farther since the failure before.
        cause: of the newest failure, in words.
        spoilt: the relays through which it failed too, one for each plan.
    """

    lives: Lives
    epoch: int
    plans: int
    progress: Position
    stuck: bool
    cause: str
    spoilt: tuple[int, ...] = ()

    @property
    def is_unreachable(self) -> bool:
        """True if the two ends cannot do without a relay."""
        return self.plans >= RUNNING

    @property
    def direct(self) -> int:
        """In how many plans its own link has failed."""
        return self.plans - len(self.spoilt)


@dataclass(slots=True)
class Pairs:
    """All pairs that have failed of late, by ranks."""

    _failing: dict[Pair, Failing] = field(default_factory=dict)

    def note_failure(
        self,
        pair: Pair,
        lives: Lives,
        *,
        epoch: int,
        progress: Position,
        cause: str,
        via: int | None = None,
    ) -> None:
        """The link of `pair` failed in the plan of `epoch`; `via` was its relay, if it had one."""
        before = self._failing.get(pair)
        if before is not None and before.lives != lives:
            before = None
        if before is not None and before.epoch == epoch:
            return  # the other end says so too
        spoilt = () if before is None else before.spoilt
        self._failing[pair] = Failing(
            lives=lives,
            epoch=epoch,
            plans=1 if before is None else before.plans + 1,
            progress=progress,
            stuck=before is not None and before.progress == progress,
            cause=cause,
            spoilt=spoilt if via is None else (*spoilt, via),
        )

    def forget_mended(self, epoch: int) -> None:
        """The plan of `epoch` has run for a while: who has not failed in it begins anew.

        A relayed pair stays relayed: the plan shows that the relay works, not that the link does.
        """
        for pair, failing in list(self._failing.items()):
            if failing.epoch == epoch:
                continue
            if failing.is_unreachable:
                self._failing[pair] = replace(failing, plans=RUNNING, stuck=False, spoilt=())
            else:
                del self._failing[pair]

    def of_lives(self, nonces: Mapping[int, bytes]) -> dict[Pair, Failing]:
        """The pairs whose ends both still live; the others are forgotten."""
        self._failing = {
            pair: failing
            for pair, failing in self._failing.items()
            if failing.lives == (nonces.get(pair[0]), nonces.get(pair[1]))
        }
        return dict(self._failing)


def choose_routes(
    failing: Mapping[Pair, Failing], present: Collection[int], leaving: Collection[int] = ()
) -> tuple[tuple[Route, ...], tuple[Pair, ...]]:
    """A relay for every unreachable pair whose ends are present; and the pairs without a good one.

    The relay of a pair can reach both ends, and has not failed it in two plans.  Of several, the
    one that has failed the pair or with either end least, then the one with fewest pairs, then the
    lowest rank; who has closed (`leaving`) only if there is nobody else.

    A pair without a good one tries what has failed least: a relay that failed it or that may not
    reach an end, or its own link.  Its ends may have to stay, and then this is all that is left.
    """
    burden = dict.fromkeys(present, 0)
    routes: list[Route] = []
    stranded: list[Pair] = []
    for (a, b), pair in sorted(failing.items()):
        if not pair.is_unreachable or a not in burden or b not in burden:
            continue
        others = [c for c in present if c not in (a, b)]
        able = [c for c in others if _can_relay(failing, pair, (a, b), c)]
        doubts = {c: pair.spoilt.count(c) + _failures(failing, c, (a, b)) for c in others}
        if not able or len(routes) == MAX_ROUTES:
            stranded.append((a, b))
            able = [c for c in others if doubts[c] < pair.direct]
        if not able or len(routes) == MAX_ROUTES:
            continue
        via = min(able, key=lambda c: (c in leaving, doubts[c], burden[c], c))
        burden[via] += 1
        routes.append(Route(a, b, via))
    return tuple(routes), tuple(stranded)


def _can_relay(failing: Mapping[Pair, Failing], pair: Failing, ends: Pair, via: int) -> bool:
    hops = (failing.get(pair_of(end, via)) for end in ends)
    worn = pair.spoilt.count(via) >= RUNNING
    return not worn and not any(hop and hop.is_unreachable for hop in hops)


def _failures(failing: Mapping[Pair, Failing], rank: int, others: Iterable[int]) -> int:
    hops = (failing.get(pair_of(rank, other)) for other in others)
    return sum(hop.plans for hop in hops if hop is not None)


def ends_to_give_up(failing: Mapping[Pair, Failing], pair: Pair) -> tuple[int, int]:
    """Both ends of a pair without a relay, the one first that had better be replaced.

    It is the one that fails with more of the others, else the higher rank.
    """

    def bad(rank: int) -> tuple[int, int]:
        return sum(rank in ends for ends in failing), rank

    first, second = sorted(pair, key=bad, reverse=True)
    return first, second
