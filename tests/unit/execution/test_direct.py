"""Direct exchange in a segment: what each rank of a host gets, and whom a mismatch names."""

import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.collectives.reductions import Array, make_reducer
from ftcomm.collectives.selection import DIRECT_BYTES, schedule_for
from ftcomm.core import open_core, which
from ftcomm.core.segment import segment_bytes
from ftcomm.execution.direct import DirectCall
from ftcomm.execution.fp_errors import IgnoredFpErrors
from ftcomm.execution.header_check import CallHeader
from ftcomm.protocol.frame_header import make_suffix
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Algorithm, Kind, Signature
from ftcomm.transport.interruptions import Interrupted, SignatureMismatch

pytestmark = pytest.mark.skipif(which()[0] == "none", reason=f"no core: {which()[1]}")
SUFFIX = make_suffix(Signature(Kind.ALLREDUCE, count=3).encode(), "train.py:12")
HEADER = CallHeader(3, Position(0, 2, 5), SUFFIX)
RANKS = 3
JOIN_S = 30.0
words = ftcomm.reduction(lambda a, b: a * 10 + b, name="digits", commutative=False)


def in_threads(bodies: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run each in a thread, and return the result or the error of each."""
    results: list[Any] = [None] * len(bodies)

    def run(at: int) -> None:
        try:
            results[at] = bodies[at]()
        except Exception as error:  # noqa: BLE001 - for the assertion
            results[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive(), "a rank hangs"
    return results


def calls(
    kind: Kind, count: int, dtype: str, op: Any = None, headers: Sequence[CallHeader] = ()
) -> list[Callable[[Array], Array]]:
    """Each rank's call, with its own header if there are any."""
    segment, quiet = mmap.mmap(-1, segment_bytes(RANKS)), IgnoredFpErrors()
    reducer = None if op is None else make_reducer(op, np.dtype(dtype), shape=(count,))

    def call(rank: int) -> Callable[[Array], Array]:
        core = open_core(segment, RANKS, rank)
        schedule = schedule_for(
            kind,
            RANKS,
            rank,
            count,
            np.dtype(dtype).itemsize,
            grouping=(0,) * RANKS,
        )
        assert schedule.algorithm is Algorithm.DIRECT
        header = headers[rank] if headers else HEADER
        made = DirectCall(
            core, range(RANKS), header.suffix, schedule, np.dtype(dtype), reducer, quiet
        )

        def run(x: Array) -> Array:
            out: Array = np.empty(schedule.recvbuf_count, dtype)
            made.run(x, out, header, 0)
            return out

        return run

    return [call(rank) for rank in range(RANKS)]


def results(kind: Kind, dtype: str, inputs: list[Array], op: Any = None) -> list[Array]:
    runs = calls(kind, len(inputs[0]), dtype, op)
    return in_threads([lambda run=run, x=x: run(x) for run, x in zip(runs, inputs, strict=True)])


LARGE = DIRECT_BYTES // 8 + 1


@pytest.mark.parametrize(
    ("op", "dtype", "count"),
    [
        ("sum", "float64", 3),
        ("sum", "float64", LARGE),
        ("max", "int32", 100_003),
        ("land", "int32", 3),
        ("lor", "bool", 3),
        (words, "int64", 4),
        ("prod", "complex64", 0),
    ],
)
def test_each_rank_gets_the_left_fold_of_all_inputs(op: Any, dtype: str, count: int) -> None:
    inputs = [(np.arange(count) % 7 + rank).astype(dtype) for rank in range(RANKS)]
    reducer, expected = make_reducer(op, np.dtype(dtype), shape=(count,)), inputs[0].copy()
    for x in inputs[1:] if count else ():
        reducer.combine(expected, x, expected)
    for got in results(Kind.ALLREDUCE, dtype, inputs, op):
        assert got.tobytes() == expected.tobytes()


def test_an_allgather_puts_all_inputs_in_rank_order_and_a_barrier_nothing() -> None:
    inputs = [np.arange(4) + 10 * rank for rank in range(RANKS)]
    for got in results(Kind.ALLGATHER, "int64", inputs):
        assert got.tobytes() == np.concatenate(inputs).tobytes()
    nothing = [np.empty(0, np.uint8)] * RANKS
    assert [len(got) for got in results(Kind.BARRIER, "uint8", nothing)] == [0] * RANKS


@pytest.mark.parametrize("count", [3, 10_000])
def test_a_rank_that_calls_something_else_is_named_and_its_line_may_differ(count: int) -> None:
    other = make_suffix(Signature(Kind.ALLREDUCE, count=4).encode(), "train.py:40")
    headers = [HEADER, HEADER._replace(suffix=other), HEADER]
    runs = calls(Kind.ALLREDUCE, count, "float64", "sum", headers)
    x = np.ones(count)
    first, second, third = in_threads([lambda run=run: run(x) for run in runs])
    assert isinstance(first, SignatureMismatch)
    assert (first.rank, first.site, first.position) == (1, "train.py:40", HEADER.position)
    assert isinstance(second, SignatureMismatch)
    assert (second.rank, second.site) == (0, "train.py:12")
    assert isinstance(third, SignatureMismatch)
    assert third.rank == 1
    elsewhere = HEADER._replace(suffix=SUFFIX[:48] + other[48:])
    runs = calls(Kind.ALLREDUCE, count, "float64", "sum", [HEADER, elsewhere, HEADER])
    assert {got.tobytes() for got in in_threads([lambda run=run: run(x) for run in runs])} == {
        (3 * x).tobytes()
    }


def test_an_interrupt_ends_a_call_that_others_do_not_make() -> None:
    segment, quiet = mmap.mmap(-1, segment_bytes(2)), IgnoredFpErrors()
    core = open_core(segment, 2, 0)
    schedule = schedule_for(Kind.BARRIER, 2, 0, 0, 1, grouping=(0, 0))
    call = DirectCall(core, range(2), SUFFIX, schedule, np.dtype(np.uint8), None, quiet)
    nothing: Array = np.empty(0, np.uint8)

    def interrupt() -> tuple[int, ...]:
        missing = core.missing()
        while not missing:
            missing = core.missing()
        core.interrupt()
        return missing

    ended, missing = in_threads([lambda: call.run(nothing, nothing, HEADER, 0), interrupt])
    assert isinstance(ended, Interrupted)
    assert missing == (1,)
