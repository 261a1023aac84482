"""Combination: on one rank, the bytes that a reduction of all ranks would have made (rule R20).

A rank that replays a call has every rank's input for its own block.  It combines them in the order
in which the schedules do, cut as they cut, so that not a bit differs.
"""

from collections.abc import Sequence

import numpy as np

from ftcomm.collectives.reductions import Array, Reducer
from ftcomm.collectives.schedules.schedule import REDUCE_SEGMENT_BYTES, Schedule, block_bounds
from ftcomm.protocol.signature import Algorithm


def combine_block(schedule: Schedule, parts: Sequence[Array], reducer: Reducer) -> Array:
    """The block of a reduce-scatter that `schedule` leaves on its rank: a new array.

    Args:
        schedule: of this rank.
        parts: what each rank's input has in that block, by rank; never written.
        reducer: the operation.
    """
    if schedule.algorithm is Algorithm.HALVING_DOUBLING:
        block = _tree(parts, reducer)
    else:
        block = _fold(parts, schedule.rank, reducer)
    reducer.finish(block, schedule.world_size)
    return block


def combine_all(parts: Sequence[Array], reducer: Reducer) -> Array:
    """The result of a reduce on its root (`reduce_to_root`): a new array.

    Args:
        parts: each rank's whole input, by rank; never written.
        reducer: the operation.
    """
    size, result = len(parts), np.empty_like(parts[0])
    bounds = block_bounds(len(result), size)
    for rank in range(size):
        block = slice(bounds[rank], bounds[rank + 1])
        result[block] = _fold([part[block] for part in parts], rank, reducer)
    reducer.finish(result, size)
    return result


def _fold(parts: Sequence[Array], rank: int, reducer: Reducer) -> Array:
    """The ring's order: from the operand of the rank behind `rank` to that of `rank` itself."""
    size = len(parts)
    total = parts[(rank + 1) % size].copy()
    for hop in range(2, size + 1):
        combine_segments(reducer, total, parts[(rank + hop) % size], total)
    return total


def _tree(parts: Sequence[Array], reducer: Reducer) -> Array:
    """The order of recursive halving: each with the one half of the group away, then the same."""
    values = list(parts)
    while len(values) > 1:
        half = len(values) // 2
        pairs = zip(values[:half], values[half:], strict=True)
        values = [_combined(reducer, lower, upper) for lower, upper in pairs]
    return values[0] if len(parts) > 1 else values[0].copy()


def _combined(reducer: Reducer, left: Array, right: Array) -> Array:
    out = np.empty_like(right)
    combine_segments(reducer, left, right, out)
    return out


def combine_segments(reducer: Reducer, accumulator: Array, operand: Array, out: Array) -> None:
    """Reduce one block, segment by segment; the only unit in which a reduction is ever called."""
    size = max(out.size, 1) if reducer.whole else REDUCE_SEGMENT_BYTES // out.itemsize
    with np.errstate(all="ignore"):
        for lo in range(0, out.size, size):
            segment = slice(lo, lo + size)
            reducer.combine(accumulator[segment], operand[segment], out[segment])
