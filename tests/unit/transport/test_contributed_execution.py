"""The executor over real sockets runs the collectives that give each rank a result of its own."""

import functools
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest
import ranks_in_threads as harness

from ftcomm.collectives.combination import combine_parts, combine_whole
from ftcomm.collectives.contributed_selection import (
    alltoallv_schedule,
    gatherv_schedule,
    reduce_scatter_schedule,
    reduce_schedule,
    scatterv_schedule,
)
from ftcomm.collectives.op_argument import reduction
from ftcomm.collectives.reductions import Array, Reducer, make_reducer
from ftcomm.collectives.schedules.schedule import REDUCE_SEGMENT_BYTES, Schedule
from ftcomm.execution.executor import SMALL_BYTES

# In elements of 8 bytes: empty, in one frame, and in three segments with a rest.
LENGTHS = (0, SMALL_BYTES // 8, 2 * REDUCE_SEGMENT_BYTES // 8 + 3, 5)


def depends_on_the_cut(accumulator: Array, operand: Array) -> Array:
    return accumulator * 3 + operand + operand[0]  # there is no element 0 of an empty block


def run_group(
    ranks: Sequence[harness.Rank],
    schedules: Sequence[Schedule],
    sources: Sequence[Array],
    reducer: Reducer | None = None,
) -> list[Array]:
    results = harness.together(
        *(
            functools.partial(rank.run, schedule, sendbuf, reducer)
            for rank, schedule, sendbuf in zip(ranks, schedules, sources, strict=True)
        )
    )
    assert all(isinstance(result, np.ndarray) for result in results), results
    return results


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("op", ["mean", "function"])
def test_reductions_have_the_bits_that_one_rank_combines_of_the_parts(n: int, op: str) -> None:
    if op == "function":
        reducer = make_reducer(reduction(depends_on_the_cut, name="cut"), np.dtype("f8"))
    else:
        reducer = make_reducer("mean", np.dtype("f8"))
    bounds = (0, *accumulate(LENGTHS[:n]))
    sources = list(np.random.default_rng(n).standard_normal((n, bounds[-1])))
    schedules = [reduce_scatter_schedule(n, rank, bounds) for rank in range(n)]
    reduces = [reduce_schedule(n, rank, bounds[-1], n - 1) for rank in range(n)]
    with harness.group(n) as ranks:
        results = run_group(ranks, schedules, sources, reducer)
        whole = run_group(ranks, reduces, sources, reducer)[n - 1]
    for rank, result in enumerate(results):
        block = slice(bounds[rank], bounds[rank + 1])
        parts = [source[block] for source in sources]
        made = combine_parts(parts, reducer, LENGTHS[rank], rank)
        assert made.tobytes() == result[block].tobytes(), rank
    made = combine_whole(sources, reducer, bounds[-1])
    assert made.tobytes() == whole.tobytes()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_parts_of_any_lengths_come_to_their_places(n: int) -> None:
    counts, root = LENGTHS[:n], n - 1
    table = [LENGTHS[rank:] + LENGTHS[:rank] for rank in range(n)]
    sent = [row[:n] for row in table]
    received = list(zip(*sent, strict=True))
    inputs = [[np.full(m, 10 * a + b) for b, m in enumerate(row)] for a, row in enumerate(sent)]
    exchange = [alltoallv_schedule(n, rank, sent[rank], received[rank]) for rank in range(n)]
    parts = [np.full(count, rank) for rank, count in enumerate(counts)]
    whole, nothing = np.concatenate(parts), np.empty(0, int)
    gather = [gatherv_schedule(n, rank, counts, root) for rank in range(n)]
    scatter = [scatterv_schedule(n, rank, counts, root) for rank in range(n)]
    with harness.group(n) as ranks:
        exchanged = run_group(ranks, exchange, [np.concatenate(row) for row in inputs])
        gathered = run_group(ranks, gather, parts)
        scattered = run_group(ranks, scatter, [nothing] * root + [whole])
    for rank in range(n):
        wanted = np.concatenate([row[rank] for row in inputs])
        assert exchanged[rank].tobytes() == wanted.tobytes()
        assert gathered[rank].tobytes() == (whole if rank == root else nothing).tobytes()
        assert scattered[rank].tobytes() == parts[rank].tobytes()
