"""Allgathers: every rank's block at every rank, (n-1)/n of the result sent.

Ring: every block travels once around; n-1 steps.

Recursive doubling: of a power of two of ranks, those whose numbers differ in one bit meet, the
lowest bit first, and exchange all that they have, so that what a rank has is one block of work:
log2 n steps (Thakur, Rabenseifner, Gropp 2005).
"""

from collections.abc import Sequence

from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind


def ring_allgather(world_size: int, rank: int, count: int) -> Schedule:
    """`count` elements of each rank, one after the other in rank order."""
    return ring_allgatherv(world_size, rank, (count,) * world_size)


def ring_allgatherv(world_size: int, rank: int, counts: Sequence[int]) -> Schedule:
    """`counts[r]` elements of rank r, one after the other in rank order."""
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    own = counts[rank]
    steps = tuple(_ring_step(world_size, rank, bounds, tag) for tag in range(world_size - 1))
    copies = (Copy(bounds[rank], 0, own),)
    return Schedule(
        Kind.ALLGATHER, Algorithm.RING, world_size, rank, own, bounds[-1], steps, copies
    )


def _ring_step(world_size: int, rank: int, bounds: Sequence[int], tag: int) -> Step:
    leaving, coming = (rank - tag) % world_size, (rank - tag - 1) % world_size
    first = tag == 0  # the own block leaves straight from sendbuf
    return Step(
        tag=tag,
        send_to=(rank + 1) % world_size,
        send_lo=0 if first else bounds[leaving],
        send_hi=bounds[leaving + 1] - bounds[leaving] if first else bounds[leaving + 1],
        send_from_sendbuf=first,
        recv_from=(rank - 1) % world_size,
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
