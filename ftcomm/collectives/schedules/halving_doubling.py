"""Halving-doubling allreduce (Thakur, Rabenseifner and Gropp, 2005), for any number of ranks.

Among the places of a `Fold`: in each step of the first half a rank gives one half of the elements
that it still has to the one whose place differs in one bit, the lowest bit first, and reduces the
other half with what that one gives; so each place ends with a part of its own, complete.  The
second half takes the same exchanges backwards and collects the parts.  As in recursive doubling
neighbours meet first, lower ranks' operand first, so each element is the same tree of operands in
rank order.  2 log2(p) steps and 2(p-1)/p of the bytes for p places; where n is no power of two, two
steps of all the bytes more for those who fold.

No step is held: what it sends and what it reduces are two halves.
"""

from ftcomm.collectives.schedules.non_power_of_two import Fold, lower_first
from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind

Part = tuple[int, int]  # elements [lo, hi)


def halving_allreduce(world_size: int, rank: int, count: int) -> Schedule:
    """The schedule of `rank` for `count` elements."""
    fold = Fold(world_size)
    steps = fold.steps(rank, count, lambda: _exchanges(fold, rank, count), back=1 + 2 * fold.rounds)
    copies = (Copy(0, 0, count),) if world_size == 1 else ()
    return Schedule(
        Kind.ALLREDUCE,
        Algorithm.HALVING_DOUBLING,
        world_size,
        rank,
        count,
        count,
        steps,
        copies,
    )


def _exchanges(fold: Fold, rank: int, count: int) -> list[Step]:
    halving: list[Step] = []
    doubling: list[Step] = []
    part = (0, count)
    for bit in range(fold.rounds):
        peer = fold.rank_at(fold.place(rank) ^ (1 << bit))
        lower, upper = _halves(part)
        part, given = (lower, upper) if rank < peer else (upper, lower)
        fresh = bit == 0 and fold.is_fresh(rank)
        halving.append(_reduce_step(1 + bit, peer, part, given, fresh=fresh, above=peer < rank))
        doubling.append(_gather_step(2 * fold.rounds - bit, peer, part, given))
    return halving + doubling[::-1]


def _halves(part: Part) -> tuple[Part, Part]:
    """Both halves of a part, the longer one first."""
    lo, hi = part
    middle = hi - (hi - lo) // 2
    return (lo, middle), (middle, hi)


def _reduce_step(tag: int, peer: int, kept: Part, given: Part, *, fresh: bool, above: bool) -> Step:
    return Step(
        tag=tag,
        send_to=peer,
        send_lo=given[0],
        send_hi=given[1],
        send_from_sendbuf=fresh,
        recv_from=peer,
        recv_lo=kept[0],
        recv_hi=kept[1],
        reduce=lower_first(kept[1] - kept[0], incoming_first=above),
        own_in_sendbuf=fresh,
    )


def _gather_step(tag: int, peer: int, own: Part, missing: Part) -> Step:
    return Step(
        tag=tag,
        send_to=peer,
        send_lo=own[0],
        send_hi=own[1],
        recv_from=peer,
        recv_lo=missing[0],
        recv_hi=missing[1],
    )
