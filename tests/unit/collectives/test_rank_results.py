"""Schedules that give each rank a result of its own: the bits of their definition, no deadlock."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcomm.collectives.combination import combine_all, combine_block
from ftcomm.collectives.contributed_selection import HALVING_UP_TO_BYTES, reduce_scatter_schedule
from ftcomm.collectives.op_argument import reduction
from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.schedules.direct import direct_gather, direct_scatter, reduce_to_root
from ftcomm.collectives.schedules.pairwise_exchange import pairwise_exchange_v
from ftcomm.collectives.schedules.reduce_scatter import halving_reduce_scatter, ring_reduce_scatter
from ftcomm.collectives.schedules.schedule import REDUCE_SEGMENT_BYTES, Schedule
from ftcomm.protocol.signature import Algorithm
from ftcomm.testing.reference import run_in_memory

Array = np.ndarray[Any, Any]
SIZES = range(1, 10)
rendezvous = pytest.mark.parametrize("rendezvous", [False, True])


def bounds_of(counts: Sequence[int]) -> tuple[int, ...]:
    return (0, *itertools.accumulate(counts))


def uneven(n: int) -> list[int]:
    return [(3 * rank + n) % 5 for rank in range(n)]


def awkward(n: int, count: int) -> list[Array]:
    """Sums of these depend on their order."""
    rng = np.random.default_rng(n * 1009 + count)
    return [(rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4)) for _ in range(n)]


def folded(operands: Sequence[Array]) -> Array:
    total = operands[0]
    for operand in operands[1:]:
        total = total + operand
    return total


# --- reduce-scatter -----------------------------------------------------------------------------


@rendezvous
def test_the_ring_folds_each_block_from_the_rank_behind_its_own(rendezvous: bool) -> None:
    reducer = make_reducer("sum", np.dtype(np.float64))
    for n in SIZES:
        bounds = bounds_of(uneven(n))
        sources = awkward(n, bounds[-1])
        schedules = [ring_reduce_scatter(n, rank, bounds) for rank in range(n)]
        results = run_in_memory(schedules, sources, reducer, rendezvous=rendezvous)
        for rank, result in enumerate(results):
            own = slice(bounds[rank], bounds[rank + 1])
            order = [sources[(rank + hop) % n][own] for hop in range(1, n + 1)]
            assert result[own].tobytes() == folded(order).tobytes()


@rendezvous
def test_halving_combines_the_one_half_away_first(rendezvous: bool) -> None:
    reducer = make_reducer("sum", np.dtype(np.float64))
    bounds = bounds_of(uneven(4))
    a, b, c, d = sources = awkward(4, bounds[-1])
    schedules = [halving_reduce_scatter(4, rank, bounds) for rank in range(4)]
    results = run_in_memory(schedules, sources, reducer, rendezvous=rendezvous)
    wanted = (a + c) + (b + d)
    for rank, result in enumerate(results):
        own = slice(bounds[rank], bounds[rank + 1])
        assert result[own].tobytes() == wanted[own].tobytes()


def test_halving_is_for_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="power of two of ranks, not 6"):
        halving_reduce_scatter(6, 0, bounds_of(uneven(6)))


def test_small_blocks_of_a_power_of_two_go_by_halving_and_all_others_by_the_ring() -> None:
    def chosen(n: int, nbytes: int, wish: Algorithm = Algorithm.AUTO) -> Algorithm:
        bounds = (0,) * n + (nbytes // 8,)
        return reduce_scatter_schedule(n, 0, bounds, 8, wish).algorithm

    assert chosen(4, HALVING_UP_TO_BYTES) is Algorithm.HALVING_DOUBLING
    assert chosen(4, HALVING_UP_TO_BYTES + 8) is Algorithm.RING
    assert chosen(4, HALVING_UP_TO_BYTES + 8, Algorithm.HALVING_DOUBLING).name == "HALVING_DOUBLING"
    assert chosen(4, 8, Algorithm.RING) is Algorithm.RING
    assert chosen(6, 8) is Algorithm.RING
    assert chosen(6, 8, Algorithm.HALVING_DOUBLING) is Algorithm.RING


# --- what a replaying rank computes -------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 9),
    halving=st.booleans(),
    op=st.sampled_from(["sum", "mean", "max", "prod"]),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
    seed=st.integers(0, 1 << 20),
)
def test_the_parts_of_all_ranks_give_the_bits_that_executing_gives(
    n: int, halving: bool, op: str, dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    counts = [int(count) for count in rng.integers(0, 40, n)]
    bounds = bounds_of(counts)
    sources = [(rng.standard_normal(bounds[-1]) * 50).astype(dtype) for _ in range(n)]
    reducer = make_reducer(op, np.dtype(dtype))
    wish = Algorithm.HALVING_DOUBLING if halving else Algorithm.RING
    schedules = [reduce_scatter_schedule(n, rank, bounds, 8, wish) for rank in range(n)]
    results = run_in_memory(schedules, sources, reducer)
    for rank, result in enumerate(results):
        own = slice(bounds[rank], bounds[rank + 1])
        before = [source[own].copy() for source in sources]
        parts = [source[own] for source in sources]
        assert combine_block(schedules[rank], parts, reducer).tobytes() == result[own].tobytes()
        assert all(map(np.array_equal, parts, before)), "a part was written to"


def test_a_function_is_given_the_same_pieces_in_a_replay() -> None:
    sizes: list[int] = []

    def noted(x: Array, y: Array) -> Array:
        sizes.append(x.size)
        return np.logaddexp(x, y)

    reducer = make_reducer(reduction(noted, name="noted"), np.dtype(np.float64))
    count = REDUCE_SEGMENT_BYTES // 8 + 1000
    bounds = (0, count, count + 10, count + 20)
    sources = awkward(3, bounds[-1])
    schedules = [ring_reduce_scatter(3, rank, bounds) for rank in range(3)]
    executed = run_in_memory(schedules, sources, reducer)[0][:count]
    sizes.clear()
    again = combine_block(schedules[0], [source[:count] for source in sources], reducer)
    assert again.tobytes() == executed.tobytes()
    assert sizes == [REDUCE_SEGMENT_BYTES // 8, 1000] * 2


@rendezvous
def test_a_reduce_to_the_root_and_its_replay_have_the_same_bits(rendezvous: bool) -> None:
    reducer = make_reducer("sum", np.dtype(np.float32))
    for n, count in itertools.product(SIZES, (0, 1, 7, 100)):
        sources = [source.astype(np.float32) for source in awkward(n, count)]
        for root in {0, n // 2, n - 1}:
            schedules = [reduce_to_root(n, rank, count, root) for rank in range(n)]
            result = run_in_memory(schedules, sources, reducer, rendezvous=rendezvous)[root]
            assert combine_all(sources, reducer).tobytes() == result.tobytes()
            np.testing.assert_allclose(result, folded(sources), rtol=1e-3, atol=1e-2)


# --- parts of any lengths -----------------------------------------------------------------------


@rendezvous
def test_a_direct_gather_brings_all_to_the_root_in_rank_order(rendezvous: bool) -> None:
    for n in SIZES:
        counts = uneven(n)
        sources = [np.full(count, rank) for rank, count in enumerate(counts)]
        for root in range(n):
            schedules = [direct_gather(n, rank, counts, root) for rank in range(n)]
            results = run_in_memory(schedules, sources, rendezvous=rendezvous)
            assert np.array_equal(results[root], np.concatenate(sources))
            assert all(len(r) == 0 for rank, r in enumerate(results) if rank != root)


@rendezvous
def test_a_direct_scatter_brings_each_rank_its_part(rendezvous: bool) -> None:
    for n in SIZES:
        counts = uneven(n)
        parts = [np.full(count, rank) for rank, count in enumerate(counts)]
        for root in range(n):
            sources = [np.concatenate(parts) if rank == root else parts[0][:0] for rank in range(n)]
            schedules = [direct_scatter(n, rank, counts, root) for rank in range(n)]
            results = run_in_memory(schedules, sources, rendezvous=rendezvous)
            assert all(map(np.array_equal, results, parts))


@rendezvous
def test_a_pairwise_exchange_of_any_counts_is_a_transpose(rendezvous: bool) -> None:
    for n in SIZES:
        counts = np.random.default_rng(n).integers(0, 4, (n, n))
        blocks = [[np.full(counts[s, r], 100 * s + r) for r in range(n)] for s in range(n)]
        schedules = [
            pairwise_exchange_v(n, rank, tuple(counts[rank]), tuple(counts[:, rank]))
            for rank in range(n)
        ]
        sources = [np.concatenate(blocks[rank]) for rank in range(n)]
        results = run_in_memory(schedules, sources, rendezvous=rendezvous)
        for rank, result in enumerate(results):
            assert np.array_equal(result, np.concatenate([blocks[s][rank] for s in range(n)]))


# --- costs, as docs/algorithms.md has them ------------------------------------------------------


def sent_by(schedule: Schedule) -> int:
    return sum(step.send_hi - step.send_lo for step in schedule.steps)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_both_reduce_scatters_send_all_but_the_own_block(n: int) -> None:
    bounds = bounds_of([100] * n)
    for rank in range(n):
        ring, halving = (
            ring_reduce_scatter(n, rank, bounds),
            halving_reduce_scatter(n, rank, bounds),
        )
        assert (len(ring.steps), sent_by(ring)) == (n - 1, 100 * (n - 1))
        assert (len(halving.steps), sent_by(halving)) == (n.bit_length() - 1, 100 * (n - 1))


def test_a_reduce_to_the_root_sends_each_rank_its_input_once() -> None:
    schedules = [reduce_to_root(5, rank, 500, 2) for rank in range(5)]
    assert [len(schedule.steps) for schedule in schedules] == [5, 5, 8, 5, 5]
    assert [sent_by(schedule) for schedule in schedules] == [500, 500, 400, 500, 500]


def test_what_goes_straight_goes_once() -> None:
    counts = [10, 0, 30, 5]
    gathers = [direct_gather(4, rank, counts, 2) for rank in range(4)]
    assert [len(schedule.steps) for schedule in gathers] == [1, 1, 3, 1]
    assert [sent_by(schedule) for schedule in gathers] == [10, 0, 0, 5]
    scatters = [direct_scatter(4, rank, counts, 2) for rank in range(4)]
    assert [sent_by(schedule) for schedule in scatters] == [0, 0, 15, 0]
