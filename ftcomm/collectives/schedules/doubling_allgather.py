"""Recursive doubling allgather: in each step a rank exchanges all that it has with another one.

Of a power of two of ranks, those whose numbers differ in one bit meet, the lowest bit first, so
that what a rank has is one block of work: log2 n steps, (n-1)/n of the result sent (Thakur,
Rabenseifner, Gropp 2005).
"""

from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind


def is_power_of_two(world_size: int) -> bool:
    """True of a number of ranks that this schedule is for."""
    return world_size & (world_size - 1) == 0


def doubling_allgather(world_size: int, rank: int, count: int) -> Schedule:
    """`count` elements of each of a power of two of ranks, one after the other in rank order."""
    rounds = world_size.bit_length() - 1
    steps = tuple(_step(rank, count, bit) for bit in range(rounds))
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


def _step(rank: int, count: int, bit: int) -> Step:
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
