"""Selection of the algorithm by constants, equal on all ranks.

Nothing measured at run time enters here (rule R5).  Schedules are made once per shape and kept.
"""

import functools
import hashlib
from dataclasses import replace

from ftcomm.collectives.schedules.allgather import (
    doubling_allgather,
    ring_allgatherv,
)
from ftcomm.collectives.schedules.binomial_tree import binomial_broadcast
from ftcomm.collectives.schedules.direct import (
    DIRECT_BYTES,
    DIRECT_RANKS,
    GATHERED_BYTES,
    PIECE_BYTES,
    direct_allreduce,
    two_level_allreduce,
)
from ftcomm.collectives.schedules.non_power_of_two import is_power_of_two
from ftcomm.collectives.schedules.pairwise_exchange import pairwise_exchange
from ftcomm.collectives.schedules.pipelined_chain import (
    MOST_SEGMENTS,
    SEGMENT_BYTES,
    chain_broadcast,
)
from ftcomm.collectives.schedules.recursive_doubling import barrier, doubling_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.collectives.schedules.schedule import REDUCE_SEGMENT_BYTES, Schedule
from ftcomm.protocol.host_groups import (
    Grouping,
    has_two_levels,
    is_one_host,
    largest_level,
    ranks_by_host,
)
from ftcomm.protocol.signature import Algorithm, Kind

# Of a rank's block of an allreduce in a group that is too large for the direct exchange: from here
# on the ring's 2(n-1) messages cost less than what recursive doubling sends more.
RING_BLOCK_BYTES = 32 * 1024
# Of a broadcast, for each rank: from here on a chain of segments beats the tree, whose root sends
# everything log2(n) times.
CHAIN_BYTES = 1024 * 1024
# Of the result of an allgather: fewer steps pay as long as one costs more than its bytes.
DOUBLING_ALLGATHER_BYTES = 256 * 1024
ORDER_REVISION = 5  # raised whenever any algorithm's operand order or cut points change

# Those that a caller may name.
_ALLOWED: dict[Kind, tuple[Algorithm, ...]] = {
    Kind.ALLREDUCE: (Algorithm.RING, Algorithm.RECURSIVE_DOUBLING),
    Kind.BROADCAST: (Algorithm.TREE, Algorithm.CHAIN),
}


def tables_digest() -> bytes:
    """32 bytes that are equal iff two processes cut, order and by default choose alike."""
    cuts = (ORDER_REVISION, REDUCE_SEGMENT_BYTES, SEGMENT_BYTES, MOST_SEGMENTS)
    limits = (
        RING_BLOCK_BYTES,
        CHAIN_BYTES,
        DOUBLING_ALLGATHER_BYTES,
        DIRECT_BYTES,
        DIRECT_RANKS,
        GATHERED_BYTES,
        PIECE_BYTES,
    )
    return hashlib.sha256(repr((cuts, limits)).encode()).digest()


def synchronising(kind: Kind) -> bool:
    """Tell whether executing `kind` proves that every rank has completed the calls before (R3).

    Kinds without a schedule of their own execute a barrier or an allgather at their position, and
    so synchronise.  Contributed calls end with an exchange of digests, which does (R20).
    """
    return kind is not Kind.BROADCAST


def choose_algorithm(
    kind: Kind,
    world_size: int,
    nbytes: int,
    override: Algorithm = Algorithm.AUTO,
    *,
    whole: bool = False,
    grouping: Grouping = (),
) -> Algorithm:
    """The algorithm for `nbytes` of input on each of `world_size` ranks.

    Args:
        kind: allreduce, broadcast, allgather, alltoall or barrier.
        world_size: number of ranks.
        nbytes: size of one rank's input.
        override: the caller's or the job's wish; AUTO leaves it to the constants.
        whole: the reduction needs whole arrays in rank order. Then only little goes by the direct
            exchange, which brings the arrays of all to one rank, and only where the ranks of each
            host follow one another; the rest goes by doubling.
        grouping: which ranks share a host; empty where nothing is known of that.

    Raises:
        ValueError: the wish does not fit the kind or the reduction.
    """
    if override is not Algorithm.AUTO:
        if override not in _ALLOWED.get(kind, ()) or (whole and override is Algorithm.RING):
            raise ValueError(
                f"algorithm {override.name.lower()} does not fit this {kind.name.lower()}"
            )
        return override
    if kind is Kind.ALLTOALL:
        return Algorithm.PAIRWISE
    if kind is Kind.BROADCAST:
        is_long = world_size > 2 and nbytes >= CHAIN_BYTES * world_size
        return Algorithm.CHAIN if is_long else Algorithm.TREE
    meets_all = world_size > 1 and largest_level(grouping, world_size) <= DIRECT_RANKS
    if kind is Kind.ALLREDUCE:
        # Hosts that are dealt out would combine other ranks first than rank order does.
        in_order = not has_two_levels(grouping) or list(grouping) == sorted(grouping)
        if meets_all and (not whole or (nbytes <= DIRECT_BYTES and in_order)):
            return Algorithm.DIRECT
        is_long = nbytes >= RING_BLOCK_BYTES * world_size and not whole
        return Algorithm.RING if is_long else Algorithm.RECURSIVE_DOUBLING
    if meets_all and is_one_host(grouping) and nbytes <= DIRECT_BYTES:
        return Algorithm.DIRECT
    return Algorithm.RECURSIVE_DOUBLING if kind is Kind.BARRIER else _gather(world_size, nbytes)


def _gather(world_size: int, nbytes: int) -> Algorithm:
    """The algorithm of an allgather over links, for blocks of `nbytes`."""
    is_small = world_size * nbytes <= DOUBLING_ALLGATHER_BYTES
    return (
        Algorithm.RECURSIVE_DOUBLING if is_small and is_power_of_two(world_size) else Algorithm.RING
    )


SCHEDULES_KEPT = 128  # a ring of 1024 ranks is 2046 steps, about 0.3 MB


def schedule_for(
    kind: Kind,
    world_size: int,
    rank: int,
    count: int,
    itemsize: int,
    *,
    algorithm: Algorithm = Algorithm.AUTO,
    root: int = -1,
    whole: bool = False,
    grouping: Grouping = (),
) -> Schedule:
    """The kept schedule of `rank` for `count` elements of `itemsize` bytes on each rank."""
    chosen = choose_algorithm(
        kind, world_size, count * itemsize, algorithm, whole=whole, grouping=grouping
    )
    return _schedule(kind, world_size, rank, count, itemsize, chosen, root, grouping)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def _schedule(
    kind: Kind,
    world_size: int,
    rank: int,
    count: int,
    itemsize: int,
    chosen: Algorithm,
    root: int,
    grouping: Grouping,
) -> Schedule:
    """Build the schedule of a choice."""
    if kind is Kind.ALLREDUCE:
        return _allreduce(world_size, rank, count, itemsize, chosen, grouping)
    if kind is Kind.BARRIER:
        return replace(barrier(world_size, rank), algorithm=chosen)
    if kind is Kind.ALLTOALL:
        return pairwise_exchange(world_size, rank, count // world_size)
    if kind is Kind.ALLGATHER:
        return _allgather(world_size, rank, count, itemsize, chosen, grouping)
    order = ranks_by_host(grouping or range(world_size), root)
    place = order.index(rank)
    if chosen is Algorithm.CHAIN:
        return chain_broadcast(world_size, place, count, 0, itemsize).among(order)
    return binomial_broadcast(world_size, place, count, 0).among(order)


def _allreduce(
    world_size: int, rank: int, count: int, itemsize: int, chosen: Algorithm, grouping: Grouping
) -> Schedule:
    if chosen is Algorithm.RING:
        return ring_allreduce(world_size, rank, count)
    if chosen is Algorithm.RECURSIVE_DOUBLING:
        return doubling_allreduce(world_size, rank, count)
    if has_two_levels(grouping):
        return two_level_allreduce(grouping, rank, count, itemsize)
    return direct_allreduce(world_size, rank, count, itemsize)


def _allgather(
    world_size: int, rank: int, count: int, itemsize: int, chosen: Algorithm, grouping: Grouping
) -> Schedule:
    """All ranks' blocks at every rank; of a direct one the steps where there is no segment."""
    if _gather(world_size, count * itemsize) is Algorithm.RECURSIVE_DOUBLING:
        return replace(doubling_allgather(world_size, rank, count), algorithm=chosen)
    return replace(
        allgatherv_schedule(world_size, rank, (count,) * world_size, grouping), algorithm=chosen
    )


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def allgatherv_schedule(
    world_size: int, rank: int, counts: tuple[int, ...], grouping: Grouping = ()
) -> Schedule:
    """The cached schedule of `rank` where rank r brings ``counts[r]`` elements."""
    return ring_allgatherv(world_size, rank, counts, ranks_by_host(grouping or range(world_size)))
