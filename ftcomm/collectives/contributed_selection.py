"""Schedules of the collectives that give each rank a result of its own; kept, as in `selection`.

Nothing is chosen: each has one schedule, made once per shape.

A function that must see whole arrays in rank order has no schedule here.
"""

import functools

from ftcomm.collectives.schedules.pairwise_exchange import pairwise_exchange_v
from ftcomm.collectives.schedules.reduce_scatter import ring_reduce_scatter
from ftcomm.collectives.schedules.rooted import direct_gather, direct_scatter, reduce_to_root
from ftcomm.collectives.schedules.schedule import Schedule

SCHEDULES_KEPT = 128  # of each kind


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def reduce_scatter_schedule(world_size: int, rank: int, bounds: tuple[int, ...]) -> Schedule:
    """The kept schedule of `rank`, whose result is block `rank` of the reduction.

    `bounds` are n + 1 offsets of the blocks in the input, in elements.
    """
    return ring_reduce_scatter(world_size, rank, bounds)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def alltoallv_schedule(
    world_size: int, rank: int, sent: tuple[int, ...], received: tuple[int, ...]
) -> Schedule:
    """The kept schedule of `rank`: ``sent[j]`` elements to rank j, ``received[j]`` from it."""
    return pairwise_exchange_v(world_size, rank, sent, received)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def gatherv_schedule(world_size: int, rank: int, counts: tuple[int, ...], root: int) -> Schedule:
    """The kept schedule of `rank`, of which the root gets ``counts[rank]`` elements."""
    return direct_gather(world_size, rank, counts, root)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def scatterv_schedule(world_size: int, rank: int, counts: tuple[int, ...], root: int) -> Schedule:
    """The kept schedule of `rank`, which gets ``counts[rank]`` elements of the root."""
    return direct_scatter(world_size, rank, counts, root)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def reduce_schedule(world_size: int, rank: int, count: int, root: int) -> Schedule:
    """The kept schedule of `rank`; the root gets the reduction of `count` elements."""
    return reduce_to_root(world_size, rank, count, root)
