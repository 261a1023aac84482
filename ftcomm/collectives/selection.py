"""Selection of the algorithm by constants, equal on all ranks.

Nothing measured at run time enters here (rule R5).  Schedules are made once per shape and kept.
"""

import functools
import hashlib
from collections.abc import Callable
from typing import Final

from ftcomm.collectives.contributed_selection import HALVING_BELOW_BYTES
from ftcomm.collectives.schedules.allgather import (
    doubling_allgather,
    ring_allgather,
    ring_allgatherv,
)
from ftcomm.collectives.schedules.binomial_tree import binomial_broadcast
from ftcomm.collectives.schedules.halving_doubling import halving_allreduce
from ftcomm.collectives.schedules.hierarchical import (
    SHARES_FROM_BYTES,
    chain_by_hosts,
    hierarchical_allreduce,
    hierarchical_broadcast,
)
from ftcomm.collectives.schedules.hierarchical_allgather import hierarchical_allgatherv
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
from ftcomm.protocol.host_groups import Grouping, are_neighbours, is_hierarchical
from ftcomm.protocol.signature import Algorithm, Kind

# A hierarchy of hosts whose ranks are neighbours from this many bytes on. Below, recursive doubling
# has fewer steps, and as few of them between hosts.
HIERARCHICAL_FROM_BYTES = 16 * 1024
# Of the result of an allgather: fewer steps pay as long as one costs more than its bytes.
DOUBLING_ALLGATHER_BYTES = 256 * 1024
_DOUBLING, _HALVING = Algorithm.RECURSIVE_DOUBLING, Algorithm.HALVING_DOUBLING
_RING, _TREE, _CHAIN = Algorithm.RING, Algorithm.BINOMIAL, Algorithm.CHAIN
# Groups of up to so many ranks, and from how many KiB of a rank's input on each algorithm is used.
# Larger groups go by the last row. docs/algorithms.md says why.
CHOICES: Final[dict[Kind, tuple[tuple[int, dict[int, Algorithm]], ...]]] = {
    Kind.ALLREDUCE: (
        (2, {0: _DOUBLING, 512: _RING}),
        (3, {0: _DOUBLING, 256: _RING}),
        (4, {0: _DOUBLING, 256: _HALVING}),
        (7, {0: _DOUBLING, 1024: _RING}),
        (8, {0: _DOUBLING, 256: _HALVING}),
        (15, {0: _DOUBLING, 512: _HALVING, 2048: _RING}),
        (16, {0: _DOUBLING, 256: _HALVING}),
        (31, {0: _DOUBLING, 512: _HALVING, 4096: _RING}),
        (1024, {0: _DOUBLING, 256: _HALVING, 65536: _RING}),
    ),
    Kind.BROADCAST: (
        (2, {0: _TREE}),
        (4, {0: _TREE, 4096: _CHAIN}),
        (8, {0: _TREE, 8192: _CHAIN}),
        (16, {0: _TREE, 16384: _CHAIN}),
        (64, {0: _TREE, 32768: _CHAIN}),
        (1024, {0: _TREE, 262144: _CHAIN}),
    ),
}
ORDER_REVISION = 3  # raised whenever any algorithm's operand order or cut points change

_ALLOWED: dict[Kind, tuple[Algorithm, ...]] = {
    Kind.ALLREDUCE: (
        Algorithm.RING,
        Algorithm.RECURSIVE_DOUBLING,
        Algorithm.HALVING_DOUBLING,
        Algorithm.HIERARCHICAL,
    ),
    Kind.BROADCAST: (Algorithm.BINOMIAL, Algorithm.CHAIN, Algorithm.HIERARCHICAL),
    Kind.ALLGATHER: (Algorithm.RING, Algorithm.HIERARCHICAL),
    Kind.BARRIER: (Algorithm.RECURSIVE_DOUBLING,),
    Kind.ALLTOALL: (Algorithm.PAIRWISE,),
}
_ALLREDUCES: dict[Algorithm, Callable[[int, int, int], Schedule]] = {
    Algorithm.RING: ring_allreduce,
    Algorithm.RECURSIVE_DOUBLING: doubling_allreduce,
    Algorithm.HALVING_DOUBLING: halving_allreduce,
}


def tables_digest() -> bytes:
    """32 bytes that are equal iff two processes cut, order and by default choose alike."""
    cuts = (ORDER_REVISION, REDUCE_SEGMENT_BYTES, SEGMENT_BYTES, MOST_SEGMENTS, SHARES_FROM_BYTES)
    limits = (HIERARCHICAL_FROM_BYTES, HALVING_BELOW_BYTES, DOUBLING_ALLGATHER_BYTES)
    text = repr((cuts, limits, CHOICES))
    return hashlib.sha256(text.encode()).digest()


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
        whole: the reduction needs whole arrays in rank order, which only doubling gives.
        grouping: which ranks share a host. Where it is flat (`is_hierarchical` says no), a
            wish for the hierarchy leaves the choice to the constants, so that a job's setting fits
            wherever the job runs.

    Raises:
        ValueError: the wish does not fit the kind or the reduction.
    """
    allowed = _ALLOWED[kind]
    if whole and kind is Kind.ALLREDUCE:
        allowed = (Algorithm.RECURSIVE_DOUBLING,)
    if override is not Algorithm.AUTO:
        if override not in allowed:
            raise ValueError(
                f"algorithm {override.name.lower()} does not fit this {kind.name.lower()}"
            )
        if override is not Algorithm.HIERARCHICAL or is_hierarchical(grouping):
            return override
    pays = kind is not Kind.ALLREDUCE or nbytes >= HIERARCHICAL_FROM_BYTES
    by_hosts = (
        Algorithm.HIERARCHICAL in allowed
        and is_hierarchical(grouping)
        and (pays or not are_neighbours(grouping))
    )
    if kind is Kind.ALLGATHER:
        return Algorithm.HIERARCHICAL if by_hosts else _flat_allgather(world_size, nbytes)
    if len(allowed) == 1:
        return allowed[0]
    picked = _flat_choice(kind, world_size, nbytes)
    # the chain goes by hosts too
    return Algorithm.HIERARCHICAL if by_hosts and picked is not Algorithm.CHAIN else picked


def _flat_allgather(world_size: int, nbytes: int) -> Algorithm:
    """The algorithm for blocks of `nbytes` on hosts that have a rank each, or all on one."""
    is_small = world_size * nbytes <= DOUBLING_ALLGATHER_BYTES
    return (
        Algorithm.RECURSIVE_DOUBLING if is_small and is_power_of_two(world_size) else Algorithm.RING
    )


def _flat_choice(kind: Kind, world_size: int, nbytes: int) -> Algorithm:
    """The algorithm that `CHOICES` has for `nbytes` on each of `world_size` ranks."""
    rows = CHOICES[kind]
    _, uses = next((row for row in rows if world_size <= row[0]), rows[-1])
    return next(uses[kib] for kib in reversed(uses) if nbytes >= kib * 1024)


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
    nbytes = count * itemsize
    chosen = choose_algorithm(kind, world_size, nbytes, algorithm, whole=whole, grouping=grouping)
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
    if kind is Kind.BARRIER:
        return barrier(world_size, rank)
    if kind is Kind.ALLTOALL:
        return pairwise_exchange(world_size, rank, count // world_size)
    if chosen is Algorithm.HIERARCHICAL:
        return _by_hosts(kind, rank, count, itemsize, root, grouping)
    if kind is Kind.ALLGATHER and chosen is Algorithm.RECURSIVE_DOUBLING:
        return doubling_allgather(world_size, rank, count)
    if kind is Kind.ALLGATHER:
        return ring_allgather(world_size, rank, count)
    if chosen is Algorithm.CHAIN and is_hierarchical(grouping):
        return chain_by_hosts(grouping, rank, count, root, itemsize)
    if chosen is Algorithm.CHAIN:
        return chain_broadcast(world_size, rank, count, root, itemsize)
    if kind is Kind.BROADCAST:
        return binomial_broadcast(world_size, rank, count, root)
    return _ALLREDUCES[chosen](world_size, rank, count)


def _by_hosts(
    kind: Kind, rank: int, count: int, itemsize: int, root: int, grouping: Grouping
) -> Schedule:
    if kind is Kind.ALLGATHER:
        return hierarchical_allgatherv(grouping, rank, (count,) * len(grouping))
    if kind is Kind.BROADCAST:
        return hierarchical_broadcast(grouping, rank, count, root)
    return hierarchical_allreduce(grouping, rank, count, itemsize)


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def allgatherv_schedule(
    world_size: int, rank: int, counts: tuple[int, ...], grouping: Grouping = ()
) -> Schedule:
    """The cached schedule of `rank` where rank r brings ``counts[r]`` elements."""
    if is_hierarchical(grouping):
        return hierarchical_allgatherv(grouping, rank, counts)
    return ring_allgatherv(world_size, rank, counts)
