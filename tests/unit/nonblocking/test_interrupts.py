"""Ctrl-C, or no room for a thread, at every place where a nonblocking call or a task begins."""

import functools
import sys
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
    dependencies,
    fused,
    handle,
    message_handles,
    nonblocking_calls,
    queue,
    task_arguments,
    task_engine,
    threads,
)
from ftcomm.nonblocking.callbacks import Callbacks
from ftcomm.nonblocking.handle import QueuedCall
from ftcomm.nonblocking.message_handles import MessageHandles
from tests.helpers.interrupts import BY_SIGNAL, interrupted, places

PATH = (
    nonblocking_calls,
    collectives,
    communicator,
    session,
    checkpoints,
    persistent_calls,
    task_engine,
    task_arguments,
)
PATH += (dependencies, queue, threads, call_guard, handle, changes)
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
    return line, lambda: line.hand_back(sys._getframe())


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


# --- Ctrl-C -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_nonblocking_again", [True, False])
def test_an_nonblocking_call_cut_short_can_be_made_again_or_this_process_has_ended(
    is_first: bool, is_nonblocking_again: bool
) -> None:
    called = lost = 0
    x = np.ones(3)
    for number in places():
        comm = ftcomm.init("none")
        for _ in range(1 - is_first):
            comm.iallreduce(x).wait()
        reached = comm.seqno
        if not interrupted(lambda c=comm: c.iallreduce(x), number, *PATH, where=BY_SIGNAL):
            comm.close()
            break
        requests = comm._nonblocking.queue
        # So that the engine's ownership is back, if it was taken.
        assert requests._changed.wait_for(requests._is_idle, WITHIN_S)
        try:
            if is_nonblocking_again:
                comm.iallreduce(x).wait(WITHIN_S)
            else:
                comm.allreduce(x)
        except ClosedError:
            assert comm.is_over
            lost += 1
        else:
            called += 1
            assert comm.allreduce(x).tolist() == [1, 1, 1]
            assert comm.iallreduce(x).wait(WITHIN_S).tolist() == [1, 1, 1]
            assert comm.seqno == reached + 3
            comm.close()
    assert min(called, lost) > 0


def test_bucketed_arrays_cut_short_can_be_combined_again_or_this_process_has_ended() -> None:
    """Ctrl-C may come behind the last bucket, when the results are put into place."""
    called = lost = 0
    x = [np.ones(3), np.ones((2, 2))]
    for number in places():
        comm = ftcomm.init("none")
        reached, out = comm.seqno, [np.zeros(3), np.zeros((2, 2))]
        call = functools.partial(comm.bucketed, x, out=out)
        if not interrupted(call, number, *PATH, buckets, fused, where=BY_SIGNAL):
            comm.close()
            break
        requests = comm._nonblocking.queue
        assert requests._changed.wait_for(requests._is_idle, WITHIN_S)
        try:
            comm.barrier()
        except ClosedError:
            lost += 1
        else:
            called += 1
            assert comm.seqno == reached + 1
            comm.close()
    assert min(called, lost) > 0


@pytest.mark.parametrize("loads", [True, False], ids=["load", "checkpoint"])
def test_a_checkpoint_cut_short_can_be_made_again_or_this_process_has_ended(loads: bool) -> None:
    """Ctrl-C may come behind its commit, when the version is about to be returned."""
    gone_on = lost = 0
    for number in places():
        comm = ftcomm.init("none")
        state, call = np.zeros(2), comm.load_checkpoint
        if not loads:
            comm.load_checkpoint(state)
            call = comm.checkpoint  # type: ignore[assignment] # it returns something else
        before = comm.position
        if not interrupted(lambda c=call, s=state: c(s), number, *PATH, where=BY_SIGNAL):
            comm.close()
            break
        try:
            comm.peek_checkpoint() if loads else comm.barrier()
        except ClosedError:
            lost += 1
        else:
            gone_on += 1
            assert comm.position.version == before.version
            comm.close()
    assert min(gone_on, lost) > 0


@pytest.mark.parametrize("is_pending", [True, False])
def test_a_synchronous_call_that_waits_for_others_and_is_cut_short_can_be_made_again(
    is_pending: bool,
) -> None:
    x = np.ones(3)
    for number in places():
        comm = ftcomm.init("none")
        handle = comm.iallreduce(x)
        if not is_pending:
            handle.wait()
        if not interrupted(comm.peek_checkpoint, number, *PATH, where=BY_SIGNAL):
            comm.close()
            break
        comm.barrier()
        assert (handle.wait(WITHIN_S).tolist(), comm.seqno) == ([1, 1, 1], 2)
        comm.close()
    assert number > 3


@pytest.mark.parametrize("is_first", [True, False])
def test_a_push_cut_short_can_be_made_again(is_first: bool) -> None:
    """A function that was pushed just so runs twice then."""
    runs: list[int] = []
    for number in places():
        comm = ftcomm.init("none")
        engine, x, door = comm.engine(1), np.ones(3), threading.Event()
        for _ in range(1 - is_first):
            engine.push(lambda d=door: allowed(d), mutate=[x])
        runs.clear()

        def push(engine: Any = engine, x: Any = x) -> None:
            engine.push(lambda: runs.append(1), [OTHER], [x])

        if not interrupted(push, number, *PATH, where=BY_SIGNAL):
            door.set()
            comm.close()
            break
        push()
        door.set()
        engine.wait_for(x)
        engine.wait()
        assert len(runs) in {1, 2}
        comm.close()
    assert number > 50


def test_a_pushed_collective_cut_short_can_be_made_again_or_this_process_has_ended() -> None:
    called = lost = 0
    for number in places():
        comm = ftcomm.init("none")
        engine, x, door = comm.engine(1), np.ones(3), threading.Event()
        engine.push(lambda d=door: allowed(d), mutate=[x])
        has_come = interrupted(lambda e=engine, x=x: e.allreduce(x), number, *PATH, where=BY_SIGNAL)
        door.set()
        if not has_come:
            comm.close()
            break
        try:
            engine.allreduce(x)
            engine.wait_for(x)
            engine.wait()
        except ClosedError:
            assert comm.is_over
            lost += 1
        else:
            called += 1
            comm.close()
            assert comm.seqno == 1
    assert min(called, lost) > 0


def test_a_synchronous_call_cut_short_lets_an_nonblocking_one_in() -> None:
    called = lost = 0
    for number in places():
        comm = ftcomm.init("none")
        comm.ibarrier().wait()
        if not interrupted(comm.barrier, number, *PATH, where=BY_SIGNAL):
            comm.close()
            break
        reached = comm.seqno
        try:
            comm.ibarrier().wait(WITHIN_S)
        except ClosedError:
            assert (comm.is_over, reached) == (True, 2)
            lost += 1
        else:
            assert (reached, comm.seqno) == (1, 2)
            called += 1
            comm.close()
    assert min(called, lost) > 0


def test_a_close_cut_short_can_be_made_again() -> None:
    for number in places():
        comm = ftcomm.init("none")
        comm.ibarrier().wait()
        engine = comm.engine(1)
        engine.push(lambda: None)
        engine.wait()
        if not interrupted(comm.close, number, *PATH, where=BY_SIGNAL):
            break
        comm.close()
        assert comm.is_over
    assert number > 10


def test_a_wait_cut_short_can_be_made_again() -> None:
    for number in places():
        comm = ftcomm.init("none")
        engine, x = comm.engine(1), np.ones(3)
        engine.push(lambda: None, mutate=[x])
        engine.wait()
        if not interrupted(lambda e=engine, x=x: e.wait_for(x), number, *PATH, where=BY_SIGNAL):
            comm.close()
            break
        engine.wait_for(x)
        engine.wait()
        comm.close()
    assert number > 30


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
