"""Allgathers: every rank's block at every rank, (n-1)/n of the result sent.

Ring: every block travels once around; n-1 steps.

Recursive doubling: of a power of two of ranks, those whose numbers differ in one bit meet, the
lowest bit first, and exchange all that they have, so that what a rank has is one block of work:
log2 n steps (Thakur, Rabenseifner, Gropp 2005).
"""

from collections.abc import Sequence
from itertools import accumulate

from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind


def ring_allgather(world_size: int, rank: int, count: int) -> Schedule:
    """`count` elements of each rank, one after the other in rank order."""
    return ring_allgatherv(world_size, rank, (count,) * world_size)


def ring_allgatherv(
    world_size: int, rank: int, counts: Sequence[int], order: Sequence[int] = ()
) -> Schedule:
    """`counts[r]` elements of rank r, one after the other in rank order.

    `order` are the ranks in the order of the ring, if that is another one.
    """
    order = order or range(world_size)
    bounds, own = (0, *accumulate(counts)), counts[rank]
    steps = tuple(_ring_step(order, order.index(rank), bounds, k) for k in range(world_size - 1))
    copies = (Copy(bounds[rank], 0, own),)
    return Schedule(
        Kind.ALLGATHER, Algorithm.RING, world_size, rank, own, bounds[-1], steps, copies
    )


def _ring_step(order: Sequence[int], place: int, bounds: Sequence[int], tag: int) -> Step:
    n = len(order)
    leaving, coming = order[(place - tag) % n], order[(place - tag - 1) % n]
    first = tag == 0  # the own block leaves straight from sendbuf
    return Step(
        tag=tag,
        send_to=order[(place + 1) % n],
        send_lo=0 if first else bounds[leaving],
        send_hi=bounds[leaving + 1] - bounds[leaving] if first else bounds[leaving + 1],
        send_from_sendbuf=first,
        recv_from=order[(place - 1) % n],
        recv_lo=bounds[coming],
        recv_hi=bounds[coming + 1],
    )


def doubling_allgather(world_size: int, rank: int, count: int) -> Schedule:
    """`count` elements of each of a power of two of ranks, one after the other in rank order."""
    rounds = world_size.bit_length() - 1
    steps = tuple(_doubling_step(rank, count, bit) for bit in range(rounds))
    copies = (Copy(rank * count, 0, count),)  # before the steps: the second one sends it on
    return Schedule(
        Kind.ALLGATHER,
        Algorithm.RECURSIVE_DOUBLING,
        world_size,
        rank,
        count,
        world_size * count,
        steps,
        copies,
    )


def _doubling_step(rank: int, count: int, bit: int) -> Step:
    ranks = 1 << bit
    own = rank & ~(ranks - 1)
    theirs = own ^ ranks
    return Step(
        tag=bit,
        send_to=rank ^ ranks,
        send_lo=own * count,
        send_hi=(own + ranks) * count,
        recv_from=rank ^ ranks,
        recv_lo=theirs * count,
        recv_hi=(theirs + ranks) * count,
    )
