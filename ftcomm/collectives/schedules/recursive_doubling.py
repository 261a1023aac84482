"""Recursive doubling allreduce, and the barrier, which is the same with nothing to carry.

Neighbours among the places of a `Fold` double up: in each step a rank exchanges all it has with
the one whose place differs in one bit, the lowest bit first.  Every combination has the lower
ranks' operand first and is computed with the same operands on both sides, so all ranks hold the
same bits and operands stay in rank order.  ceil(log2 n) steps when n is a power of two, two more
otherwise; each step carries all the bytes.
"""

from ftcomm.collectives.schedules.non_power_of_two import Fold, lower_first
from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind


def doubling_allreduce(
    world_size: int, rank: int, count: int, kind: Kind = Kind.ALLREDUCE
) -> Schedule:
    """The schedule of `rank` for `count` elements."""
    fold = Fold(world_size)
    steps = fold.steps(rank, count, lambda: _exchanges(fold, rank, count), back=1 + fold.rounds)
    copies = (Copy(0, 0, count),) if world_size == 1 and count else ()
    return Schedule(
        kind, Algorithm.RECURSIVE_DOUBLING, world_size, rank, count, count, steps, copies
    )


def barrier(world_size: int, rank: int) -> Schedule:
    """No elements, all the headers."""
    return doubling_allreduce(world_size, rank, 0, Kind.BARRIER)


def _exchanges(fold: Fold, rank: int, count: int) -> list[Step]:
    steps = []
    for bit in range(fold.rounds):
        peer = fold.rank_at(fold.place(rank) ^ (1 << bit))
        fresh = bit == 0 and fold.is_fresh(rank)  # nothing has been reduced here yet
        steps.append(
            Step(
                tag=1 + bit,
                send_to=peer,
                send_hi=count,
                send_from_sendbuf=fresh,
                recv_from=peer,
                recv_hi=count,
                reduce=lower_first(count, incoming_first=peer < rank),
                own_in_sendbuf=fresh,
                deferred=not fresh,
            )
        )
    return steps
