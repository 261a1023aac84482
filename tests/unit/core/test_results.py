"""Results: the left fold in rank order, bit by bit what numpy makes, wherever arrays are cut."""

import functools

import numpy as np
import pytest
import ranks_of_a_host as harness
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcomm.core.segment import CELL_BYTES, MAX_RANKS, SMALL_BYTES, block_bytes, chunk_bytes

pytestmark = harness.needs_a_core
NUMBERS = ("b", "B", "h", "H", "i", "I", "l", "L", "e", "f", "d", "F", "D")
OPS = {
    **dict.fromkeys((np.add, np.multiply), NUMBERS),
    **dict.fromkeys((np.minimum, np.maximum), ("?", *NUMBERS)),
    **dict.fromkeys((np.bitwise_and, np.bitwise_or, np.bitwise_xor), ("?", *NUMBERS[:8])),
    **dict.fromkeys((np.logical_and, np.logical_or), ("?",)),
}
CASES = [(ufunc, code) for ufunc, codes in OPS.items() for code in codes]


@functools.cache
def host(kind, ranks):
    """One group for all examples: its calls are numbered on."""
    return harness.Host(kind, ranks)


@given(
    case=st.sampled_from(CASES),
    ranks=st.integers(1, 5),
    count=st.one_of(st.integers(1, 20), st.integers(1, SMALL_BYTES)),
    seed=st.integers(0, 1 << 32),
)
@settings(max_examples=150)
@pytest.mark.parametrize("group", harness.KINDS)
def test_every_rank_gets_numpys_left_fold(group, case, ranks, count, seed):
    if group != "python":
        harness.require_compiled()
    ufunc, code = case
    dtype = np.dtype(code)
    count = min(count, SMALL_BYTES // dtype.itemsize)
    parts = harness.operands(seed, ranks, dtype, count)
    given_bytes = [part.tobytes() for part in parts]
    results = host(group, ranks).fold(ufunc, parts)
    wanted = harness.left_fold(ufunc, parts).tobytes()
    assert [np.asarray(result).tobytes() for result in results] == [wanted] * ranks
    assert [part.tobytes() for part in parts] == given_bytes


@given(
    case=st.sampled_from(CASES),
    ranks=st.integers(2, 4),
    chunks=st.integers(0, 5),
    more=st.integers(1, 5000),
    seed=st.integers(0, 1 << 32),
)
@settings(max_examples=15)
@pytest.mark.parametrize("group", harness.KINDS)
def test_large_arrays_are_folded_alike(group, case, ranks, chunks, more, seed):
    """Up to six chunks, so that windows and places are used again, in this call and the next."""
    if group != "python":
        harness.require_compiled()
    ufunc, code = case
    dtype = np.dtype(code)
    count = (chunks * ranks * block_bytes(ranks) + SMALL_BYTES) // dtype.itemsize + more
    parts = harness.operands(seed, ranks, dtype, count)
    given_bytes = [part.tobytes() for part in parts]
    results = host(group, ranks).fold(ufunc, parts)
    wanted = harness.left_fold(ufunc, parts).tobytes()
    assert [np.asarray(result).tobytes() == wanted for result in results] == [True] * ranks
    assert [part.tobytes() for part in parts] == given_bytes


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("at", [chunk_bytes(2), 2 * chunk_bytes(3), CELL_BYTES, 3 * CELL_BYTES])
def test_cuts_do_not_show_where_two_nan_meet(kind, ranks, at):
    """The last elements never stand alone: numpy would keep the other NaN."""
    group = harness.Host(kind, ranks)
    for more in (-64, -60, -4, 0, 4, 32, 60, 64, 68):
        parts = [
            np.full((at + more) // 4, 0x7FC00001 + rank, "u4").view("f4") for rank in range(ranks)
        ]
        wanted = harness.left_fold(np.add, parts).tobytes()
        assert [got.tobytes() == wanted for got in group.fold(np.add, parts)] == [True] * ranks


def test_all_lengths_of_one_dtype(kind):
    group = harness.Host(kind, 3)
    for count in range(1, 100):
        parts = harness.operands(count, 3, np.dtype("f4"), count)
        wanted = harness.left_fold(np.add, parts).tobytes()
        assert [result.tobytes() for result in group.fold(np.add, parts)] == [wanted] * 3


def test_many_ranks(kind):
    parts = [np.full(3, rank, "i8") for rank in range(MAX_RANKS)]
    results = harness.Host(kind, MAX_RANKS).fold(np.add, parts)
    assert [list(result) for result in results] == [[2016] * 3] * MAX_RANKS


def test_out_may_be_the_input_itself(kind):
    parts = [np.array([1.0, 2.0]), np.array([10.0, 20.0])]

    def act(rank, core):
        form = core.form(harness.SUFFIX, np.add, np.dtype("f8"), 16)
        return form.run(parts[rank], parts[rank], *harness.POSITION)

    assert harness.Host(kind, 2).together(act) == [0, 0]
    assert [list(part) for part in parts] == [[11.0, 22.0]] * 2


@pytest.mark.parametrize("nbytes", [800, 80_000, 2_100_000])  # the last one past the caches
@pytest.mark.parametrize("begin", [1, 40])
def test_out_may_be_unaligned(kind, nbytes, begin):
    parts = harness.operands(1, 2, np.dtype("f8"), nbytes // 8)

    def act(rank, core):
        form = core.form(harness.SUFFIX, np.add, np.dtype("f8"), nbytes)
        memories = [bytearray(begin * by + nbytes + 8) for by in (1, 2)]
        outs = [memoryview(m)[begin * by :][:nbytes] for by, m in enumerate(memories, 1)]
        assert form.run(parts[rank], outs[0], *harness.POSITION, outs[1]) == 0
        assert [m[: begin * by] + m[-8:] for by, m in enumerate(memories, 1)] == [
            bytes(begin * by + 8) for by in (1, 2)
        ], "bytes beside a result were written"
        return [bytes(out) for out in outs]

    wanted = harness.left_fold(np.add, parts).tobytes()
    results = harness.Host(kind, 2).together(act)
    assert [got == [wanted] * 2 for got in results] == [True] * 2


@pytest.mark.parametrize("nbytes", [1, 7, 8192])
def test_without_a_ufunc_payloads_are_gathered(kind, nbytes):
    parts = [bytes([rank]) * nbytes for rank in range(3)]

    def act(rank, core):
        out, also = bytearray(3 * nbytes), bytearray(3 * nbytes)
        form = core.form(harness.SUFFIX, None, None, nbytes)
        assert form.run(parts[rank], out, *harness.POSITION, also) == 0
        assert out == also
        return bytes(out)

    assert harness.Host(kind, 3).together(act) == [b"".join(parts)] * 3


@pytest.mark.parametrize("empty", [None, b""])
def test_without_bytes_a_call_is_a_barrier(kind, empty):
    def act(_, core):
        form = core.form(harness.SUFFIX, None, None, 0)
        return form.run(empty, None, *harness.POSITION)

    assert harness.Host(kind, 3).together(act) == [0, 0, 0]


def test_an_empty_array_is_folded(kind):
    results = harness.Host(kind, 2).fold(np.add, [np.empty((0, 3), "f4")] * 2)
    assert [result.shape for result in results] == [(0, 3)] * 2


def test_many_calls_in_a_row(kind):
    def act(rank, core):
        form = core.form(harness.SUFFIX, np.add, np.dtype("i8"), 8)
        x, out = np.zeros(1, "i8"), np.zeros(1, "i8")
        for seqno in range(2000):
            x[0] = seqno * (rank + 1)
            assert form.run(x, out, 1, 0, 0, seqno, 0) == 0
            assert out[0] == seqno * 6
        return "done"

    assert harness.Host(kind, 3).together(act) == ["done"] * 3
