"""Schedules of collectives that give each rank a result of its own; each made once and kept.

What is chosen follows from sizes that all ranks know alike (rule R5).
"""

import functools

from ftcomm.collectives.schedules.direct import direct_gather, direct_scatter, reduce_to_root
from ftcomm.collectives.schedules.pairwise_exchange import pairwise_exchange_v
from ftcomm.collectives.schedules.reduce_scatter import halving_reduce_scatter, ring_reduce_scatter
from ftcomm.collectives.schedules.schedule import Schedule
from ftcomm.collectives.selection import SCHEDULES_KEPT
from ftcomm.protocol.signature import Algorithm

# Of all ranks' blocks together. Below, the fewer steps of halving pay; above, both send as much,
# and the ring's blocks are the smaller ones.
HALVING_UP_TO_BYTES = 256 * 1024


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def reduce_scatter_schedule(
    world_size: int,
    rank: int,
    bounds: tuple[int, ...],
    itemsize: int,
    algorithm: Algorithm = Algorithm.AUTO,
) -> Schedule:
    """The schedule of `rank`, which gets the block ``[bounds[rank], bounds[rank + 1])``.

    Args:
        world_size: number of ranks.
        rank: whose schedule it is.
        bounds: offsets of the ranks' blocks, in elements.
        itemsize: bytes of an element.
        algorithm: the caller's wish: ring or halving_doubling. Where the number of ranks is no
            power of two, all go by the ring.
    """
    is_power = not world_size & (world_size - 1)
    is_small = bounds[-1] * itemsize <= HALVING_UP_TO_BYTES
    wishes_halving = algorithm is Algorithm.HALVING_DOUBLING
    if is_power and (wishes_halving or (is_small and algorithm is Algorithm.AUTO)):
        return halving_reduce_scatter(world_size, rank, bounds)
    return ring_reduce_scatter(world_size, rank, bounds)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def alltoallv_schedule(
    world_size: int, rank: int, sent: tuple[int, ...], received: tuple[int, ...]
) -> Schedule:
    """The schedule of `rank`: ``sent[r]`` elements to each rank r, ``received[r]`` from it."""
    return pairwise_exchange_v(world_size, rank, sent, received)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def gatherv_schedule(world_size: int, rank: int, counts: tuple[int, ...], root: int) -> Schedule:
    """The schedule of `rank` where rank r has ``counts[r]`` elements for the root."""
    return direct_gather(world_size, rank, counts, root)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def scatterv_schedule(world_size: int, rank: int, counts: tuple[int, ...], root: int) -> Schedule:
    """The schedule of `rank` where the root has ``counts[r]`` elements for rank r."""
    return direct_scatter(world_size, rank, counts, root)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def reduce_schedule(world_size: int, rank: int, count: int, root: int) -> Schedule:
    """The schedule of `rank` for a reduction of `count` elements to the root."""
    return reduce_to_root(world_size, rank, count, root)
