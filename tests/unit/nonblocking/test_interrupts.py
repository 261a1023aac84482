"""Ctrl-C, or no room for a thread, at every place where a nonblocking call or a task begins."""

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

import ftcomm
from ftcomm import communicator
from ftcomm.api import call_guard, checkpoints, collectives, persistent_calls, session
from ftcomm.control import changes
from ftcomm.errors import ClosedError, ThreadLimitError
from ftcomm.nonblocking import (
    buckets,
    fused,
    handle,
    message_handles,
    nonblocking_calls,
    queue,
    threads,
)
from ftcomm.nonblocking.callbacks import Callbacks
from ftcomm.nonblocking.handle import QueuedCall
from ftcomm.nonblocking.message_handles import MessageHandles
from ftcomm.tasks import dependencies, task_engine
from tests.helpers.interrupts import BY_SIGNAL, interrupted, places

PATH = (
    nonblocking_calls,
    collectives,
    communicator,
    session,
    checkpoints,
    persistent_calls,
    task_engine,
)
PATH += (buckets, fused, dependencies, queue, threads, call_guard, handle, changes)
WAITS = (*PATH, message_handles, threading)
OTHER = np.ones(3)
WITHIN_S = 60.0  # a hang is a failure; nothing here takes a second


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as comm:
        yield comm


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Until it is undone, no thread can be started."""

    def start(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        yield patched


def allowed(door: threading.Event) -> None:
    assert door.wait(WITHIN_S)


class Look:
    """A condition that another thread makes true once it was looked at, and not before.

    It has a bare lock, because interrupts come in the functions of `threading` too.
    """

    def __init__(self) -> None:
        self.is_true = False
        self._not_looked_at = threading.Lock()
        self._not_looked_at.acquire()

    def __call__(self) -> bool:
        if self._not_looked_at.locked():
            self._not_looked_at.release()
        return self.is_true

    def make_true(self, line: Any) -> None:
        """With the lock and the changes of `line`."""
        assert self._not_looked_at.acquire(timeout=WITHIN_S)
        with line._lock:
            self.is_true = True
            line._changed.notify_all()


class Awaited:
    """A call that is done when a look at it says so."""

    what = "iallreduce"

    def __init__(self, look: Look) -> None:
        self._look = look

    @property
    def is_done(self) -> bool:
        return self._look()


class Tasks(dict[int, Any]):
    """Tasks of an engine, of which there are none when a look at them says so."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look

    def __len__(self) -> int:
        return 1 - self._look()


def wait_for_a_handle(comm: ftcomm.Communicator, look: Look) -> tuple[Any, Callable[[], object]]:
    line, call = comm._nonblocking.queue, Awaited(look)
    return line, functools.partial(line.wait_for, call, None)


def wait_for_a_message(_: ftcomm.Communicator, look: Look) -> tuple[Any, Callable[[], object]]:
    calls: Any = SimpleNamespace(wait_elsewhere=lambda: None)
    line: Any = MessageHandles(calls, Callbacks(()))
    return line, functools.partial(line.wait_for, Awaited(look), None)


def wait_for_a_turn(comm: ftcomm.Communicator, look: Look) -> tuple[Any, Callable[[], object]]:
    line: Any = comm._nonblocking.queue
    line._is_settled = look

    def wait() -> None:
        if line.hand_back():
            del comm._session.guard.lock.holder[0]

    return line, wait


def wait_for_an_engine(comm: ftcomm.Communicator, look: Look) -> tuple[Any, Callable[[], object]]:
    line: Any = comm.engine(1)
    line._tasks = Tasks(look)
    return line, line.wait


BEGINNINGS = (wait_for_a_handle, wait_for_a_message, wait_for_a_turn, wait_for_an_engine)


def is_free(line: Any) -> bool:
    """Its lock is, for the thread that asks."""
    taken: bool = line._lock.acquire(blocking=False)
    if taken:
        line._lock.release()
    return taken


# --- Ctrl-C, in a group of one --------------------------------------------------------------------


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_ctrl_c_in_a_wait_is_raised_and_keeps_no_lock(begin: Any) -> None:
    """While a thread sleeps another one may have the lock, and has it still."""
    with ThreadPoolExecutor(1) as other:
        for number in places():
            look = Look()
            with ftcomm.init("none") as comm:
                line, wait = begin(comm, look)
                changing = other.submit(look.make_true, line)
                try:
                    has_come = interrupted(wait, number, *WAITS, where=BY_SIGNAL)
                finally:
                    look()
                    changing.result(WITHIN_S)
                assert other.submit(is_free, line).result(WITHIN_S)
            if not has_come:
                break
    assert number > 5


def test_a_wait_for_a_message_that_is_cut_short_holds_up_no_other_thread() -> None:
    """The control thread takes the same lock when a message comes."""
    calls: Any = SimpleNamespace(wait_elsewhere=lambda: None)
    call: QueuedCall[None] = QueuedCall(lambda: None, "irecv")
    call.succeed(None)

    with ThreadPoolExecutor(1) as threads:
        for number in places():
            handles = MessageHandles(calls, Callbacks(()))
            wait = functools.partial(handles.wait_for, call, None)
            has_come = interrupted(wait, number, *WAITS, where=BY_SIGNAL)
            assert threads.submit(is_free, handles).result()
            if not has_come:
                break


def push(comm: ftcomm.Communicator) -> None:
    x = np.ones(3)
    engine = comm.engine(1)
    engine.push(lambda: None, mutate=[x])
    engine.allreduce(x)
    engine.wait_for(x)


CALLS: dict[str, Callable[[ftcomm.Communicator], object]] = {
    "blocking": lambda comm: comm.allreduce(OTHER),
    "nonblocking": lambda comm: comm.iallreduce(OTHER).wait(WITHIN_S),
    "bucketed": lambda comm: comm.bucketed([OTHER, np.ones((2, 2))]),
    "checkpoint": lambda comm: comm.checkpoint(OTHER),
    "behind others": lambda comm: [comm.iallreduce(OTHER), comm.barrier()],
    "tasks": push,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_group_of_one_goes_on_or_is_over_wherever_a_call_is_interrupted(name: str) -> None:
    """It is over where a blocking call had its result, which is lost."""
    call = CALLS[name]
    for number in places():
        with ftcomm.init("none") as comm:
            comm.load_checkpoint(0)
            if not interrupted(lambda c=comm: call(c), number, *PATH, where=BY_SIGNAL):
                break
            if not comm.is_usable:
                with pytest.raises(ClosedError, match="ended by KeyboardInterrupt"):
                    comm.barrier()
                continue
            call(comm)
            comm.barrier()
            comm.ibarrier().wait(WITHIN_S)
    assert number > 10


PRELUDE = {"load": lambda comm: comm.load_checkpoint([0]), "prelude": CALLS["blocking"]}
BLOCKING: dict[str, Callable[[ftcomm.Communicator], object]] = {
    **PRELUDE,
    "lazy checkpoint": lambda comm: comm.checkpoint([OTHER], lazy=True),
}


@pytest.mark.parametrize("name", BLOCKING)
def test_an_interrupt_in_a_group_of_one_loses_no_completed_call(name: str) -> None:
    call, seen = BLOCKING[name], set[bool]()
    for number in places():
        with ftcomm.init("none") as comm:
            if name not in PRELUDE:
                comm.load_checkpoint(0)
            before = comm.position
            if not interrupted(lambda c=comm: call(c), number, *PATH, where=BY_SIGNAL):
                break
            seen.add(comm.is_usable)
            assert comm.is_usable == (comm.position == before)
            if comm.is_usable:
                call(comm)
    assert seen == {True, False}


def test_ctrl_c_while_the_thread_starts_does_not_leave_two_of_them(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread runs, and nobody has heard of it."""
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_and_raise(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        if len(started) in {1, 3}:
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start_and_raise)
    engine = comm.engine(1)
    for begin in (comm.ibarrier, lambda: engine.push(lambda: None)):
        with pytest.raises(KeyboardInterrupt):
            begin()
        begin()
    engine.wait()
    comm.barrier()
    for unknown in (started[0], started[2]):
        unknown.join(WITHIN_S)
    assert [thread.is_alive() for thread in started] == [False, True, False, True]


# --- no room for a thread -----------------------------------------------------------------------


def test_an_nonblocking_call_says_that_its_thread_could_not_be_started(
    comm: ftcomm.Communicator, no_room: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with pytest.raises(ThreadLimitError, match=r"ftcomm-engine could not .* ulimit -u"):
            comm.iallreduce(1)
    comm.barrier()
    no_room.undo()
    assert comm.iallreduce(1).wait(WITHIN_S) == 1
    assert comm.seqno == 2


def test_a_communicator_without_its_thread_can_be_left(no_room: pytest.MonkeyPatch) -> None:
    with ftcomm.init("none") as comm, pytest.raises(ThreadLimitError):
        comm.ibarrier()
    assert comm.is_over


def test_a_push_says_that_no_thread_could_be_started(
    comm: ftcomm.Communicator, no_room: pytest.MonkeyPatch
) -> None:
    engine, x, ran = comm.engine(), np.ones(3), []
    with pytest.raises(ThreadLimitError, match=r"ftcomm-tasks-0 could not .* ulimit -u"):
        engine.push(lambda: ran.append("never"), mutate=[x])
    with pytest.raises(ThreadLimitError):
        engine.allreduce(x)
    engine.wait()
    no_room.undo()
    engine.push(lambda: ran.append("second"), mutate=[x])
    engine.allreduce(x)
    engine.wait()
    assert (ran, comm.seqno) == (["second"], 1)


def test_one_thread_is_enough_where_there_is_no_room_for_two(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, ran = comm.engine(2), []
    engine.push(lambda: ran.append(1))

    def start(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        engine.push(lambda: ran.append(2))
        engine.wait()
    assert ran == [1, 2]
