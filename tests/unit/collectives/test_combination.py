"""Parts that one rank combines have the bits that execution on all ranks gives."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcomm.collectives.combination import combine_parts, combine_whole
from ftcomm.collectives.op_argument import reduction
from ftcomm.collectives.reductions import Array, Reducer, make_reducer
from ftcomm.collectives.schedules.reduce_scatter import ring_reduce_scatter
from ftcomm.collectives.schedules.rooted import reduce_to_root
from ftcomm.collectives.schedules.schedule import REDUCE_SEGMENT_BYTES, Schedule
from ftcomm.testing.in_memory import run_in_memory

OPERATIONS = [
    ("sum", "float32"),
    ("sum", "float16"),
    ("sum", "complex64"),
    ("sum", "int16"),
    ("prod", "float64"),
    ("prod", "complex128"),
    ("mean", "float32"),
    ("mean", "complex64"),
    ("min", "float32"),
    ("max", "float16"),
    ("bxor", "uint8"),
    ("land", "int32"),
    ("lor", "bool"),
    ("lor", "int64"),
]


def depends_on_the_cut(accumulator: Array, operand: Array) -> Array:
    """Neither associative nor commutative, and of the first element of what it is given."""
    return accumulator * 3 + operand + operand[0]


def schedules_of(lengths: Sequence[int]) -> tuple[list[Schedule], list[int]]:
    n, bounds = len(lengths), (0, *itertools.accumulate(lengths))
    return [ring_reduce_scatter(n, rank, bounds) for rank in range(n)], list(bounds)


def check_parts(
    schedules: list[Schedule], bounds: list[int], sources: list[Array], reducer: Reducer
) -> None:
    """Every rank's block, from parts that nobody may write, is what execution leaves there."""
    with np.errstate(all="ignore"):
        executed = run_in_memory(schedules, sources, reducer)
    for rank, result in enumerate(executed):
        block = slice(bounds[rank], bounds[rank + 1])
        parts = [source[block].copy() for source in sources]
        for part in parts:
            part.flags.writeable = False
        made = combine_parts(parts, reducer, block.stop - block.start, rank)
        assert made.dtype == result.dtype
        assert made.tobytes() == result[block].tobytes()
        assert made.flags.writeable
        assert not any(np.shares_memory(made, part) for part in parts)


def any_bits(n: int, count: int, dtype: str, seed: int) -> list[Array]:
    """Infinities and NaN of all payloads among them."""
    kind, rng = np.dtype(dtype), np.random.default_rng(seed)
    raw = rng.integers(0, 2 if dtype == "bool" else 256, (n, count * kind.itemsize), np.uint8)
    return list(raw.view(kind)) if count else [np.empty(0, kind)] * n


@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=9),
    operation=st.sampled_from(OPERATIONS),
    seed=st.integers(0, 1 << 32),
)
def test_any_bits_give_the_bits_of_execution(
    lengths: list[int], operation: tuple[str, str], seed: int
) -> None:
    op, dtype = operation
    schedules, bounds = schedules_of(lengths)
    sources = any_bits(len(lengths), bounds[-1], dtype, seed)
    check_parts(schedules, bounds, sources, make_reducer(op, np.dtype(dtype)))


def test_sums_that_cancel_have_the_order_of_execution() -> None:
    """Beside 1e8 a one is lost, and after -1e8 it is not: each order has other bits."""
    for n in range(1, 10):
        schedules, bounds = schedules_of([33, 0, 20, 51, 1, 4, 0, 70, 20][:n])
        rng = np.random.default_rng(n)
        sources = [rng.choice([1e8, -1e8, 1, 0.3], bounds[-1]).astype("f4") for _ in range(n)]
        check_parts(schedules, bounds, sources, make_reducer("sum", np.dtype("f4")))
        check_parts(schedules, bounds, sources, make_reducer("mean", np.dtype("f4")))


def all_nan(n: int, count: int, dtype: str) -> list[Array]:
    """Every element NaN, with the rank in its payload."""
    width = np.dtype(dtype).itemsize // 4
    patterns = [np.uint32(0x7FC00001 + rank + (rank % 2 << 31)) for rank in range(n)]
    return [np.full(count * width, pattern).view(dtype) for pattern in patterns]


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_of_many_nans_the_one_of_execution_is_kept(dtype: str, op: str) -> None:
    """numpy keeps another at the odd end of an array: what is cut otherwise has other bits."""
    reducer = make_reducer(op, np.dtype(dtype))
    segment = REDUCE_SEGMENT_BYTES // np.dtype(dtype).itemsize
    around = [segment + 3, 5, 2 * segment - 9, 1]  # segments begin inside blocks
    for lengths in ([1] * 4, [3] * 8, [5, 0, 40, 1, 17, 33, 2, 9], around):
        schedules, bounds = schedules_of(lengths)
        check_parts(schedules, bounds, all_nan(len(lengths), bounds[-1], dtype), reducer)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_blocks_of_many_segments_are_cut_as_in_execution(n: int) -> None:
    segment = REDUCE_SEGMENT_BYTES // 8
    lengths = [2 * segment + 5, 0, segment, 3][:n]
    function = make_reducer(reduction(depends_on_the_cut, name="cut"), np.dtype("i8"))
    schedules, bounds = schedules_of(lengths)
    sources = list(np.random.default_rng(n).integers(-99, 99, (n, bounds[-1])))
    check_parts(schedules, bounds, sources, function)
    check_parts(schedules, bounds, sources, make_reducer("sum", np.dtype("i8")))


def test_a_users_function_sees_its_operands_in_the_order_of_the_ring() -> None:
    reducer = make_reducer(reduction(depends_on_the_cut, name="cut"), np.dtype("i8"))
    for n in range(1, 10):
        schedules, bounds = schedules_of([3, 0, 2, 5, 1, 4, 0, 7, 2][:n])
        sources = list(np.random.default_rng(n).integers(-9, 9, (n, bounds[-1])))
        check_parts(schedules, bounds, sources, reducer)


def test_a_function_that_needs_whole_arrays_gets_the_whole_block() -> None:
    function = reduction(depends_on_the_cut, name="cut", elementwise=False)
    count = REDUCE_SEGMENT_BYTES // 8 + 1
    schedules, bounds = schedules_of([count, 1])
    sources = list(np.random.default_rng(5).integers(-9, 9, (2, count + 1)))
    check_parts(schedules, bounds, sources, make_reducer(function, np.dtype("i8")))


@settings(max_examples=60)
@given(
    n=st.integers(1, 9),
    count=st.integers(0, 60),
    operation=st.sampled_from(OPERATIONS),
    seed=st.integers(0, 1 << 32),
)
def test_a_root_combines_all_blocks_of_a_reduce(
    n: int, count: int, operation: tuple[str, str], seed: int
) -> None:
    op, dtype = operation
    reducer, root = make_reducer(op, np.dtype(dtype)), seed % n
    schedules = [reduce_to_root(n, rank, count, root) for rank in range(n)]
    sources = any_bits(n, count, dtype, seed)
    with np.errstate(all="ignore"):
        executed = run_in_memory(schedules, sources, reducer)[root]
    made = combine_whole(sources, reducer, count)
    assert made.tobytes() == executed.tobytes()
    assert not any(np.shares_memory(made, source) for source in sources)


def test_a_part_of_another_length_is_refused() -> None:
    reducer = make_reducer("sum", np.dtype("f4"))
    parts = [np.zeros(3, "f4"), np.zeros(2, "f4")]
    with pytest.raises(ValueError, match="rank 1 gave 2 elements of a block of 3"):
        combine_parts(parts, reducer, 3, 1)
    with pytest.raises(ValueError, match="rank 1 gave 2 elements of a block of 3"):
        combine_whole(parts, reducer, 3)


def test_a_lost_sum_raises_no_warning_where_floats_overflow() -> None:
    """Warnings are errors in tests, as a user's `np.seterr` may make them."""
    parts = [np.full(1, 3e38, "f4")] * 2
    with np.errstate(all="raise"):
        made = combine_parts(parts, make_reducer("sum", np.dtype("f4")), 1, 0)
    assert made.tolist() == [np.inf]
