"""Reference results of hierarchical allreduces, from their written definition; see `hierarchical`.

Shares no code with the schedules, like the rest of `reference`.
"""

from collections.abc import Sequence

import numpy as np

from ftcomm.collectives.reductions import Array, Reducer
from ftcomm.testing.in_memory import combine_segments

Groups = Sequence[Sequence[int]]  # the ranks of each host


def expected_shares(sources: Sequence[Array], reducer: Reducer, groups: Groups) -> Array:
    """Left folds inside each group, block by block; then left folds of these, part by part."""
    largest = max(len(group) for group in groups)
    shares = _evenly(range(sources[0].size), largest)
    operands = []
    for group in groups:
        of_blocks: list[list[int]] = [[] for _ in group]
        for number, share in enumerate(shares):
            of_blocks[number * len(group) // largest] += share
        members = [sources[rank] for rank in group]
        operands.append(_folds_of_blocks(members, of_blocks, reducer))
    parts = [part for share in shares for part in _evenly(share, len(groups))]
    result = np.empty_like(sources[0])
    for number, part in enumerate(parts):
        result[part] = _left_fold([op[part] for op in operands], number % len(groups), reducer)
    reducer.finish(result, len(sources))
    return result


def expected_tree(sources: Sequence[Array], reducer: Reducer, groups: Groups) -> Array:
    """Neighbours inside each group, and then of the groups as recursive doubling has them."""
    operands = [_tree([sources[rank] for rank in group], reducer) for group in groups]
    pairs = len(operands)
    while pairs & (pairs - 1):
        pairs &= pairs - 1  # the highest power of two
    pairs = len(operands) - pairs
    folded = [_pair(operands[2 * at : 2 * at + 2], reducer) for at in range(pairs)]
    result = _tree(folded + operands[2 * pairs :], reducer)
    reducer.finish(result, len(sources))
    return result


def _folds_of_blocks(
    members: Sequence[Array], blocks: Sequence[Sequence[int]], reducer: Reducer
) -> Array:
    operand = np.empty_like(members[0])
    for number, block in enumerate(blocks):
        elements = list(block)
        operand[elements] = _left_fold([m[elements] for m in members], number, reducer)
    return operand


def _evenly(elements: Sequence[int], parts: int) -> list[list[int]]:
    """Consecutive parts, the first ones longer by one element where they must be."""
    short, longer = divmod(len(elements), parts)
    lengths = [short + (part < longer) for part in range(parts)]
    starts = [sum(lengths[:part]) for part in range(parts)]
    return [list(elements[at : at + n]) for at, n in zip(starts, lengths, strict=True)]


def _left_fold(operands: Sequence[Array], first: int, reducer: Reducer) -> Array:
    """``((x_first + x_first+1) + x_first+2) + ...``, modulo their number."""
    total = operands[first].copy()
    for hop in range(1, len(operands)):
        total = _pair([total, operands[(first + hop) % len(operands)]], reducer)
    return total


def _tree(values: Sequence[Array], reducer: Reducer) -> Array:
    """Neighbours are combined until one is left; an odd one goes up as it is."""
    while len(values) > 1:
        values = [_pair(values[at : at + 2], reducer) for at in range(0, len(values), 2)]
    return values[0].copy()


def _pair(values: Sequence[Array], reducer: Reducer) -> Array:
    if len(values) == 1:
        return values[0]
    out = np.empty_like(values[0])
    combine_segments(reducer, values[0], values[1], out)
    return out
