"""Turns: one order, one thread, and a ownership that is where it should be."""

import datetime as dt
import gc
import math
import os
import re
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ftcomm.api.call_guard import CallGuard
from ftcomm.config.deadline import Limit, QueuedLimit
from ftcomm.control.changes import Changes
from ftcomm.errors import ClosedError, ForkError, FtcommError, JobLostError, ThreadError
from ftcomm.nonblocking.handle import Handle, QueuedCall
from ftcomm.nonblocking.queue import MAX_PENDING, RequestQueue

WITHIN_S = 60.0  # a hang is a failure; nothing here takes a second


class Line:
    """A call guard with its queue, and calls that block until they are released."""

    def __init__(self) -> None:
        self.heard: list[BaseException] = []
        self.guard = CallGuard(self._ended_by)
        self.queue = self.guard.pending = RequestQueue(self.guard)
        self.judge: Callable[[BaseException], bool] = lambda _: False
        self.ran: list[Any] = []
        self.doors: list[threading.Event] = []
        self.ended: list[str] = []

    def _ended_by(self, error: BaseException) -> FtcommError | None:
        self.heard.append(error)
        return error if isinstance(error, FtcommError) and self.judge(error) else None

    def begin(self, value: Any = None, work: Callable[[], Any] | None = None) -> Handle[Any]:
        def default() -> Any:
            self.ran.append(value)
            return value

        call = QueuedCall(work or default, "a call")
        return Handle(self.queue.run_alone(lambda: self.queue.put(call)), self.queue)

    def call(self, value: Any = None) -> None:
        self.guard.run(lambda: self.ran.append(value))

    def blocked(self) -> tuple[Handle[Any], threading.Event]:
        """A call that runs, and what lets it go."""
        entered, door = threading.Event(), threading.Event()

        def work() -> str:
            entered.set()
            assert door.wait(WITHIN_S)
            return "went through"

        self.doors.append(door)
        handle = self.begin(work=work)
        assert entered.wait(WITHIN_S)
        return handle, door

    def end(self) -> None:
        self.guard.is_closed = True
        self.queue.end(lambda: self.ended.append("abort"), lambda: self.ended.append("finish"))


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    for door in line.doors:
        door.set()
    line.end()


def in_thread(function: Callable[[], Any]) -> list[Any]:
    """Return the result of `function` on another thread, or its exception."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(function())
        except BaseException as error:  # noqa: BLE001 - handed to the test, which looks at it
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    return got


def raiser(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


# --- order --------------------------------------------------------------------------------------


def test_calls_run_in_their_order_and_not_in_that_of_their_waits(line: Line) -> None:
    first, door = line.blocked()
    others = [line.begin(number) for number in range(20)]
    assert [handle.done() for handle in (first, *others)] == [False] * 21
    door.set()
    assert [handle.wait() for handle in reversed(others)] == list(range(19, -1, -1))
    assert line.ran == list(range(20))


def test_a_synchronous_call_comes_behind_all_that_is_pending(line: Line) -> None:
    _, door = line.blocked()
    line.begin("before")
    threading.Timer(0.05, door.set).start()  # whenever it fires, the order is the same
    line.call("synchronous")
    line.begin("after").wait()
    assert line.ran == ["before", "synchronous", "after"]


def test_nothing_runs_beside_a_synchronous_call(line: Line) -> None:
    line.begin().wait()
    (refused,) = line.guard.run(lambda: in_thread(lambda: line.begin("beside")))
    assert (type(refused), line.ran) == (ThreadError, [None])


def test_a_gate_with_nothing_pending_asks_nobody(line: Line) -> None:
    line.begin().wait()
    line.guard.pending = None
    line.call()
    assert line.ran == [None, None]


def test_a_call_waits_until_it_is_due(line: Line) -> None:
    due = threading.Event()
    late = QueuedCall(lambda: line.ran.append("late"), "x")
    late.is_due = due.is_set
    line.queue.run_alone(lambda: line.queue.put(late))
    behind = line.begin("behind")
    line.queue.look_again()
    assert (late.is_done, behind.done(), line.ran) == (False, False, [])
    due.set()
    line.queue.look_again()
    behind.wait()
    assert line.ran == ["late", "behind"]


def test_a_call_too_many_waits_for_room(line: Line) -> None:
    _, door = line.blocked()
    handles = [line.begin(number) for number in range(MAX_PENDING)]
    threading.Timer(0.05, door.set).start()
    handles.append(line.begin(MAX_PENDING))  # returns only because the door is opened
    assert door.is_set()
    assert handles[-1].wait() == MAX_PENDING
    assert line.ran == list(range(MAX_PENDING + 1))


# --- errors -------------------------------------------------------------------------------------


def test_an_error_takes_along_all_that_was_called_before_it_was_heard(line: Line) -> None:
    _, door = line.blocked()
    error = ValueError("the third")
    failing, behind = line.begin(work=raiser(error)), line.begin("behind")
    door.set()
    with pytest.raises(ValueError, match="the third"):
        behind.wait()
    again = line.begin("after")
    for handle in (failing, behind):  # told as often as asked, and nothing new fails by it
        with pytest.raises(ValueError, match="the third"):
            handle.result()
    assert (again.wait(), line.ran) == ("after", ["after"])


def test_a_call_made_after_an_error_that_nobody_has_heard_of_fails_at_once(line: Line) -> None:
    failing = line.begin(work=raiser(ValueError("unheard")))
    assert line.queue._changed.wait_for(failing.done, WITHIN_S)
    late = line.begin("late")
    assert late.done()
    with pytest.raises(ValueError, match="unheard"):
        late.wait()
    assert line.ran == []


def test_an_error_of_a_handle_that_was_dropped_leaves_the_next_synchronous_call(line: Line) -> None:
    line.begin(work=raiser(ValueError("dropped")))
    gc.collect()
    with pytest.raises(ValueError, match="dropped"):
        line.call("never")
    line.call("once it was heard")
    assert line.ran == ["once it was heard"]


def test_an_end_of_the_job_is_raised_by_what_is_pending_and_by_every_later_call(line: Line) -> None:
    lost = JobLostError("all is lost")

    def judge(error: BaseException) -> bool:
        line.end()
        return error is lost

    line.judge = judge
    _, door = line.blocked()
    handles = [line.begin(work=raiser(lost)), line.begin("behind")]
    door.set()
    for ask in (handles[0].wait, handles[1].wait, line.call, line.begin):
        with pytest.raises(JobLostError, match="all is lost"):
            ask()
    assert (line.ran, line.ended) == ([], ["finish"])


# --- waiting ------------------------------------------------------------------------------------


def test_a_wait_with_a_limit_leaves_the_call_running(line: Line) -> None:
    handle, door = line.blocked()
    with pytest.raises(TimeoutError, match=r"a call is still pending after 0\.001 s"):
        handle.wait(0.001)
    door.set()
    assert handle.wait(WITHIN_S) == "went through"


@pytest.mark.parametrize("timeout", [dt.timedelta(milliseconds=1), 0, np.float32(0), Fraction()])
def test_a_wait_is_limited_by_a_duration(line: Line, timeout: Any) -> None:
    handle, door = line.blocked()
    for ask in (handle.wait, handle.result, handle.exception):
        with pytest.raises(TimeoutError, match=r"a call is still pending after 0(\.001)? s"):
            ask(timeout)
    door.set()
    assert handle.wait(dt.timedelta.max) == "went through"  # longer than a lock can wait


NO_SECONDS = "timeout is a {}, must be a number of seconds or a datetime.timedelta"
NO_LIMIT = "timeout is {}, must be 0 or more, finite; None is no limit"


@pytest.mark.parametrize(
    ("timeout", "error", "words"),
    [
        (True, TypeError, NO_SECONDS.format("bool")),
        ("1", TypeError, NO_SECONDS.format("str")),
        (np.timedelta64(1, "s"), TypeError, NO_SECONDS.format("timedelta64")),
        (
            dt.datetime(2030, 1, 1, tzinfo=dt.UTC),
            TypeError,
            "timeout is a datetime, a time of the clock",
        ),
        (math.nan, ValueError, NO_LIMIT.format("nan")),
        (math.inf, ValueError, NO_LIMIT.format("inf")),
        (-(10**400), ValueError, NO_LIMIT.format("-inf")),
        (dt.timedelta(seconds=-1), ValueError, NO_LIMIT.format("-1")),
    ],
)
def test_what_is_no_limit_of_a_wait_is_refused(
    line: Line, timeout: Any, error: type[Exception], words: str
) -> None:
    handle = line.begin("done")
    assert handle.wait() == "done"  # refused all the same: no script should depend on its speed
    for ask in (handle.wait, handle.result, handle.exception):
        with pytest.raises(error, match=re.escape(words)):
            ask(timeout)


def test_ctrl_c_in_a_wait_is_heard_as_one_in_a_call(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, door = line.blocked()

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Changes, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
    assert [type(error) for error in line.heard] == [KeyboardInterrupt]
    door.set()
    assert handle.wait() == "went through"


def test_any_thread_may_wait(line: Line) -> None:
    handle = line.begin("result")
    assert in_thread(handle.wait) == ["result"]


def test_a_function_inside_a_call_can_neither_wait_nor_call(line: Line) -> None:
    got: list[Any] = []

    def work() -> None:
        for forbidden in (later.wait, line.call, line.begin):
            with pytest.raises(ThreadError) as caught:
                forbidden()
            got.append(caught.type)

    _, door = line.blocked()
    inside, later = line.begin(work=work), line.begin("later")
    door.set()
    inside.wait()
    assert (got, later.wait()) == ([ThreadError] * 3, "later")


def test_of_two_threads_that_call_at_once_one_is_refused(line: Line) -> None:
    _, door = line.blocked()
    refused = line.queue.run_alone(lambda: in_thread(line.begin) + in_thread(line.call))
    assert [type(error) for error in refused] == [ThreadError] * 2
    door.set()


# --- the end ------------------------------------------------------------------------------------


def test_who_leaves_ends_what_runs_and_drops_what_waits(line: Line) -> None:
    running, door = line.blocked()
    waiting = line.begin("never")
    line.queue.end(door.set, lambda: line.ended.append("finish"))
    assert (running.wait(), line.ended, line.ran) == ("went through", ["finish"], [])
    with pytest.raises(ClosedError, match="ended before this call had its turn"):
        waiting.wait()


def test_a_users_function_that_does_not_end_is_not_waited_for(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftcomm.nonblocking.queue.LEAVE_WITHIN_S", 0.001)
    _, door = line.blocked()
    finished = threading.Event()
    line.queue.end(lambda: None, finished.set)
    assert not finished.is_set()  # its sockets are still in use
    door.set()
    assert finished.wait(WITHIN_S)


def test_a_call_that_waits_for_a_users_function_is_released_at_the_end(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread ends the communicator while the function goes on."""
    monkeypatch.setattr("ftcomm.nonblocking.queue.LEAVE_WITHIN_S", 0.001)
    line.blocked()
    waits, is_settled = threading.Event(), line.queue._is_settled

    def looked() -> bool:
        waits.set()
        return is_settled()

    monkeypatch.setattr(line.queue, "_is_settled", looked)
    ends = threading.Thread(target=lambda: waits.wait(WITHIN_S) and line.end())
    ends.start()
    [raised] = in_thread(line.call)
    assert isinstance(raised, ClosedError)
    ends.join()


def test_a_call_that_had_looked_before_the_end_does_not_get_the_engine_behind_it(
    line: Line,
) -> None:
    """It would use descriptors that are closed by then."""
    handle, door = line.blocked()
    line.queue.end(door.set, lambda: line.ended.append("finish"))
    assert (handle.wait(), line.ended) == ("went through", ["finish"])
    assert not line.guard.lock.take()


def test_an_end_without_any_nonblocking_call_is_immediate(line: Line) -> None:
    line.end()
    line.end()
    assert line.ended == ["finish"]
    with pytest.raises(ClosedError, match="is closed"):
        line.begin()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_neither_wait_nor_call(line: Line) -> None:
    handle, door = line.blocked()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        words = []
        for forbidden in (handle.wait, line.begin, line.call):
            try:
                forbidden()
            except ForkError as error:
                words.append(error.cause)
        os.write(writing, "\n".join(words).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        words = told.read().splitlines()
    os.waitpid(child, 0)
    parents = "belongs to the parent process"
    assert words == [f"this handle {parents}", *[f"this communicator {parents}"] * 2]
    door.set()
    assert handle.wait() == "went through"


def test_the_limit_that_passes_first_is_that_of_a_queued_call(line: Line) -> None:
    """The running call has a limit of its own, which its thread has told elsewhere."""
    limits = [QueuedLimit(Limit(9.0, at), b"", f"job.py:{at}") for at in (30.0, 10.0, 20.0)]
    assert line.queue.earliest_limit() is None
    first, door = line.blocked()
    calls = [QueuedCall(lambda: None, "x", limit) for limit in (limits[0], None, *limits[1:])]
    line.queue.run_alone(lambda: [line.queue.put(call) for call in calls])
    assert line.queue.earliest_limit() == limits[1]
    door.set()
    first.wait()
    Handle(calls[-1], line.queue).wait()
    assert line.queue.earliest_limit() is None


def test_a_call_that_waits_for_its_input_has_a_limit(line: Line) -> None:
    """Nothing runs, and the call behind it has a limit too, which passes first."""
    due = threading.Event()
    limits = [QueuedLimit(Limit(9.0, at), b"", "job.py:1") for at in (30.0, 10.0)]
    calls = [QueuedCall(lambda: None, "x", limit) for limit in limits]
    calls[0].is_due = due.is_set
    said = []
    for call in calls:
        line.queue.run_alone(lambda call=call: line.queue.put(call))
        said.append(line.queue.earliest_limit())
    due.set()
    line.queue.earliest_limit()  # so that what is due is looked at again
    Handle(calls[1], line.queue).wait(WITHIN_S)
    assert said == [
        limits[0]._replace(waits_for="the tasks that fill its array"),
        limits[1]._replace(waits_for="a call that waits for the tasks that fill its array"),
    ]
    assert line.queue.earliest_limit() is None


def test_a_blocking_call_that_waits_for_its_turn_has_a_limit(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, is_settled = threading.Event(), line.queue._is_settled

    def looked() -> bool:
        waits.set()
        return is_settled()

    def call() -> None:
        line.guard.run(lambda: line.ran.append("blocking"), Limit(9.0, 10.0), b"its signature")

    monkeypatch.setattr(line.queue, "_is_settled", looked)
    _, door = line.blocked()
    thread = threading.Thread(target=call)
    thread.start()
    assert waits.wait(WITHIN_S)
    said = line.queue.earliest_limit()
    door.set()
    thread.join(WITHIN_S)
    assert said is not None
    assert (said.limit, said.signature, said.waits_for) == (Limit(9.0, 10.0), b"its signature", "")
    assert said.site.startswith("test_queue.py:")
    assert (line.ran, line.queue.earliest_limit()) == (["blocking"], None)


def test_an_interrupt_where_a_failure_is_raised_is_heard_of_and_loses_nothing(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.begin(work=raiser(ValueError("lost")))
    interrupt: list[BaseException] = []

    def cut_short() -> None:
        interrupt.append(KeyboardInterrupt())
        raise interrupt[0]

    with monkeypatch.context() as patched:
        patched.setattr(line.queue, "_block_if_idle", cut_short)
        with pytest.raises(KeyboardInterrupt):
            line.call()
    assert line.heard[-1] is interrupt[0]
    with pytest.raises(ValueError, match="lost"):
        line.call()
    line.call("behind")
    assert line.ran == ["behind"]
