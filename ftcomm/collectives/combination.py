"""Combination of the parts of a reduction on one rank, with the bits that execution gives (R20).

A rank that missed a contributed reduction has every rank's input of its block, and no peer that
reduces with it.  It takes the operands in the order of the schedule, in the segments in which the
executor reduced them.  The cuts matter: of two NaN numpy takes the first in a vector register, and
the second in what is left over at the end of an array.  Recursive halving reduces runs of several
blocks, so segments there have elements that this rank lacks.  Zeros stand for them, since no
element's bits depend on another element.  In a function they may, so functions take the ring.

Memory: the parts, which are only read; the result; and for a tree some segments.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import numpy as np

from ftcomm.collectives.reductions import Array, Reducer
from ftcomm.collectives.schedules.reduce_scatter import run_of
from ftcomm.collectives.schedules.schedule import Schedule, block_bounds, segment_elements
from ftcomm.protocol.signature import Algorithm, OpCode


def combine_parts(
    schedules: Sequence[Schedule],
    parts: Sequence[Array],
    reducer: Reducer,
    bounds: Sequence[int],
    rank: int,
) -> Array:
    """The elements of block `rank` as executing a reduce-scatter would have left them there.

    Args:
        schedules: of the call, of one rank or more; their algorithm, alike on all, decides.
        parts: each rank's input of ``[bounds[rank], bounds[rank + 1])``, in rank order: 1-D,
            contiguous, of one dtype; may be read-only, and is never written.
        reducer: of the call.
        bounds: n + 1 offsets of the blocks.
        rank: whose block it is.

    Returns:
        A new array, which shares no memory with `parts`.

    Raises:
        ValueError: a part has another length than the block.
    """
    block = _empty_for(parts, bounds[rank + 1] - bounds[rank])
    with _fp_errors_of(reducer):
        if schedules[0].algorithm is Algorithm.RING:
            _fold_along_ring(parts, reducer, rank, block)
        else:
            assert reducer.op is not OpCode.FUNCTION, "functions take the ring"
            _combine_as_tree(parts, reducer, bounds, rank, block)
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


def _combine_as_tree(
    parts: Sequence[Array], reducer: Reducer, bounds: Sequence[int], rank: int, out: Array
) -> None:
    """Write to `out` the tree that recursive halving makes of the ranks' parts of block `rank`."""
    if len(parts) == 1:
        out[:] = parts[0]
        return
    tree = _HalvingTree(reducer, bounds, rank, segment_elements(out.itemsize))
    for lo, hi in tree.pieces():
        piece = slice(lo - bounds[rank], hi - bounds[rank])
        tree.combine([part[piece] for part in parts], out[piece], 0, lo)


class _HalvingTree:
    """One block's operands and the runs of blocks in which its steps reduced it.

    Levels count the steps from the last, that of distance 1, to the first.
    """

    def __init__(self, reducer: Reducer, bounds: Sequence[int], rank: int, size: int) -> None:
        self._reducer = reducer
        self._own = (bounds[rank], bounds[rank + 1])
        self._size = size
        levels = (len(bounds) - 1).bit_length() - 1
        self._runs = [run_of(bounds, rank, 1 << level) for level in range(levels)]

    def pieces(self) -> Iterator[tuple[int, int]]:
        """The block, cut so that each piece is in one segment of each step."""
        lo, hi = self._own
        cuts = {lo, hi}
        for start, _ in self._runs:
            cuts.update(range(lo + (start - lo) % self._size, hi, self._size))
        return pairwise(sorted(cuts))

    def combine(self, operands: Sequence[Array], out: Array, level: int, at: int) -> Array:
        """The tree over the piece from element `at` on: in `out`, or a lone operand itself."""
        if len(operands) == 1:
            return operands[0]
        even = self.combine(operands[0::2], out, level + 1, at)
        odd = self.combine(operands[1::2], np.empty_like(out), level + 1, at)
        self._reduce(even, odd, out, level, at)
        return out

    def _reduce(self, lower: Array, upper: Array, out: Array, level: int, at: int) -> None:
        start, end = self._runs[level]
        before = (at - start) % self._size  # elements of the segment that are not in the piece
        length = min(self._size, end - (at - before))
        if length == out.size:
            self._reducer.combine(lower, upper, out)
            return
        piece = slice(before, before + out.size)
        left, right = (np.zeros(length, out.dtype) for _ in range(2))
        left[piece], right[piece] = lower, upper
        self._reducer.combine(left, right, left)
        out[:] = left[piece]


def _fp_errors_of(reducer: Reducer) -> AbstractContextManager[object]:
    """Floating-point errors are ignored as in execution; a user's function keeps its own."""
    return np.errstate(all="ignore") if reducer.floating else nullcontext()
