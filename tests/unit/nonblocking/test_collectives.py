"""Nonblocking calls in a group of one: the same results, the same refusals, the same counts."""

import gc
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.config import deadline
from ftcomm.config.deadline import Limit
from ftcomm.errors import ClosedError, LogLimitError

X = np.arange(6, dtype=np.float32).reshape(2, 3)
CALLS: dict[str, tuple[Any, ...]] = {
    "allreduce": (X, "mean"),
    "broadcast": (X, 0),
    "allgather": (X,),
    "allgatherv": (X,),
    "reduce": (X, "max", 0),
    "gather": (X,),
    "gatherv": (X,),
    "scatter": ([X],),
    "broadcast_object": ({"a": [1, X]},),
    "allgather_object": ("text",),
    "barrier": (),
    "reduce_scatter": (X, "max"),
    "alltoall": (X,),
    "alltoallv": ([X],),
    "scatterv": ([X],),
    "scatter_object": ([{"a": X}],),
    "gather_object": ({"a": X},),
}


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


def plain(value: Any) -> Any:
    """A result as values that compare."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


def test_every_collective_has_a_sister_with_the_same_arguments() -> None:
    names = {name for name in vars(ftcomm.Communicator) if not name.startswith("_")}
    ours = {name for name in names if f"i{name}" in names}
    assert ours == set(CALLS) | {"send", "recv", "send_object", "recv_object"}
    for name in ours:
        forms = (getattr(ftcomm.Communicator, each) for each in (f"i{name}", name))
        nonblocking, synchronous = (list(inspect.signature(f).parameters.values()) for f in forms)
        assert nonblocking[1:] == synchronous[1:], name  # the first is the communicator itself


@pytest.mark.parametrize("name", CALLS)
def test_a_sister_gives_what_the_synchronous_call_gives(
    comm: ftcomm.Communicator, name: str
) -> None:
    handle = getattr(comm, f"i{name}")(*CALLS[name])
    assert plain(handle.wait()) == plain(getattr(comm, name)(*CALLS[name]))
    assert (comm.seqno, handle.done()) == (2, True)
    assert comm.stats().kinds[name].count == 2
    assert repr(handle) == f"<ftcomm.Handle of {name}, done>"


def test_out_is_filled_and_returned(comm: ftcomm.Communicator) -> None:
    out = np.zeros_like(X)
    assert comm.iallreduce(X, out=out).wait() is out
    assert out.tobytes() == X.tobytes()


def test_without_a_copy_the_result_is_read_only(comm: ftcomm.Communicator) -> None:
    assert not comm.iallreduce(X, copy=False).wait().flags.writeable


@pytest.mark.parametrize(
    "call",
    [
        lambda comm: comm.iallreduce(None),
        lambda comm: comm.iallreduce(X, "no such op"),
        lambda comm: comm.iallreduce(X, out=np.zeros(1)),
        lambda comm: comm.iallreduce(X, algorithm="magic"),
        lambda comm: comm.ibroadcast(X, 1),
        lambda comm: comm.iallgatherv(3),
        lambda comm: comm.ibarrier(deadline=-1),
    ],
    ids=["x", "op", "out", "algorithm", "root", "rows", "deadline"],
)
def test_local_mistakes_are_raised_by_the_call(
    comm: ftcomm.Communicator, call: Callable[[ftcomm.Communicator], Any]
) -> None:
    with pytest.raises((TypeError, ValueError)):
        call(comm)
    assert (comm.iallreduce(1).wait(), comm.seqno) == (1, 1)


def test_an_input_function_is_called_once_on_the_engines_thread(comm: ftcomm.Communicator) -> None:
    threads = []

    def x() -> int:
        threads.append(threading.current_thread().name)
        return 7

    assert comm.iallreduce(x).wait() == 7
    assert threads == ["ftcomm-engine"]


def test_what_an_input_function_raises_leaves_the_position(comm: ftcomm.Communicator) -> None:
    def x() -> int:
        raise ArithmeticError("no input")

    first, behind = comm.iallreduce(x), comm.ibarrier()
    with pytest.raises(ArithmeticError, match="no input"):
        first.wait()
    with pytest.raises(ArithmeticError, match="no input"):
        behind.wait()
    comm.ibarrier().wait()
    assert comm.seqno == 1


def test_what_is_pending_comes_before_a_checkpoint_and_a_load(comm: ftcomm.Communicator) -> None:
    comm.iallreduce(X)
    assert comm.load_checkpoint(0) == (0, 0)
    handles = [comm.iallreduce(np.float64(number)) for number in range(100)]
    assert comm.checkpoint(1) == 1
    assert [handle.done() for handle in handles] == [True] * 100
    assert (comm.version, comm.seqno) == (1, 0)


def test_an_error_that_nobody_has_heard_of_is_raised_at_the_end_of_the_block() -> None:
    def x() -> int:
        raise ArithmeticError("no input")

    with pytest.raises(ArithmeticError, match="no input"), ftcomm.init("none") as comm:
        comm.iallreduce(x)
    assert comm.is_over


def test_an_exception_that_leaves_the_block_drops_what_is_pending() -> None:
    entered, door = threading.Event(), threading.Event()

    def x() -> int:
        entered.set()
        assert door.wait(60.0)
        return 7

    handles = []

    def leave_in_the_middle() -> None:
        with ftcomm.init("none") as comm:
            handles.extend([comm.iallreduce(x), comm.ibarrier()])
            assert entered.wait(60.0)
            threading.Timer(0.01, door.set).start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave_in_the_middle()
    with pytest.raises(ClosedError):
        handles[1].wait()


def test_a_full_log_is_found_at_the_turn_and_can_be_emptied(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm.load_checkpoint(0)
    monkeypatch.setattr(comm._session.quota, "_limit", 100)
    handles = [comm.iallreduce(np.zeros(10, np.float32)) for _ in range(4)]
    assert [handle.wait().nbytes for handle in handles[:2]] == [40, 40]
    for handle in handles[2:]:
        with pytest.raises(LogLimitError):
            handle.wait()
    assert (comm.seqno, comm.checkpoint(1)) == (2, 1)
    assert comm.iallreduce(np.zeros(10, np.float32)).wait().nbytes == 40


def test_a_broadcast_counts_towards_the_flush_at_its_turn(comm: ftcomm.Communicator) -> None:
    """All ranks must end the same one with a barrier, however far ahead they call."""
    flushed = []
    run = comm._session.engine.run

    def spy(call: Any) -> Any:
        flushed.append(call.flush)
        return run(call)

    comm._session.engine.run = spy  # type: ignore[method-assign]  # looked at where the engine gets it
    handles = [comm.ibroadcast(1) for _ in range(130)]
    handles[-1].wait()
    assert [number for number, flush in enumerate(flushed, 1) if flush] == [64, 128]


def test_no_nonblocking_call_takes_the_fast_path(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That runs at once, on the thread that calls."""

    def persistent(form: Any) -> Any:
        pytest.fail(f"asked for {form}")

    monkeypatch.setattr(comm._session.engine, "persistent", persistent)
    for _ in range(3):
        comm.iallreduce(X).wait()
        comm.bucketed([X])


def test_a_call_that_is_done_holds_nothing_of_its_input(comm: ftcomm.Communicator) -> None:
    x = np.zeros(1000)
    seen = weakref.ref(x)
    handle = comm.iallreduce(x)
    handle.wait()
    del x
    gc.collect()
    assert seen() is None
    assert handle.done()


def test_a_deadline_counts_from_the_call_and_not_from_its_turn(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by 100 s while the calls wait behind the first one."""
    clock, waits, limits = [1000.0], threading.Event(), list[Limit | None]()
    within, requests = comm._session.engine.within, comm._nonblocking.queue
    is_settled = requests._is_settled

    def first() -> Any:
        assert waits.wait(60)
        clock[0] = 1100.0
        return X

    def looked() -> bool:
        waits.set()
        return is_settled()

    def noted(limit: Limit | None, *arguments: Any) -> Any:
        limits.append(limit)
        return within(limit, *arguments)

    monkeypatch.setattr(comm._session.engine, "within", noted)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(requests, "_is_settled", looked)
    comm.iallreduce(first)
    comm.ibarrier(deadline=10)
    comm.iallreduce(lambda: X, deadline=20)
    comm.barrier(deadline=40)
    comm.bucketed([X, X], deadline=30)
    assert limits == [None, Limit(10, 1010), Limit(20, 1020), Limit(40, 1040), Limit(30, 1130)]
