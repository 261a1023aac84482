"""Buckets: a cut that follows from sizes and dtypes, and results as of single arrays."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import ftcomm
from ftcomm.errors import LogLimitError, ThreadError
from ftcomm.nonblocking.buckets import Bucket, cut

SIZES = some.lists(some.tuples(some.integers(0, 120), some.sampled_from(["<f4", "<f8", "|b1"])))


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


@given(sizes=SIZES, limit=some.integers(1, 200))
def test_every_array_is_in_one_bucket_of_its_dtype_and_none_is_too_full_or_too_empty(
    sizes: list[tuple[int, str]], limit: int
) -> None:
    buckets = cut(sizes, limit)
    assert sorted(number for bucket in buckets for number in bucket) == list(range(len(sizes)))
    last: dict[str, tuple[int, ...]] = {}
    for bucket in buckets:
        (dtype,) = {sizes[number][1] for number in bucket}
        nbytes = sum(sizes[number][0] for number in bucket)
        assert list(bucket) == sorted(bucket)
        assert nbytes <= limit or len(bucket) == 1
        before = last.get(dtype)
        if before:  # in order, and closed only because this one's first did not fit
            filled = sum(sizes[number][0] for number in before)
            assert before[-1] < bucket[0]
            assert filled + sizes[bucket[0]][0] > limit
        last[dtype] = bucket


def test_buckets_are_under_way_in_the_order_in_which_they_are_full() -> None:
    sizes = [(40, "<f4"), (60, "<f8"), (60, "<f4"), (500, "<f8"), (10, "<f4"), (1, "<f8")]
    assert cut(sizes, 100) == [(1,), (0, 2), (3,), (4,), (5,)]


def arrays() -> list[Any]:
    return [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(4.0)[::-1],
        np.array(3),
        np.zeros((0, 5), np.float32),
        np.ones((2, 2), dtype=">f4"),
        np.array(7, np.float32),
    ]


@pytest.mark.parametrize("bucket_bytes", [1, 30, 1 << 20])
def test_results_are_as_of_single_arrays(comm: ftcomm.Communicator, bucket_bytes: int) -> None:
    results = comm.bucketed(arrays(), "max", bucket_bytes=bucket_bytes)
    expected = [comm.allreduce(x, "max") for x in arrays()]
    assert [(r.dtype.str, r.shape, r.tobytes()) for r in results] == [
        (x.dtype.str, x.shape, x.tobytes()) for x in expected
    ]
    for result in results:
        result[...] = 1  # they are the caller's own


def test_half_the_bytes_on_the_wire_are_the_rounded_inputs(comm: ftcomm.Communicator) -> None:
    xs = [np.float32([1, 1 / 3]), np.full((2, 2), np.float32(2 / 7))]
    results = comm.bucketed(xs, wire="bf16")
    expected = [comm.allreduce(x, wire="bf16") for x in xs]
    assert [r.tobytes() for r in results] == [x.tobytes() for x in expected]


def test_each_bucket_is_a_position(comm: ftcomm.Communicator) -> None:
    comm.bucketed(arrays())
    assert (comm.seqno, comm.bucketed([]), comm.seqno) == (3, [], 3)
    assert comm.stats().kinds["allreduce"].count == 3


def test_out_may_be_the_arrays_and_is_returned(comm: ftcomm.Communicator) -> None:
    xs = [np.arange(5.0), np.arange(12).reshape(3, 4)[:, ::2]]
    before = [x.copy() for x in xs]
    results = comm.bucketed(xs, out=xs)
    assert [result is x for result, x in zip(results, xs, strict=True)] == [True, True]
    assert [x.tolist() for x in xs] == [x.tolist() for x in before]


def test_arrays_and_out_may_be_generators(comm: ftcomm.Communicator) -> None:
    places = [np.zeros(2), np.zeros(2)]
    results = comm.bucketed((np.full(2, x) for x in (1.0, 2.0)), out=(x for x in places))
    assert [result is place for result, place in zip(results, places, strict=True)] == [True, True]
    assert [x.tolist() for x in places] == [[1, 1], [2, 2]]


def test_a_bucket_that_fails_behind_a_complete_one_ends_the_communicator(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry would run the first bucket at the position of the second."""
    engine = comm._session.engine
    run = engine.run

    def run_once(request: Any) -> Any:
        if comm.seqno:
            raise MemoryError("in the second")
        return run(request)

    monkeypatch.setattr(engine, "run", run_once)
    with pytest.raises(MemoryError, match="in the second"):
        comm.bucketed([np.ones(2), np.ones(2)], bucket_bytes=1)
    assert (comm.seqno, comm.is_over) == (1, True)


def test_one_bucket_is_combined_by_the_thread_that_calls(comm: ftcomm.Communicator) -> None:
    threads = set(threading.enumerate())
    results = comm.bucketed([np.ones(2), np.full(3, 2.0)])
    assert [x.tolist() for x in results] == [[1, 1], [2, 2, 2]]
    assert set(threading.enumerate()) == threads


def test_a_result_that_cannot_be_handed_out_ends_the_communicator(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry would combine the same arrays at another position."""

    def unpack(*_: Any) -> Any:
        raise MemoryError("no room for the parts")

    monkeypatch.setattr(Bucket, "unpack", unpack)
    with pytest.raises(MemoryError, match="no room for the parts"):
        comm.bucketed([np.ones(2), np.ones(2)])
    assert (comm.seqno, comm.is_over) == (1, True)


def test_a_first_bucket_that_fails_leaves_the_communicator_as_it_was(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(comm._session.engine, "run", run)
        with pytest.raises(MemoryError):
            comm.bucketed([np.ones(2), np.ones(2)], bucket_bytes=1)
    results = comm.bucketed([np.ones(2), np.ones(2)], bucket_bytes=1)
    assert ([x.tolist() for x in results], comm.seqno) == ([[1, 1], [1, 1]], 2)


def test_a_log_that_is_full_behind_the_first_bucket_can_be_emptied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is so at the same bucket on all ranks."""
    monkeypatch.setenv("FTCOMM_LOG_LIMIT", "1000")
    with ftcomm.init("none") as comm:
        comm.load_checkpoint()
        with pytest.raises(LogLimitError):
            comm.bucketed([np.ones(50), np.ones(100)], bucket_bytes=100)
        comm.checkpoint(None)
        assert comm.allreduce(np.ones(50)).sum() == 50


def test_an_op_of_whole_arrays_is_refused(comm: ftcomm.Communicator) -> None:
    op = ftcomm.reduction(np.matmul, name="matmul", elementwise=False, commutative=False)
    with pytest.raises(ValueError, match=r"needs whole arrays; .* use allreduce\(\)$"):
        comm.bucketed([np.eye(2)], op)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (([np.ones(2), "text"],), {}, TypeError),
        (([np.ones(2), lambda: 1],), {}, TypeError),
        (([np.ones(2, int), np.ones(2)], "band"), {}, TypeError),
        (([np.ones(2)],), {"bucket_bytes": 0}, ValueError),
        (([np.ones(2)],), {"bucket_bytes": 1.5}, TypeError),
        (([np.ones(2)],), {"out": []}, ValueError),
        (([np.ones(2)],), {"out": [np.ones(3)]}, ValueError),
        (([np.ones(2)], ftcomm.reduction(np.add, name="add", elementwise=False)), {}, ValueError),
    ],
    ids=["text", "function", "op", "no bytes", "half a byte", "too few", "shape", "whole"],
)
def test_local_mistakes_take_no_position(
    comm: ftcomm.Communicator,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    error: type[Exception],
) -> None:
    with pytest.raises(error):
        comm.bucketed(*arguments, **options)
    assert comm.seqno == 0


def test_it_is_refused_inside_a_callback(comm: ftcomm.Communicator) -> None:
    def x() -> Any:
        return comm.bucketed([1])

    with pytest.raises(ThreadError):
        comm.iallreduce(x).wait()
