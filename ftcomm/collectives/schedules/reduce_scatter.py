"""Reduce-scatter: block b of all ranks' inputs, reduced, at rank b; blocks of any lengths.

Block b starts at rank b + 1 and travels upwards; each rank on the way appends its own operand, and
rank b the last one.  So the block is the left fold of the operands of ranks b+1, ..., b+n (modulo
n).  n-1 steps; a rank sends every block but its own, (n-1)/n of the bytes.  It is the first half of
the ring allreduce, begun one rank later.

Recvbuf has a place for the whole input, in which all but the own block is scratch.
"""

from ftcomm.collectives.schedules.ring import ring_reduce
from ftcomm.collectives.schedules.schedule import Copy, Schedule
from ftcomm.protocol.signature import Algorithm, Kind


def ring_reduce_scatter(world_size: int, rank: int, bounds: tuple[int, ...]) -> Schedule:
    """The schedule of `rank`, for any number of ranks.

    Args:
        world_size: n ranks.
        rank: whose schedule it is; its block ends at ``recvbuf[bounds[rank] : bounds[rank + 1]]``.
        bounds: n + 1 offsets, ascending from 0; a block may be empty.
    """
    count, steps = bounds[-1], tuple(ring_reduce(world_size, rank, bounds, start=1))
    copies = (Copy(0, 0, count),) if world_size == 1 else ()
    return Schedule(
        Kind.REDUCE_SCATTER, Algorithm.RING, world_size, rank, count, count, steps, copies
    )
