"""Ring allreduce: reduce-scatter, then allgather (Patarasuk and Yuan, 2009).

Block b starts at rank b and travels upwards through the ring; each rank on the way appends its own
operand.  So the result of block b is the left fold of the operands of ranks b, b+1, ..., b+n-1
(modulo n).  2(n-1) steps; each rank sends 2(n-1)/n of the bytes.
"""

from ftcomm.collectives.schedules.non_power_of_two import lower_first
from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step, block_bounds
from ftcomm.protocol.signature import Algorithm, Kind


def ring_allreduce(world_size: int, rank: int, count: int) -> Schedule:
    """The schedule of `rank` for `count` elements."""
    bounds = block_bounds(count, world_size)
    steps = ring_reduce(world_size, rank, bounds) + ring_gather(world_size, rank, bounds)
    copies = (Copy(0, 0, count),) if world_size == 1 else ()
    return Schedule(
        Kind.ALLREDUCE, Algorithm.RING, world_size, rank, count, count, tuple(steps), copies
    )


def ring_reduce(
    world_size: int, rank: int, bounds: tuple[int, ...], *, start: int = 0
) -> list[Step]:
    """The first half: `rank` ends with block rank + 1 - start (modulo n), reduced.

    Block b starts at rank b + start; `bounds` are n + 1 offsets of the blocks.
    """
    place = (rank - start) % world_size
    return [_reduce_step(world_size, rank, place, bounds, tag) for tag in range(world_size - 1)]


def ring_gather(world_size: int, rank: int, bounds: tuple[int, ...]) -> list[Step]:
    """The second half, numbered behind the first: the blocks go where they are missing."""
    return [_gather_step(world_size, rank, bounds, tag) for tag in range(world_size - 1)]


def _reduce_step(world_size: int, rank: int, place: int, bounds: tuple[int, ...], tag: int) -> Step:
    leaving, coming = (place - tag) % world_size, (place - tag - 1) % world_size
    lo, hi = bounds[coming], bounds[coming + 1]
    return Step(
        tag=tag,
        send_to=(rank + 1) % world_size,
        send_lo=bounds[leaving],
        send_hi=bounds[leaving + 1],
        send_from_sendbuf=tag == 0,
        recv_from=(rank - 1) % world_size,
        recv_lo=lo,
        recv_hi=hi,
        reduce=lower_first(hi - lo, incoming_first=True),
        own_in_sendbuf=True,
    )


def _gather_step(world_size: int, rank: int, bounds: tuple[int, ...], tag: int) -> Step:
    leaving, coming = (rank + 1 - tag) % world_size, (rank - tag) % world_size
    return Step(
        tag=world_size - 1 + tag,
        send_to=(rank + 1) % world_size,
        send_lo=bounds[leaving],
        send_hi=bounds[leaving + 1],
        recv_from=(rank - 1) % world_size,
        recv_lo=bounds[coming],
        recv_hi=bounds[coming + 1],
    )
