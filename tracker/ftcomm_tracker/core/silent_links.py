"""Detection of links that died silently: pure, from the ranks' positions and waits (R12).

A rank waits for another, and no byte comes.  That alone says nothing: the other may compute, or may
itself wait for a third.  But steps are numbered alike on all ranks, and a rank that stands in a
step has sent what it owes in the steps before, and begun to send what it owes in this one.  So
the link is at fault when the awaited rank stands as far as the waiting one or farther:

- in an earlier position or step: it has not sent yet.  Its own wait is the one to look at.
- in the same step: both directions of the step are under way, and neither moves.
- in a later step or position: what is awaited has been sent, and has not come.

So the rank that is farthest behind of all who are blocked always names the cause, and a chain of
ranks that wait because of it is not blamed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ftcomm.protocol.position import Position

Pair = tuple[int, int]  # two ranks, the lower first


def pair_of(one: int, other: int) -> Pair:
    """The two ranks as a pair."""
    return (one, other) if one < other else (other, one)


@dataclass(frozen=True, slots=True)
class RankProgress:
    """Progress of one rank, from its heartbeats.

    Attributes:
        position: the collective that it completes next; it has stood there for long.
        step: of the collective, if it has been blocked there for long, else None.
        peers: whom it has been waiting for; empty if `step` is None.
    """

    position: Position
    step: int | None = None
    peers: tuple[int, ...] = ()


CLOSED = RankProgress(Position(1 << 31, 0, 0))  # of a rank that has completed everything


def starving_pairs(stands: Mapping[int, RankProgress]) -> tuple[Pair, ...]:
    """The pairs of ranks whose link carries nothing, though one end has sent or would receive.

    Args:
        stands: by rank; a rank that is not known to stand anywhere for long is left out.
    """
    found = {
        pair_of(rank, peer)
        for rank, stand in stands.items()
        for peer in stand.peers
        if peer in stands and _has_come_as_far(stands[peer], stand)
    }
    return tuple(sorted(found))


def _has_come_as_far(awaited: RankProgress, waiting: RankProgress) -> bool:
    assert waiting.step is not None
    if awaited.position != waiting.position:
        return awaited.position > waiting.position
    return awaited.step is not None and awaited.step >= waiting.step
