"""Combination of the parts of a reduction on one rank, with the bits that execution gives (R20).

A rank that missed a contributed reduction has every rank's input of its block, and no peer that
reduces with it.  It takes the operands in the order of the schedule, in the segments in which the
executor reduced them.  The cuts matter: of two NaN numpy takes the first in a vector register, and
the second in what is left over at the end of an array.

Memory: the parts, which are only read, and the result.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from ftcomm.collectives.reductions import Array, Reducer
from ftcomm.collectives.schedules.schedule import block_bounds, segment_elements


def combine_parts(parts: Sequence[Array], reducer: Reducer, count: int, rank: int) -> Array:
    """The elements of block `rank` as executing a reduce-scatter would have left them there.

    Args:
        parts: each rank's input of the block, in rank order: 1-D, contiguous, of one dtype; may be
            read-only, and is never written.
        reducer: of the call.
        count: elements of the block.
        rank: whose block it is.

    Returns:
        A new array, which shares no memory with `parts`.

    Raises:
        ValueError: a part has another length than the block.
    """
    block = _empty_for(parts, count)
    with _fp_errors_of(reducer):
        _fold_along_ring(parts, reducer, rank, block)
        reducer.finish(block, len(parts))
    return block


def combine_whole(parts: Sequence[Array], reducer: Reducer, count: int) -> Array:
    """The result of `reduce_to_root` as executing it would have left it at the root.

    Raises:
        ValueError: a part has another length.
    """
    result, world_size = _empty_for(parts, count), len(parts)
    bounds = block_bounds(count, world_size)
    with _fp_errors_of(reducer):
        for rank in range(world_size):
            block = slice(bounds[rank], bounds[rank + 1])
            blocks = [part[block] for part in parts]
            _fold_along_ring(blocks, reducer, rank, result[block])
        reducer.finish(result, world_size)
    return result


def _empty_for(parts: Sequence[Array], count: int) -> Array:
    for rank, part in enumerate(parts):
        if len(part) != count:
            raise ValueError(f"rank {rank} gave {len(part)} elements of a block of {count}")
    return np.empty(count, parts[0].dtype)


def _fold_along_ring(parts: Sequence[Array], reducer: Reducer, rank: int, out: Array) -> None:
    """Write to `out` the left fold of the ranks' parts of block `rank`."""
    first, *others = (*parts[rank + 1 :], *parts[: rank + 1])
    if not others:
        out[:] = first
    size = max(out.size, 1) if reducer.whole else segment_elements(out.itemsize)
    for lo in range(0, out.size, size):
        segment = slice(lo, lo + size)
        total = first[segment]
        for operand in others:
            reducer.combine(total, operand[segment], out[segment])
            total = out[segment]


def _fp_errors_of(reducer: Reducer) -> AbstractContextManager[object]:
    """Floating-point errors are ignored as in execution; a user's function keeps its own."""
    return np.errstate(all="ignore") if reducer.floating else nullcontext()
