"""The fast path and the slow path give the same on random programs, in a group of one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

import ftcomm
from ftcomm.memory.pool import LoggedResult, Pool
from ftcomm.requests.builder import FLUSH_BROADCASTS
from ftcomm.requests.request import CollectiveSpec
from tests.unit.engine.test_persistent_request import Way

POOLED = Pool.MIN_LENT_BYTES // 8
SHAPES = [(3,), (2, 2), (0,), (), (POOLED,), (2, POOLED)]
PERSISTENT = "ftcomm.engine.single_process.SingleProcessEngine.persistent"
CALL = {
    "kind": "allreduce",
    "shape": (3,),
    "dtype": "float64",
    "op": "sum",
    "target": "new",
    "strided": False,
    "tag": None,
}
FUNCTIONS = [ftcomm.reduction(lambda a, b: a + b, name=name) for name in ("one", "other")]
Calls = some.lists(
    some.fixed_dictionaries(
        {
            "kind": some.sampled_from(
                ["allreduce"] * 4
                + ["allgather", "allgatherv", "broadcast"] * 2
                + ["barrier", "iallreduce"]
            ),
            "shape": some.sampled_from(SHAPES),
            "dtype": some.sampled_from(["float64", "int32", ">i4"]),
            "op": some.sampled_from(["sum", "max", ftcomm.Op.MIN, sum, np.maximum, *FUNCTIONS]),
            "target": some.sampled_from(["new", "view", "out", "in place"]),
            "strided": some.booleans(),
            "tag": some.sampled_from([None, 1, "1", True]),
        }
    ),
    max_size=12,
)


def run(calls: list[dict[str, Any]], ways: list[Way]) -> list[Any]:
    """Everything that a script can see of a program, and what the session counts."""
    with ftcomm.init("none") as comm:
        seen = [_visible(_called(comm, number, **call)) for number, call in enumerate(calls)]
        session = comm._session
        counts = {kind: (s.count, s.nbytes) for kind, s in comm.stats().kinds.items()}
        state = comm.seqno, counts, session.quota.nbytes, session.broadcasts.number
        assert not session.guard.lock.holder
    return [*seen, state, sum(len(way.log) for way in ways) > 0]


def _called(
    comm: ftcomm.Communicator, number: int, kind: str, shape: tuple[int, ...], dtype: str,
    op: Any, target: str, *, strided: bool, tag: int | str | None,
) -> Any:  # fmt: skip
    if kind == "barrier":
        return comm.barrier(tag=tag)
    x = np.arange(number, number + np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    x = np.asfortranarray(x) if strided and shape else x
    copy, fits = target != "view", x.flags.c_contiguous and x.dtype.isnative
    if kind == "broadcast":
        out = {"out": np.zeros(shape, x.dtype), "in place": x}.get(target) if fits else None
        return comm.broadcast(x, out=out, copy=copy, tag=tag)
    if kind == "allgather":
        out = np.zeros((1, *shape), x.dtype) if target == "out" and fits else None
        return comm.allgather(x, out=out, copy=copy, tag=tag)
    out = {"out": np.zeros(shape, x.dtype), "in place": x}.get(target) if fits else None
    if kind == "allgatherv":
        rows = x if shape else x.reshape(1)
        out = out if shape else None
        counts = [len(rows)] if tag is None else (len(rows),)
        return comm.allgatherv(rows, counts, out=out, copy=copy, tag=tag)
    if kind == "iallreduce":
        return comm.iallreduce(x, op, out=out, copy=copy).wait()
    result = comm.allreduce(x, op, out=out, copy=copy, tag=tag)
    assert (result is out) == (out is not None)
    return result


def _visible(result: Any) -> Any:
    if result is None:
        return None
    return result.dtype.str, result.shape, result.tobytes(), result.flags.writeable


class ShapedWay(Way):
    """As `Way`, with results of the spec's shape."""

    def __init__(self, engine: Any, form: CollectiveSpec) -> None:
        super().__init__(engine)
        self.shape = form.shape

    def run(self, sendbuf: Any, place: Any = None) -> LoggedResult:
        if place is not None:
            place[...] = sendbuf.reshape(self.shape)
        return replace(super().run(sendbuf), shape=self.shape)


def persistent(ways: list[Way]) -> Callable[..., Way]:
    def made(engine: Any, form: CollectiveSpec) -> Way:
        ways.append(ShapedWay(engine, form))
        return ways[-1]

    return made


@settings(max_examples=40, deadline=None)
@example(calls=[CALL, {**CALL, "kind": "broadcast"}, CALL])
@example(calls=[{**CALL, "kind": "allgather", "shape": (POOLED,)}] * 2)
@given(calls=Calls)
def test_the_fast_path_equals_the_slow_path(calls: list[dict[str, Any]]) -> None:
    ways: list[Way] = []
    with mock.patch(PERSISTENT, persistent(ways)):
        *fast, _ = run(calls, ways)
    *slow, is_fast = run(calls, [])
    assert fast == slow
    assert not is_fast


@pytest.mark.parametrize("kind", ["allreduce", "broadcast", "allgather", "allgatherv", "barrier"])
def test_such_programs_take_the_fast_path(kind: str) -> None:
    ways: list[Way] = []
    with mock.patch(PERSISTENT, persistent(ways)):
        run([{**CALL, "kind": kind, "target": target} for target in ("new", "out")], ways)
    assert [len(way.log) for way in ways] == [1]


def test_a_broadcast_that_proves_what_came_before_takes_the_slow_path() -> None:
    ways: list[Way] = []
    with mock.patch(PERSISTENT, persistent(ways)):
        run([{**CALL, "kind": "broadcast"}] * (2 * FLUSH_BROADCASTS), ways)
    assert sum(len(way.log) for way in ways) == 2 * FLUSH_BROADCASTS - 1 - 2


def test_a_call_that_completes_before_the_lock_is_free_is_counted() -> None:
    """A pending broadcast, on the thread that runs those: all ranks must end the same one."""
    ways: list[Way] = []
    with mock.patch(PERSISTENT, persistent(ways)), ftcomm.init("none") as comm:
        broadcasts, lock = comm._session.broadcasts, comm._session.guard.lock
        take = type(lock).take

        def taken_late(*arguments: Any) -> bool:
            broadcasts.number = FLUSH_BROADCASTS - 1
            return take(*arguments)

        for number in range(3):
            with mock.patch.object(type(lock), "take", taken_late if number == 2 else take):
                comm.broadcast(np.ones(3))
        assert sum(len(way.log) for way in ways) == 1
        assert broadcasts.number == 0


def test_a_root_that_is_no_whole_number_is_refused_on_every_path() -> None:
    with mock.patch(PERSISTENT, persistent([])), ftcomm.init("none") as comm:

        def call(root: Any) -> None:
            comm.broadcast(np.ones(1), root)

        for _ in range(2):
            call(0)
            with pytest.raises(TypeError, match="root is a float"):
                call(0.0)


def test_a_declared_function_takes_the_fast_path() -> None:
    ways: list[Way] = []
    with mock.patch(PERSISTENT, persistent(ways)):
        run([{**CALL, "op": FUNCTIONS[0]}] * 3, ways)
    assert sum(len(way.log) for way in ways) == 2


def test_another_function_of_a_name_from_the_same_line_is_another_call() -> None:
    """It may be of another name: what ranks compare is asked of the function itself."""
    ways: list[Way] = []
    one, other = FUNCTIONS
    with mock.patch(PERSISTENT, persistent(ways)):
        run([{**CALL, "op": op} for op in (one, one, other, other, one)], ways)
    assert [len(way.log) for way in ways] == [1, 1, 0]


def test_counts_that_are_no_whole_numbers_are_refused_on_every_path() -> None:
    with mock.patch(PERSISTENT, persistent([])), ftcomm.init("none") as comm:

        def call(count: Any) -> None:
            comm.allgatherv(np.ones(1), [count])

        for _ in range(2):
            call(1)
            for wrong in (1.0, "1", None):
                with pytest.raises(TypeError):
                    call(wrong)
