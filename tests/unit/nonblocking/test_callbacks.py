"""Callbacks of handles: when and where they run, and what they may not do."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

import ftcomm
from ftcomm.nonblocking.callbacks import MAX_BACKLOG

WITHIN_S = 20.0
REFUSED = (
    "a callback of a handle made a call of the communicator - make it in the script, after "
    "handle.wait(): calls are in one order on all ranks"
)
CALLS: dict[str, Callable[[ftcomm.Communicator], Any]] = {
    "allreduce": lambda comm: comm.allreduce(np.ones(2)),
    "iallreduce": lambda comm: comm.iallreduce(np.ones(2)),
    "bucketed": lambda comm: comm.bucketed([np.ones(2)]),
    "barrier": lambda comm: comm.barrier(),
    "load_checkpoint": lambda comm: comm.load_checkpoint(),
    "checkpoint": lambda comm: comm.checkpoint(None),
    "peek_checkpoint": lambda comm: comm.peek_checkpoint(),
    "engine": lambda comm: comm.engine(),
    "close": lambda comm: comm.close(),
}


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


def ran(handle: ftcomm.Handle[Any], function: Callable[[], Any]) -> Any:
    """Return the result of `function` in a callback of `handle`, or its exception."""
    got: list[Any] = []
    ended = threading.Event()

    def callback(_: object) -> None:
        try:
            got.append(function())
        except BaseException as error:  # noqa: BLE001 - handed to the test, which looks at it
            got.append(error)
        ended.set()

    handle.add_done_callback(callback)
    assert ended.wait(WITHIN_S)
    return got[0]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "callbacks" in thread.name]


def blocked(comm: ftcomm.Communicator) -> threading.Event:
    """Return the event that releases the callbacks, of which one has begun."""
    entered, door = threading.Event(), threading.Event()

    def callback(_: object) -> None:
        entered.set()
        assert door.wait(WITHIN_S)

    comm.ibarrier().add_done_callback(callback)
    assert entered.wait(WITHIN_S)
    return door


def test_callbacks_run_in_the_order_of_calls_on_a_thread_of_their_own(
    comm: ftcomm.Communicator,
) -> None:
    seen: list[Any] = []

    def callback(handle: ftcomm.Handle[Any]) -> None:
        seen.append((handle.result(), handle.done(), threading.current_thread().name))

    door = blocked(comm)
    for number in range(3):
        comm.iallreduce(number).add_done_callback(callback)
    comm.barrier()  # which waits for the calls and not for their callbacks
    assert seen == []
    door.set()
    comm.close()  # which does
    assert seen == [(number, True, "ftcomm-callbacks") for number in range(3)]


def test_several_callbacks_of_one_handle_run_in_their_order(comm: ftcomm.Communicator) -> None:
    seen: list[int] = []
    handle = comm.ibarrier()
    for number in range(20):  # some before it is done, some after
        handle.add_done_callback(lambda _, number=number: seen.append(number))
    assert ran(handle, lambda: list(seen)) == list(range(20))


def test_who_is_done_already_is_called_back_too(comm: ftcomm.Communicator) -> None:
    handle = comm.iallreduce(7)
    handle.wait()
    assert ran(handle, lambda: threading.current_thread().name) == "ftcomm-callbacks"


@pytest.mark.parametrize("call", CALLS)
def test_a_callback_makes_no_calls(comm: ftcomm.Communicator, call: str) -> None:
    comm.allreduce(np.ones(2))  # the gate is free: nothing else would keep it out
    refused = ran(comm.ibarrier(), lambda: CALLS[call](comm))
    assert (type(refused), str(refused)) == (ftcomm.ThreadError, REFUSED)
    comm.allreduce(np.ones(2))
    assert (comm.seqno, comm.is_over) == (3, False)


def test_a_callback_may_look_around_and_wait_for_what_runs_without_it(
    comm: ftcomm.Communicator,
) -> None:
    first, second = comm.iallreduce(1), comm.iallreduce(2)

    def look() -> Any:
        return second.wait(), comm.rank, comm.stats().epochs, repr(first)

    assert ran(first, look) == (2, 0, 1, "<ftcomm.Handle of allreduce, done>")


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit(3)])
def test_what_a_callback_raises_is_logged_and_changes_nothing(
    comm: ftcomm.Communicator, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def callback(_: object) -> None:
        raise error

    handle = comm.ibarrier()
    handle.add_done_callback(callback)
    assert ran(handle, lambda: "the next one") == "the next one"
    assert comm.allreduce(1) == 1
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    first, *_, last = record.getMessage().splitlines()
    assert first == "a callback of barrier raised, which changes nothing:"
    assert last == f"{type(error).__name__}: {error}"


def test_a_callback_hears_of_an_error_and_the_script_still_does(comm: ftcomm.Communicator) -> None:
    def wrong() -> Any:
        raise ZeroDivisionError

    failed, behind = comm.iallreduce(wrong), comm.ibarrier()
    assert type(ran(failed, failed.exception)) is ZeroDivisionError
    assert type(ran(behind, behind.exception)) is ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        comm.barrier()
    comm.barrier()
    assert comm.seqno == 1


def test_exception_and_result_wait_as_long_as_they_may(comm: ftcomm.Communicator) -> None:
    entered, door = threading.Event(), threading.Event()

    def slow() -> int:
        entered.set()
        assert door.wait(WITHIN_S)
        return 5

    handle = comm.iallreduce(slow)
    assert entered.wait(WITHIN_S)
    for ask in (handle.wait, handle.result, handle.exception):
        with pytest.raises(TimeoutError, match=r"^allreduce is still pending after 0\.01 s$"):
            ask(timeout=0.01)
    door.set()
    assert handle.exception() is None
    assert handle.result(timeout=WITHIN_S) == 5


def test_a_handle_shows_what_it_is_for_alone(comm: ftcomm.Communicator) -> None:
    names = [name for name in dir(comm.ibarrier()) if not name.startswith("_")]
    assert names == ["add_done_callback", "done", "exception", "result", "wait"]


def test_what_is_no_function_is_refused(comm: ftcomm.Communicator) -> None:
    with pytest.raises(TypeError, match=r"^callback must be callable, got str$"):
        comm.ibarrier().add_done_callback("x")  # type: ignore[arg-type]  # the mistake itself


def test_no_thread_is_left_behind_and_a_late_callback_runs_all_the_same() -> None:
    before = threads()
    with ftcomm.init("none") as comm:
        handle = comm.ibarrier()
        handle.add_done_callback(lambda _: None)
        assert threads() == [*before, "ftcomm-callbacks"]
    assert threads() == before
    assert ran(handle, lambda: "late") == "late"


def test_calls_that_do_not_run_any_more_are_called_back(comm: ftcomm.Communicator) -> None:
    entered, door = threading.Event(), threading.Event()
    seen: list[str] = []

    def slow() -> int:
        entered.set()
        assert door.wait(WITHIN_S)
        return 5

    comm.iallreduce(slow)
    dropped = comm.ibarrier()
    dropped.add_done_callback(lambda handle: seen.append(type(handle.exception()).__name__))
    assert entered.wait(WITHIN_S)
    threading.Timer(0.05, door.set).start()
    comm.abort("enough")
    assert ran(dropped, lambda: list(seen)) == ["ClosedError"]


def test_a_call_waits_while_too_many_callbacks_do(comm: ftcomm.Communicator) -> None:
    door = blocked(comm)
    handle = comm.ibarrier()
    handle.wait()
    seen: list[bool] = []
    for _ in range(MAX_BACKLOG - 1):
        handle.add_done_callback(lambda _: seen.append(door.is_set()))
    threading.Timer(0.05, door.set).start()
    comm.ibarrier().wait()  # begins only because the door is opened
    assert door.is_set()
    comm.close()
    assert seen == [True] * (MAX_BACKLOG - 1)


def test_a_forked_child_adds_none(comm: ftcomm.Communicator) -> None:
    handle = comm.ibarrier()
    with (
        mock.patch("ftcomm.nonblocking.queue.os.getpid", return_value=-1),
        pytest.raises(ftcomm.ForkError, match="this handle belongs to the parent process"),
    ):
        handle.add_done_callback(lambda _: None)
