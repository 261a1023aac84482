"""The engine of tasks in a group of one: what runs when, and who is told what went wrong."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import ftcomm
from ftcomm.errors import ClosedError, ForkError, ThreadError
from ftcomm.nonblocking.queue import MAX_PENDING
from ftcomm.tasks.task_engine import TaskEngine

WITHIN_S = 60.0  # a hang is a failure; nothing here takes a second
Steps = some.lists(
    some.tuples(
        some.sampled_from(["mix", "allreduce", "broadcast"]),
        some.integers(0, 3),
        some.integers(0, 3),
        some.integers(0, 3),
    ),
    max_size=30,
)


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


def allowed(event: threading.Event) -> None:
    assert event.wait(WITHIN_S)


def raiser(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


# --- order --------------------------------------------------------------------------------------


def mixed(a: Any, b: Any, c: Any) -> Any:
    return a * 3.0 + b * 5.0 - c + 1.0


@settings(max_examples=30)
@given(steps=Steps, workers=some.integers(1, 4))
def test_any_program_gives_what_one_by_one_gives(steps: Any, workers: int) -> None:
    alone = [np.full(50, float(i)) for i in range(4)]
    for what, a, b, c in steps:
        if what == "mix":
            alone[c][...] = mixed(alone[a], alone[b], alone[c])
    arrays = [np.full(50, float(i)) for i in range(4)]
    with ftcomm.init("none") as comm, comm.engine(workers) as engine:
        for what, a, b, c in steps:
            if what == "mix":
                x, y, z = arrays[a], arrays[b], arrays[c]

                def mix(x: Any = x, y: Any = y, z: Any = z) -> None:
                    z[...] = mixed(x, y, z)

                engine.push(mix, read=[x, y], mutate=[z])
            else:
                getattr(engine, what)(arrays[a])
        engine.wait()
        assert comm.seqno == sum(what != "mix" for what, *_ in steps)
    assert [x.tobytes() for x in arrays] == [x.tobytes() for x in alone]


def test_functions_that_share_nothing_run_at_once(comm: ftcomm.Communicator) -> None:
    engine, meeting = comm.engine(), threading.Barrier(2)
    for _ in range(2):
        engine.push(lambda: meeting.wait(WITHIN_S), mutate=[engine.var()])
    engine.wait()
    assert not meeting.broken


def test_collectives_keep_their_order_whichever_is_ready_first(comm: ftcomm.Communicator) -> None:
    """On another rank the other one may be ready first."""
    engine, door = comm.engine(), threading.Event()
    first, second = np.zeros(1), np.zeros(2)
    ran: list[int] = []
    run = comm._session.engine.run

    def spy(call: Any) -> Any:
        ran.append(len(call.sendbuf))
        return run(call)

    comm._session.engine.run = spy  # type: ignore[method-assign]  # looked at where the engine gets it
    engine.push(lambda: allowed(door), mutate=[first])
    engine.allreduce(first)
    engine.allreduce(second)
    with comm._nonblocking.queue._lock:
        assert not comm._nonblocking.queue._is_next_due()  # though the second one is ready
    door.set()
    engine.wait()
    assert ran == [1, 2]


def test_a_call_returns_the_array_that_the_next_task_reads(comm: ftcomm.Communicator) -> None:
    with comm.engine() as engine:
        a, seen = np.zeros(3), []
        engine.push(lambda: a.fill(2.0), mutate=[a])
        b = engine.allreduce(a, out=np.empty(3))
        engine.push(lambda: seen.append(b.tolist()), read=[b])
        assert engine.broadcast(a) is a
        assert engine.allreduce(a) is a
    assert seen == [[2.0, 2.0, 2.0]]


def test_a_collective_sees_what_was_written_before_and_not_what_is_written_after(
    comm: ftcomm.Communicator,
) -> None:
    engine, x, out = comm.engine(), np.zeros(3), np.zeros(3)

    def fill(value: float) -> Callable[[], None]:
        return lambda: x.fill(value)

    engine.push(fill(1), mutate=[x])
    engine.allreduce(x, out=out)
    engine.push(fill(2), mutate=[x])
    engine.wait()
    assert (x.tolist(), out.tolist()) == ([2] * 3, [1] * 3)


def test_a_synchronous_call_comes_behind_what_was_pushed(comm: ftcomm.Communicator) -> None:
    engine, x, door = comm.engine(), np.zeros(3), threading.Event()
    engine.push(lambda: allowed(door), mutate=[x])
    engine.allreduce(x)
    threading.Timer(0.01, door.set).start()
    comm.barrier()
    assert (door.is_set(), comm.seqno) == (True, 2)


def test_who_waits_for_a_variable_waits_for_no_other(comm: ftcomm.Communicator) -> None:
    engine, x, other, door = comm.engine(), np.zeros(3), engine_var(comm), threading.Event()
    engine.push(lambda: allowed(door), mutate=[other])
    engine.push(lambda: x.fill(7), mutate=[x])
    engine.wait_for(x)
    assert (x.tolist(), door.is_set()) == ([7] * 3, False)
    door.set()


def engine_var(comm: ftcomm.Communicator) -> Any:
    return comm.engine().var("of another engine")


def test_a_task_too_many_waits_for_room(comm: ftcomm.Communicator) -> None:
    engine, door, ran = comm.engine(1), threading.Event(), []
    engine.push(lambda: allowed(door))
    for number in range(MAX_PENDING - 1):
        engine.push(lambda number=number: ran.append(number))
    threading.Timer(0.01, door.set).start()
    engine.push(lambda: ran.append("last"))
    assert door.is_set()
    engine.wait()
    assert ran == [*range(MAX_PENDING - 1), "last"]


# --- errors -------------------------------------------------------------------------------------


def test_an_error_skips_what_depends_on_it_and_is_raised_by_whoever_waits(
    comm: ftcomm.Communicator,
) -> None:
    engine, ran = comm.engine(), []
    a, b, c = (engine.var(name) for name in "abc")
    engine.push(raiser(ZeroDivisionError("a")), mutate=[a])
    engine.push(lambda: ran.append("b"), read=[a], mutate=[b])
    engine.push(lambda: ran.append("c"), mutate=[c])
    engine.wait_for(c)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="a"):
            engine.wait_for(b)
    with pytest.raises(ZeroDivisionError, match="a"):
        engine.wait()
    engine.push(lambda: ran.append("again"), read=[a, b])
    engine.wait()
    assert ran == ["c", "again"]


def test_of_several_errors_the_first_pushed_is_raised(comm: ftcomm.Communicator) -> None:
    engine, door = comm.engine(), threading.Event()

    def late() -> None:
        allowed(door)
        raise ValueError("first")

    def early() -> None:
        door.set()
        raise ValueError("second")

    engine.push(late)
    engine.push(early)
    with pytest.raises(ValueError, match="first"):
        engine.wait()


def test_a_collective_that_is_skipped_takes_along_the_later_ones(
    comm: ftcomm.Communicator,
) -> None:
    engine, x, y = comm.engine(), np.ones(3), np.ones(3)
    engine.push(raiser(ZeroDivisionError("x")), mutate=[x])
    engine.allreduce(x)
    engine.allreduce(y)
    with pytest.raises(ZeroDivisionError, match="x"):
        engine.wait_for(y)
    with pytest.raises(ZeroDivisionError, match="x"):
        engine.wait()
    engine.allreduce(x)
    engine.wait()
    comm.barrier()
    assert comm.seqno == 2


def heard_early(comm: ftcomm.Communicator, error: Exception) -> tuple[Any, Any, Any]:
    """The engine, an array whose collective is skipped, and the door of another one before it.

    The user has heard of `error` when this returns, and the collective has yet to have its turn.
    """
    engine, x, held, door = comm.engine(2), np.ones(3), np.ones(3), threading.Event()
    engine.push(lambda: allowed(door), mutate=[held])
    engine.allreduce(held)
    engine.push(raiser(error), mutate=[x])
    engine.allreduce(x)
    with pytest.raises(ValueError, match="f"):
        engine.wait_for(x)
    return engine, x, door


def test_a_call_after_an_error_of_a_variable_runs(comm: ftcomm.Communicator) -> None:
    """A rank whose thread of collectives is quicker has no error left to raise there."""
    engine, _, door = heard_early(comm, ValueError("f"))
    door.set()
    assert comm.allreduce(np.ones(2)).tolist() == [1, 1]
    with pytest.raises(ValueError, match="f"):
        engine.wait()
    comm.barrier()
    assert comm.seqno == 3


def test_an_error_heard_early_takes_along_calls_before(comm: ftcomm.Communicator) -> None:
    error = ValueError("f")
    engine, x, door = heard_early(comm, error)
    after = [comm.iallreduce(number) for number in range(2)]
    engine.allreduce(x)  # the error stays with it until `wait`
    behind = comm.iallreduce(2)
    with pytest.raises(ValueError, match="f"):
        engine.wait_for(x)
    last = comm.iallreduce(3)
    door.set()
    assert [handle.wait(WITHIN_S) for handle in (*after, last)] == [0, 1, 3]
    assert behind.exception(WITHIN_S) is error
    with pytest.raises(ValueError, match="f"):
        engine.wait()
    assert comm.seqno == 4


def test_an_error_not_heard_again_is_kept(comm: ftcomm.Communicator) -> None:
    """It belongs to a collective that was pushed after the user had heard of it."""
    engine, x, door = heard_early(comm, ValueError("f"))
    engine.allreduce(x)
    door.set()
    with pytest.raises(ValueError, match="f"):
        comm.barrier()
    with pytest.raises(ValueError, match="f"):
        engine.wait()
    comm.barrier()
    assert comm.seqno == 2


def test_an_error_that_nobody_waits_for_is_raised_at_the_end_of_the_block() -> None:
    with pytest.raises(ZeroDivisionError, match="lost"), ftcomm.init("none") as comm:
        comm.engine().push(raiser(ZeroDivisionError("lost")))
    assert comm.is_over


def test_an_exception_that_leaves_the_block_ends_what_has_not_begun() -> None:
    entered, door = threading.Event(), threading.Event()
    engines: list[TaskEngine] = []

    def first() -> None:
        entered.set()
        allowed(door)

    def leave_in_the_middle() -> None:
        with ftcomm.init("none") as comm:
            engines.append(engine := comm.engine(1))
            x = np.zeros(3)
            engine.push(first, mutate=[x])
            engine.push(lambda: pytest.fail("it has begun"), mutate=[x])
            engine.allreduce(x)
            allowed(entered)
            raise KeyError("the script's")

    with pytest.raises(KeyError, match="the script's"):
        leave_in_the_middle()
    door.set()
    with pytest.raises(ClosedError):
        engines[0].wait()


def test_an_exception_that_leaves_an_engine_and_is_handled_leaves_the_job_alone() -> None:
    entered, door, ran = threading.Event(), threading.Event(), []

    def first() -> None:
        entered.set()
        allowed(door)
        ran.append("first")

    with ftcomm.init("none") as comm:
        with contextlib.suppress(KeyError), comm.engine(1) as engine:
            x, y = np.zeros(3), np.zeros(3)
            engine.push(first, mutate=[x])
            engine.push(lambda: ran.append("behind it"), mutate=[x])
            engine.push(lambda: ran.append("beside it"), read=[y])
            allowed(entered)
            raise KeyError("the script's")
        door.set()
        assert comm.allreduce(1) == 1
    assert ran == ["first"]


def test_errors_of_an_engine_that_an_exception_has_left_are_raised_at_the_end() -> None:
    """Though a function that was pushed before did not run."""
    entered, door = threading.Barrier(3), threading.Event()

    def first() -> None:
        entered.wait(WITHIN_S)
        allowed(door)

    def last() -> None:
        entered.wait(WITHIN_S)
        raise ZeroDivisionError("of a function that ran")

    def run() -> None:
        with ftcomm.init("none") as comm:
            with contextlib.suppress(KeyError), comm.engine(2) as engine:
                x, y = np.zeros(3), np.zeros(3)
                engine.push(first, mutate=[x])
                engine.push(lambda: pytest.fail("it has begun"), mutate=[x])
                engine.push(last, mutate=[y])
                entered.wait(WITHIN_S)
                raise KeyError("the script's")
            door.set()

    with pytest.raises(ZeroDivisionError, match="of a function that ran"):
        run()


def test_a_collective_that_misses_what_was_dropped_fails_the_calls_behind_it() -> None:
    entered, door = threading.Event(), threading.Event()

    def first() -> None:
        entered.set()
        allowed(door)

    def run() -> None:
        with ftcomm.init("none") as comm:
            with contextlib.suppress(KeyError), comm.engine(1) as engine:
                x = np.zeros(3)
                engine.push(first, mutate=[x])
                engine.push(lambda: pytest.fail("it has begun"), mutate=[x])
                engine.allreduce(x)
                allowed(entered)
                raise KeyError("the script's")
            door.set()

    with pytest.raises(ClosedError, match="closed before this function had begun"):
        run()


def test_ctrl_c_in_a_push_of_a_group_of_one_leaves_nothing_that_is_waited_for(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, x = comm.engine(), np.ones(3)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(comm._nonblocking.queue, "_take_ownership", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.allreduce(x)
    engine.wait()
    engine.allreduce(x)
    engine.wait()
    assert comm.seqno == 1


def test_ctrl_c_behind_the_placing_of_a_collective_does_not_end_its_task(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, x, door = comm.engine(), np.ones(3), threading.Event()
    engine.push(lambda: allowed(door), mutate=[x])
    put = comm._nonblocking.queue.put

    def put_and_raise(call: Any) -> None:
        put(call)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(comm._nonblocking.queue, "put", put_and_raise)
        with pytest.raises(KeyboardInterrupt):
            engine.allreduce(x)
    ended = [task.has_ended for task in engine._tasks.values()]
    door.set()
    engine.wait()
    assert (ended, comm.seqno) == ([False, False], 1)


def test_functions_may_neither_push_nor_wait(comm: ftcomm.Communicator) -> None:
    engine, x = comm.engine(), np.zeros(3)
    inside = [engine.wait, lambda: engine.push(print), lambda: engine.allreduce(x)]
    inside.append(lambda: engine.wait_for(x))
    for function in inside:
        engine.push(function)
        with pytest.raises(ThreadError, match="push and wait outside"):
            engine.wait()


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        (lambda engine: engine.push(print, read=np.zeros(3)), TypeError),
        (lambda engine: engine.push(print, mutate=engine.var()), TypeError),
        (lambda engine: engine.allreduce([1, 2]), TypeError),
        (lambda engine: engine.allreduce(np.zeros((3, 3)).T), ValueError),
        (lambda engine: engine.allreduce(np.zeros(3), "band"), TypeError),
        (lambda engine: engine.allreduce(np.zeros(3), out=np.zeros(4)), ValueError),
        (lambda engine: engine.broadcast(np.broadcast_to(1.0, (1,))), ValueError),
        (lambda engine: engine.broadcast(np.zeros(3), root=1), ValueError),
    ],
    ids=[
        "bare read",
        "bare variable",
        "list",
        "order",
        "op",
        "out",
        "read",
        "root",
    ],
)
def test_local_mistakes_push_nothing(
    comm: ftcomm.Communicator, mistake: Callable[[TaskEngine], None], error: type[Exception]
) -> None:
    engine = comm.engine()
    with pytest.raises(error):
        mistake(engine)
    engine.wait()
    assert comm.seqno == 0


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda engine: engine.push("text"), r"^push\(\) needs a callable, got str$"),
        (
            lambda engine: engine.push(print, mutate=["x"]),
            r"^read= and mutate= take arrays or variables from var\(\), not str$",
        ),
    ],
    ids=["function", "variable"],
)
def test_what_cannot_be_pushed_is_named(
    comm: ftcomm.Communicator, mistake: Callable[[TaskEngine], None], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        mistake(comm.engine())


@pytest.mark.parametrize("workers", [0, 65, "two"])
def test_a_wrong_number_of_workers_is_refused(comm: ftcomm.Communicator, workers: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="workers is"):
        comm.engine(workers)


def test_a_closed_engine_takes_nothing(comm: ftcomm.Communicator) -> None:
    with comm.engine() as engine:
        engine.push(lambda: None)
    with pytest.raises(ClosedError, match="this engine is closed"):
        engine.push(lambda: None)
    comm.engine().wait()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_neither_push_nor_wait(comm: ftcomm.Communicator) -> None:
    engine = comm.engine()
    engine.push(lambda: None)
    child = os.fork()
    if not child:
        refused = 0
        for forbidden in (engine.wait, lambda: engine.push(print), comm.engine):
            try:
                forbidden()
            except ForkError:
                refused += 1
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    engine.wait()


# --- messages -----------------------------------------------------------------------------------


class Messages:
    """Messages of a group of one, which go nowhere: what is sent is noted."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.at: dict[int, Callable[[], None]] = {}  # what happens in a send, by the array's number

    def array(self, x: Any, to: int, tag: bytes, *, copy: bool) -> Any:
        return SimpleNamespace(form=SimpleNamespace(to=to, tag=tag), number=int(x[0]))

    def send(self, message: Any) -> None:
        self.at.get(message.number, lambda: None)()
        self.sent.append(message.number)


def with_messages(engine: TaskEngine) -> Messages:
    messages: Any = Messages()
    engine._line.messages = messages
    return messages


def numbered(count: int) -> list[Any]:
    return [np.full(1, number) for number in range(count)]


def test_no_stream_of_messages_is_kept_behind_its_last_task(comm: ftcomm.Communicator) -> None:
    """A script may make up a tag for every step."""
    engine, x = comm.engine(), np.zeros(1)
    messages = with_messages(engine)
    for number in range(100):
        engine.send(x, 1, f"step {number}".encode())
    engine.push(lambda: None, mutate=[x])
    engine.wait_for(x)
    assert (len(messages.sent), engine._streams) == (100, {})


def test_messages_of_a_stream_keep_their_order_whichever_have_gone(
    comm: ftcomm.Communicator,
) -> None:
    engine = comm.engine(2)
    messages, arrays = with_messages(engine), numbered(3)
    may_begin, may_go, reached, looked = (threading.Event() for _ in range(4))

    def wait_in_the_second() -> None:
        reached.set()
        allowed(may_go)

    messages.at[0] = lambda: allowed(may_begin)
    messages.at[1] = wait_in_the_second
    engine.send(arrays[0], 1, b"t")
    engine.send(arrays[1], 1, b"t")
    may_begin.set()
    allowed(reached)  # the first has gone, and the second has yet to go
    engine.send(arrays[2], 1, b"t")
    engine.push(looked.set)  # behind the third, where that may run beside the second
    allowed(looked)
    sent = messages.sent.copy()
    may_go.set()
    engine.wait()
    assert sent == [0]
    assert messages.sent == [0, 1, 2]


def test_a_stream_whose_message_failed_skips_the_next_until_that_is_raised(
    comm: ftcomm.Communicator,
) -> None:
    engine = comm.engine()
    messages, arrays = with_messages(engine), numbered(3)
    lost, failed = OSError("lost"), threading.Event()

    def fail() -> None:
        failed.set()
        raise lost

    messages.at[0] = fail
    engine.send(arrays[0], 1, b"t")
    allowed(failed)
    engine.send(arrays[1], 1, b"t")
    with pytest.raises(OSError, match="lost"):
        engine.wait()
    assert (messages.sent, engine._streams) == ([], {})
    engine.send(arrays[2], 1, b"t")
    engine.wait()
    assert messages.sent == [2]
