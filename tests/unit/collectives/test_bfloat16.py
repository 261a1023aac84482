"""bfloat16 on the wire: what is rounded, how, and how far a result may be off."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ftcomm.collectives.bfloat16 import (
    BLOCK,
    bfloat16_reducer,
    round_to_bfloat16,
    widen_bfloat16,
)
from ftcomm.collectives.op_argument import reduction
from ftcomm.collectives.schedules.direct import two_level_allreduce
from ftcomm.collectives.schedules.recursive_doubling import doubling_allreduce
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.collectives.schedules.schedule import REDUCE_SEGMENT_BYTES, Schedule
from ftcomm.protocol.host_groups import Grouping, members_of
from ftcomm.testing.in_memory import run_in_memory
from tests.helpers.reference import expected_doubling, expected_fold, expected_ring

U = Fraction(1, 2**8)
ROUNDING = 2.0**-134  # below the normal range


def halves(n: int) -> Grouping:
    """Two hosts; the first has one rank more where it must."""
    return tuple(rank // ((n + 1) // 2) for rank in range(n))


def by_host(n: int, rank: int, count: int) -> Schedule:
    """Two levels, where there are enough ranks for them."""
    if n < 3:
        return ring_allreduce(n, rank, count)
    return two_level_allreduce(halves(n), rank, count, 2)


ADDITIONS = {
    ring_allreduce: lambda n: n - 1,
    doubling_allreduce: lambda n: (n - 1).bit_length(),
    by_host: lambda n: (n - 1) // 2 + 1,
}
DEFINITIONS = {
    ring_allreduce: expected_ring,
    doubling_allreduce: expected_doubling,
    by_host: lambda sources, reducer: expected_fold(
        sources, reducer, members_of(halves(len(sources)))
    ),
}


def rounded(x: np.ndarray) -> np.ndarray:
    bits = np.empty(len(x), np.uint16)
    round_to_bfloat16(x, bits)
    return bits


def widened(bits: np.ndarray) -> np.ndarray:
    wide = np.empty(len(bits), np.float32)
    widen_bfloat16(bits, wide)
    return wide


def floats(bits: list[int]) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


def test_all_bfloat16_go_there_and_back_unchanged() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    assert rounded(widened(every))[~np.isnan(widened(every))].tolist() == [
        bits for bits in range(1 << 16) if bits & 0x7FFF <= 0x7F80
    ]


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        (0x3F80_0000, 0x3F80),
        (0x3F80_8000, 0x3F80),  # a tie: down to the even one
        (0x3F81_8000, 0x3F82),  # a tie: up to the even one
        (0x3F80_8001, 0x3F81),
        (0x3FFF_8000, 0x4000),  # into the next power of two
        (0x8000_8000, 0x8000),  # below the normal range
        (0x0000_8001, 0x0001),
        (0x7F7F_7FFF, 0x7F7F),
        (0x7F7F_8000, 0x7F80),  # too large: infinite
        (0xFF80_0000, 0xFF80),
        (0x7F80_0001, 0x7FC0),  # NaN whose payload would be rounded away
        (0x7FFF_FFFF, 0x7FFF),  # NaN that a carry would make zero
        (0xFFFF_8000, 0xFFFF),
    ],
)
def test_rounding_is_to_the_nearest_and_keeps_what_is_special(word: int, wanted: int) -> None:
    filling = [0x3F80_0000] * (BLOCK + 3)  # so that it is met in a second block too
    assert rounded(floats([word])).tolist() == [wanted]
    assert rounded(floats([*filling, word]))[-1] == wanted


def finite(bound: float) -> st.SearchStrategy[float]:
    return st.floats(-bound, bound, width=32)


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1))
@example(0x8000_0000)
def test_no_bfloat16_is_nearer_than_the_one_rounded_to(word: int) -> None:
    x = floats([word])
    bits = rounded(x)
    if np.isnan(x[0]):
        assert np.isnan(widened(bits)[0])
    elif abs(float(x[0])) < 2.0**127:
        mine = int(bits[0])
        nearby = [bits for bits in (mine - 1, mine, mine + 1) if 0 <= bits <= 0xFFFF]
        errors = {
            bits: abs(Fraction(float(value)) - Fraction(float(x[0])))
            for bits, value in zip(nearby, widened(np.array(nearby, np.uint16)), strict=True)
            if np.isfinite(value)
        }
        assert errors[mine] == min(errors.values())


@settings(max_examples=60)
@given(
    st.sampled_from(list(ADDITIONS)),
    st.sampled_from(["sum", "mean"]),
    st.integers(1, 9).flatmap(
        lambda n: st.lists(
            st.lists(finite(2.0**100), min_size=3, max_size=3), min_size=n, max_size=n
        )
    ),
)
def test_a_sum_is_as_near_to_the_exact_one_as_promised(build, op, rows) -> None:
    n = len(rows)
    sources = [rounded(np.array(row, np.float32)) for row in rows]
    schedules = [build(n, rank, 3) for rank in range(n)]
    results = run_in_memory(schedules, sources, bfloat16_reducer(op))
    assert len({result.tobytes() for result in results}) == 1
    roundings = 1 + ADDITIONS[build](n) + (op == "mean")
    divisor = n if op == "mean" else 1
    for column, got in zip(zip(*rows, strict=True), widened(results[0]), strict=True):
        exact = sum(map(Fraction, column)) / divisor
        bound = ((1 + U) ** roundings - 1) * sum(abs(Fraction(x)) for x in column) / divisor
        slack = n * roundings * Fraction(ROUNDING)
        assert abs(Fraction(float(got)) - exact) <= bound + slack


@pytest.mark.parametrize("op", ["min", "max"])
def test_the_smallest_and_the_largest_are_those_of_the_rounded_inputs(op: str) -> None:
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((4, 50)).astype(np.float32)
    results = run_in_memory(
        [ring_allreduce(4, rank, 50) for rank in range(4)],
        [rounded(row) for row in rows],
        bfloat16_reducer(op),
    )
    wanted = rounded(getattr(rows, op)(axis=0))
    assert all(result.tolist() == wanted.tolist() for result in results)


def test_products_of_two_are_rounded_once() -> None:
    rng = np.random.default_rng(8)
    left, right = (rounded(rng.standard_normal(5000).astype(np.float32)) for _ in range(2))
    out = np.empty(5000, np.uint16)
    bfloat16_reducer("prod").combine(left, right, out)
    exact = widened(left).astype(np.float64) * widened(right).astype(np.float64)
    assert out.tolist() == rounded(exact.astype(np.float32)).tolist()


@pytest.mark.parametrize("build", list(ADDITIONS))
@pytest.mark.parametrize("n", [2, 3, 5])
def test_blocks_of_many_cells_have_the_bits_of_the_definition_on_all_ranks(build, n: int) -> None:
    count = 2 * REDUCE_SEGMENT_BYTES // 2 + BLOCK + 5
    rng = np.random.default_rng(n)
    sources = [rounded(rng.standard_normal(count).astype(np.float32)) for _ in range(n)]
    for rank, sendbuf in enumerate(sources):
        sendbuf[rank::1001] = (0x7F80, 0xFF80, 0x7FC1, 0x8000, 0xFFC0)[rank]
    reducer = bfloat16_reducer("mean")
    results = run_in_memory([build(n, rank, count) for rank in range(n)], sources, reducer)
    wanted = DEFINITIONS[build](sources, reducer)
    assert all(result.tobytes() == wanted.tobytes() for result in results)


def test_combining_into_either_operand_is_combining() -> None:
    rng = np.random.default_rng(3)
    left, right = (rounded(rng.standard_normal(BLOCK + 9).astype(np.float32)) for _ in range(2))
    reducer, out = bfloat16_reducer("sum"), np.empty_like(left)
    reducer.combine(left, right, out)
    for target in (left.copy(), right.copy()):
        operands = (target, right) if target[0] == left[0] else (left, target)
        reducer.combine(*operands, target)
        assert target.tobytes() == out.tobytes()


@pytest.mark.parametrize("op", ["band", "land", "bxor"])
def test_what_is_no_operation_on_numbers_is_refused_by_name(op: str) -> None:
    with pytest.raises(TypeError, match=f"op '{op}' is not defined for bfloat16; use one of"):
        bfloat16_reducer(op)


def test_a_function_is_refused() -> None:
    with pytest.raises(TypeError, match="is reduced by name only"):
        bfloat16_reducer(reduction(np.add, name="add"))
