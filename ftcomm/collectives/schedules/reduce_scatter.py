"""Reduce-scatter: each rank gets one block of the reduction, of any length.

The ring is the first half of the ring allreduce, with its blocks numbered so that each ends where
it belongs.  Block b starts at rank b + 1 and travels upwards; each rank on the way appends its own
operand.  So it is the left fold of the operands of ranks b+1, b+2, ..., b+n (modulo n).  n-1 steps;
each rank sends (n-1)/n of the bytes (Patarasuk and Yuan, 2009).

Recursive halving has log2(n) steps and sends as many bytes (Thakur, Rabenseifner and Gropp, 2005).
It is for a power of two of ranks.  In the first step a rank exchanges with the one half of the
group away: each sends the blocks of the other's half.  So block b is a tree over neighbours in
distances of n/2, n/4, ..., 1, the lower rank's operand first.
"""

from collections.abc import Sequence

from ftcomm.collectives.schedules.schedule import Copy, Reduce, Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind


def ring_reduce_scatter(world_size: int, rank: int, bounds: Sequence[int]) -> Schedule:
    """The schedule of `rank`, whose block is ``[bounds[rank], bounds[rank + 1])`` of recvbuf.

    The rest of recvbuf is scratch.

    Args:
        world_size: number of ranks.
        rank: whose schedule it is.
        bounds: `world_size` + 1 offsets, which cut the input into a block for each rank.
    """
    steps = ring_reduce_steps(world_size, rank, bounds)
    return _schedule(Algorithm.RING, world_size, rank, bounds, steps)


def ring_reduce_steps(world_size: int, rank: int, bounds: Sequence[int]) -> list[Step]:
    """The steps by which `rank` gets its own block."""
    return [_ring_step(world_size, rank, bounds, tag) for tag in range(world_size - 1)]


def _ring_step(world_size: int, rank: int, bounds: Sequence[int], tag: int) -> Step:
    leaving, coming = (rank - tag - 1) % world_size, (rank - tag - 2) % world_size
    return Step(
        tag=tag,
        send_to=(rank + 1) % world_size,
        send_lo=bounds[leaving],
        send_hi=bounds[leaving + 1],
        send_from_sendbuf=tag == 0,
        recv_from=(rank - 1) % world_size,
        recv_lo=bounds[coming],
        recv_hi=bounds[coming + 1],
        reduce=Reduce.INCOMING_FIRST,
        own_in_sendbuf=True,
    )


def halving_reduce_scatter(world_size: int, rank: int, bounds: Sequence[int]) -> Schedule:
    """The same by recursive halving, for a power of two of ranks.

    Raises:
        ValueError: for another number of ranks.
    """
    if world_size & (world_size - 1):
        raise ValueError(f"recursive halving is for a power of two of ranks, not {world_size}")
    steps: list[Step] = []
    lo, hi = 0, world_size  # the ranks whose blocks this rank still works on
    while hi - lo > 1:
        steps.append(_halving_step(rank, lo, hi, bounds, tag=len(steps)))
        middle = (lo + hi) // 2
        lo, hi = (lo, middle) if rank < middle else (middle, hi)
    return _schedule(Algorithm.HALVING_DOUBLING, world_size, rank, bounds, steps)


def _halving_step(rank: int, lo: int, hi: int, bounds: Sequence[int], *, tag: int) -> Step:
    middle = (lo + hi) // 2
    is_lower = rank < middle
    peer = rank + (middle - lo if is_lower else lo - middle)
    mine, other = (lo, middle), (middle, hi)
    if not is_lower:
        mine, other = other, mine
    return Step(
        tag=tag,
        send_to=peer,
        send_lo=bounds[other[0]],
        send_hi=bounds[other[1]],
        send_from_sendbuf=tag == 0,
        recv_from=peer,
        recv_lo=bounds[mine[0]],
        recv_hi=bounds[mine[1]],
        reduce=Reduce.OWN_FIRST if is_lower else Reduce.INCOMING_FIRST,
        own_in_sendbuf=tag == 0,
    )


def _schedule(
    algorithm: Algorithm, world_size: int, rank: int, bounds: Sequence[int], steps: list[Step]
) -> Schedule:
    count = bounds[-1]
    copies = (Copy(0, 0, count),) if world_size == 1 else ()
    return Schedule(
        Kind.REDUCE_SCATTER, algorithm, world_size, rank, count, count, tuple(steps), copies
    )
