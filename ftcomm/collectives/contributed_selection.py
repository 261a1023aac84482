"""Schedules of the collectives that give each rank a result of its own; kept, as in `selection`.

Every choice follows from what is the same on all ranks (rule R5).  What a call without a choice
needs is here too, so that it is made once per shape.

A function that must see whole arrays in rank order has no schedule here.
"""

import functools

from ftcomm.collectives.schedules.non_power_of_two import is_power_of_two
from ftcomm.collectives.schedules.pairwise_exchange import pairwise_exchange_v
from ftcomm.collectives.schedules.reduce_scatter import (
    halving_reduce_scatter,
    ring_reduce_scatter,
)
from ftcomm.collectives.schedules.rooted import direct_gather, direct_scatter, reduce_to_root
from ftcomm.collectives.schedules.schedule import Schedule
from ftcomm.protocol.signature import Algorithm

SCHEDULES_KEPT = 128  # of each kind
# Whole input of a rank. Below it the ring's n-1 messages cost more than its bytes; it is the limit
# of Thakur, Rabenseifner and Gropp (2005) for recursive halving.
HALVING_BELOW_BYTES = 512 * 1024


def reduce_scatter_schedule(
    world_size: int,
    rank: int,
    bounds: tuple[int, ...],
    itemsize: int,
    algorithm: Algorithm = Algorithm.AUTO,
    *,
    function: bool = False,
) -> Schedule:
    """The kept schedule of `rank`, whose result is block `rank` of the reduction.

    Args:
        world_size: n ranks.
        rank: whose schedule it is.
        bounds: n + 1 offsets of the blocks in the input, in elements.
        itemsize: bytes of an element.
        algorithm: the caller's wish: AUTO, RING, or HALVING_DOUBLING for recursive halving.
        function: the reduction is a user's function. It may compute other bits where arrays are
            cut otherwise, so it takes the ring, where each block travels uncut.

    Raises:
        ValueError: the wish does not fit the number of ranks or the reduction.
    """
    allowed = [Algorithm.RING]
    if is_power_of_two(world_size) and not function:
        allowed.append(Algorithm.HALVING_DOUBLING)
    if algorithm is Algorithm.AUTO:
        is_short = bounds[-1] * itemsize < HALVING_BELOW_BYTES
        algorithm = allowed[-1] if is_short else Algorithm.RING
    elif algorithm not in allowed:
        raise ValueError(f"algorithm {algorithm.name.lower()} does not fit this reduce_scatter")
    return _reduce_scatter(world_size, rank, bounds, algorithm)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def _reduce_scatter(
    world_size: int, rank: int, bounds: tuple[int, ...], chosen: Algorithm
) -> Schedule:
    build = ring_reduce_scatter if chosen is Algorithm.RING else halving_reduce_scatter
    return build(world_size, rank, bounds)


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
