"""Tasks: functions and collectives that run as soon as what they use is ready.

A script pushes them in the order in which it would run them one by one, and says what each reads
and mutates.  Functions run on a few threads of the engine, many at once where they do not depend on
each other.  Collectives keep the order in which they were pushed, which is the same on all ranks:
each has its place in the communicator's line of nonblocking calls from the push on, and is merely
waited for there until its array is ready.
"""

import operator
import os
import queue
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from ftcomm.api.outputs import Result
from ftcomm.collectives.op_argument import AnyOp
from ftcomm.config.deadline import Duration
from ftcomm.config.plurals import kind_of
from ftcomm.control.changes import Changes
from ftcomm.diagnostics.error_text import bound_to_process, raised_anew
from ftcomm.errors import ClosedError, ForkError, ThreadError, ThreadLimitError
from ftcomm.memory.message_value import MessageValue
from ftcomm.nonblocking.handle import QueuedCall
from ftcomm.nonblocking.nonblocking_calls import NonblockingCalls
from ftcomm.nonblocking.queue import MAX_PENDING
from ftcomm.nonblocking.threads import start_thread
from ftcomm.protocol.signature import CallTag, Tag
from ftcomm.requests.call_site import passes_on
from ftcomm.requests.message_request import packed_tag
from ftcomm.requests.request import CallOptions
from ftcomm.tasks.dependencies import Dependencies, Ready, Saved, Skip

passes_on(__file__)

MAX_WORKERS = 64  # a wrong number is found before it is as many threads


class Variable:
    """Something that tasks read and mutate, where no array stands for it."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<ftcomm variable {self._name}>"


_Stream = tuple[str, int, bytes]
_Failure = tuple[int, BaseException]  # of the task with this number


@dataclass(slots=True)
class _Task:
    """A task that has not ended: a function, a collective, or, of neither, somebody who waits."""

    variables: tuple[Any, ...]  # what it uses, kept alive with their identities
    function: Callable[[], object] | None = None  # what runs on a thread of the engine
    number: int = -1  # in the order of pushing; -1 until it is pushed
    is_collective: bool = False  # it runs when it has its turn among the nonblocking calls
    is_receive: bool = False  # its function only begins it; it ends when a message has come
    # Whose messages it sends or receives, behind those that were pushed before.
    stream: _Stream | None = None
    is_due: bool = False  # it stands at the head of all its lines, or is skipped
    skipped_by: BaseException | None = None  # the error of an earlier task
    # A collective may end before it is due, by an error of the communicator's.
    has_ended: bool = False
    error: BaseException | None = None


class TaskEngine:
    """Made by ``comm.engine()``; used by one thread at a time, as the communicator is.

    A variable is what `var` gives, or an array, known by its identity: another view of the same
    memory is another variable.  A task may use nothing that it does not name.  Functions run on
    other threads: they may send and receive messages, but may not call the engine, and may not make
    collectives or checkpoints.  What they raise skips the tasks that use what they mutate, and
    those that use what these mutate.  The error is raised by `wait`, or by `wait_for` of such a
    variable.

    A collective that is skipped cannot leave its place to the next: all later ones fail with it.

    In a `with` block the end waits, unless an exception leaves it. Functions that have not begun
    then do not run; where the script handles the exception, the job goes on without them, unless a
    collective needed what they mutate.

    Attributes:
        is_closed: nothing can be pushed any more.
    """

    def __init__(self, line: NonblockingCalls, workers: int) -> None:
        """Of the communicator that runs its collectives in `line`."""
        self._line, self._queue = line, line.queue
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._changed = Changes(self._lock)
        self._lines = Dependencies()
        self._tasks: dict[int, _Task] = {}
        self._pushed = 0
        self._failures: list[_Failure] = []
        self._dropped: list[_Failure] = []  # of functions, and what waited for them, alone
        self._not_begun = ClosedError("the engine was closed before this function had begun")
        self._failed_variables: list[Any] = []  # whose identities still mean something
        self._ready: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._streams: dict[_Stream, Variable] = {}  # of tasks that have not ended, or failed
        self._wanted = _checked_workers(workers)
        self._workers: list[threading.Thread] = []
        self.is_closed = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies and pickles.

        Raises:
            TypeError: always.
        """
        raise bound_to_process("a task engine", "pass on the arrays that its tasks mutate")

    @property
    def is_spent(self) -> bool:
        """True once it is closed, with nothing that is waited for and no error to be raised."""
        with self._lock:
            return self.is_closed and not (self._tasks or self._failures)

    # --- pushing ------------------------------------------------------------------------------

    def var(self, name: str = "") -> Variable:
        """A new variable; `name` is for its text alone."""
        return Variable(name or "without a name")

    def push(
        self,
        function: Callable[[], object],
        read: Iterable[Any] = (),
        mutate: Iterable[Any] = (),
    ) -> None:
        """Run `function` when all that was pushed before has left it what it uses.

        What it returns is dropped.  At most 1,024 tasks wait; one more waits here.

        Args:
            function: without arguments.
            read: arrays or variables that it only reads.
            mutate: those that it changes, reading them or not.

        Raises:
            TypeError: `function` cannot be called, or something is no array or variable.
            ThreadLimitError: not one thread can be started; nothing was pushed.
            FtcommError: called by two threads at once, or after the end.
        """
        if not callable(function):
            raise TypeError(f"push() needs a callable, got {type(function).__name__}")
        reads, mutates = _listed(read), _listed(mutate)
        self._check_thread()
        task = _Task(reads + mutates, function)
        self._queue.run_alone_or_in_callback(lambda: self._add(reads, mutates, task))

    def allreduce(
        self,
        array: Result,
        op: AnyOp = "sum",
        *,
        out: Result | None = None,
        algorithm: str | None = None,
        deadline: Duration | None = None,
        tag: CallTag = None,
    ) -> Result:
        """An `allreduce` of what `array` will hold, into itself or into `out`.

        Args:
            array: C-contiguous, in native byte order.
            op: as in the communicator's, like all that follows.
            out: where to put the result; default `array` itself.
            algorithm: for this call.
            deadline: seconds or a timedelta, from the push on.
            tag: as in the communicator's.

        Returns:
            the array that will hold the result: what reads it names it, and runs when it is there.

        Raises:
            TypeError, ValueError: local mistakes; nothing is pushed.
        """
        place = _checked_array(array) if out is None else out
        self._check_thread()

        def add() -> None:
            options = CallOptions(op, algorithm=algorithm, deadline=deadline, tag=tag)
            built = self._line.calls.allreduce(_checked_array(array), options, place, copy=True)
            self._add_collective(self._line.queued(built), [array], [place])

        self._queue.run_alone(add)
        return place

    def broadcast(
        self, array: Result, root: int = 0, *, deadline: Duration | None = None, tag: CallTag = None
    ) -> Result:
        """A `broadcast` of what the root's `array` will hold, into all ranks' `array`.

        Returns:
            `array`, as `allreduce` returns its place.

        Raises:
            TypeError, ValueError: local mistakes; nothing is pushed.
        """
        place = _checked_array(array)
        if not place.flags.writeable:
            raise ValueError("array is read-only")
        self._check_thread()

        def add() -> None:
            options = CallOptions(root=root, deadline=deadline, tag=tag)
            built = self._line.calls.broadcast(place, options, place, copy=True)
            self._add_collective(self._line.queued(built), [], [place])

        self._queue.run_alone(add)
        return place

    def send(self, array: Result, to: int, tag: Tag = 0) -> None:
        """Send what `array` will hold to one rank; see `Communicator.send`.

        Sends of one tag to one rank keep the order in which they were pushed.

        Args:
            array: as for `allreduce`.
            to: the rank that receives it.
            tag: of the message.

        Raises:
            TypeError, ValueError: local mistakes; nothing is pushed.
        """
        messages = self._line.messages
        message = messages.array(_checked_array(array), to, tag, copy=True)

        def run() -> None:
            messages.send(message)

        self._push_message(("to", message.form.to, message.form.tag), [array], [], run)

    def recv(self, array: Result, source: int, tag: Tag = 0) -> Result:
        """Receive into `array` the next message of one rank; see `Communicator.recv`.

        No thread of the engine waits for it.  Receives of one rank and tag keep their order.

        Args:
            array: of the message's dtype and shape; as for `allreduce`.
            source: the rank that sends it.
            tag: of the message.

        Returns:
            `array`, as `allreduce` returns its place.

        Raises:
            TypeError, ValueError: local mistakes; nothing is pushed.
        """
        messages, place = self._line.messages, _checked_array(array)
        asked = messages.receive(source, tag, None, place, None)
        task = _Task((place,), is_receive=True)

        def done(value: MessageValue | None, error: BaseException | None) -> None:
            if value is not None:
                error = _error_of(asked.finish, value)
            with self._lock:
                if task.number in self._tasks:
                    self._end(task.number, task, error)
            self._queue.look_again()  # a collective may be due

        def run() -> None:
            messages.post(messages.posted(asked, done))

        task.function = run
        self._push_message(("of", asked.form.source, packed_tag(tag)), [], [place], run, task)
        return place

    def _push_message(
        self,
        stream: _Stream,
        read: list[Any],
        mutate: list[Any],
        run: Callable[[], None],
        task: _Task | None = None,
    ) -> None:
        """Push a send or a receive behind those of its stream that were pushed before."""
        self._check_thread()
        made = task or _Task((*read, *mutate), run)
        made.stream = stream
        self._queue.run_alone_or_in_callback(lambda: self._add(read, mutate, made))

    # --- waiting ------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait for all that was pushed.

        Raises:
            BaseException: the error of the first task, in the order of pushing, that failed.
                All variables are sound again then.
        """
        failures, dropped = self._settled()
        self._raise_first(failures + dropped)

    def wait_for_what_began(self) -> None:
        """The same, but functions that `close` has kept from running are no errors.

        An exception that left the engine's block has been handled where the job goes on.
        """
        failures, _ = self._settled()
        self._raise_first(failures)

    def _settled(self) -> tuple[list[_Failure], list[_Failure]]:
        """Wait for all that was pushed; returns failures, and what was dropped, to be raised."""
        self._check_thread()
        self._wait_until(lambda: not self._tasks)
        with self._lock:  # what a callback has pushed in between is left to the next `wait`
            failures, self._failures = self._failures, []
            dropped, self._dropped = self._dropped, []
            self._failed_variables.clear()
            self._lines.forget_errors()
            for stream in list(self._streams):  # those that failed
                self._forget(stream)
        return failures, dropped

    def _raise_first(self, failures: list[_Failure]) -> None:
        for _, error in failures:
            self._queue.note_raised(error)
        if failures:
            raise min(failures, key=operator.itemgetter(0))[1]

    def wait_for(self, variable: Any) -> None:
        """Wait for all that was pushed and mutates `variable`; then it may be read here.

        Raises:
            BaseException: the error for which it has not been mutated, kept until `wait`.
        """
        self._check_thread()
        marker = _Task((variable,))
        self._queue.run_alone(lambda: self._add([variable], [], marker))
        self._wait_until(lambda: marker.has_ended)
        if marker.error is not None:
            self._queue.note_raised(marker.error)
            raise raised_anew(marker.error)

    def _wait_until(self, holds: Callable[[], object]) -> None:
        try:
            self._changed.wait_for(holds)
        except BaseException as error:
            self._queue.heed(error)
            raise

    def close(self) -> None:
        """End the engine's threads; functions that have not begun do not run."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        for _ in self._workers:
            self._ready.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.wait()
        finally:
            self.close()

    # --- one task -----------------------------------------------------------------------------

    def _add(self, read: Sequence[Any], mutate: Sequence[Any], task: _Task) -> None:
        """Give a task its number, and its places in the lines of its variables."""
        keys = [_key(x) for x in read], [_key(x) for x in mutate]
        self._changed.wait_for(lambda: len(self._tasks) < MAX_PENDING)
        with self._lock:  # a callback may have pushed in between: there is one more then
            if self.is_closed:
                raise ClosedError("this engine is closed")
            if task.function is not None:
                self._start_worker()
            if task.stream is not None:  # with the lock: the entry goes with the stream's last task
                order = Variable(f"of messages {task.stream[0]}")
                keys[1].append(self._streams.setdefault(task.stream, order))
            saved = self._lines.saved(keys[0] + keys[1])
            task.number = self._pushed
            self._pushed += 1
            try:
                self._tasks[task.number] = task
                self._act(self._lines.push(task.number, *keys))
            except BaseException:  # Ctrl-C: nobody may wait for half a task
                self._take_back(task, saved)
                raise

    def _take_back(self, task: _Task, saved: Saved) -> None:
        """Under the lock: a push was cut short; no other task has heard of it."""
        self._tasks.pop(task.number, None)
        self._lines.take_back(task.number, saved)
        for failures in (self._failures, self._dropped):
            failures[:] = [failure for failure in failures if failure[0] != task.number]
        self._forget(task.stream)

    def _forget(self, stream: _Stream | None) -> None:
        """Under the lock: drop a stream's entry where no task and no error needs it."""
        if stream in self._streams and not self._lines.has(self._streams[stream]):
            del self._streams[stream]

    def _add_collective(
        self, call: QueuedCall[Any], read: Sequence[Any], mutate: Sequence[Any]
    ) -> None:
        """Put a collective into its lines, and into that of the nonblocking calls."""
        task = _Task((*read, *mutate), is_collective=True)
        work = call.work
        assert work is not None, "it has not had its turn"

        def run() -> object:
            if task.skipped_by is not None:
                raise task.skipped_by
            return work()

        def on_done(error: BaseException | None) -> None:
            with self._lock:
                if task.has_ended or task.number not in self._tasks:
                    return
                task.has_ended, task.error = True, error
                if task.is_due:
                    self._leave(task.number, task)

        try:
            self._add(read, mutate, task)
            call.work, call.on_done = run, on_done
            call.is_due = lambda: task.is_due or self._line.job_has_ended
            self._queue.put(call)
        except BaseException:  # it has no place in the line of calls, or this incarnation has left
            if not self._queue.is_pending(call):  # else it ends with its own call
                on_done(None)
            raise

    def _act(self, decided: Sequence[Ready | Skip]) -> None:
        """Under the lock: let tasks run, or end those that will not."""
        for decision in decided:
            task = self._tasks[decision.task]
            task.is_due = True
            if isinstance(decision, Skip):
                task.skipped_by = decision.error
            if task.is_collective:
                if task.has_ended:
                    self._leave(decision.task, task)
            elif task.function is None or task.skipped_by is not None:
                self._end(decision.task, task, task.skipped_by)
            elif self.is_closed:
                self._end(decision.task, task, self._not_begun)
            else:
                self._ready.put(decision.task)

    def _end(self, number: int, task: _Task, error: BaseException | None) -> None:
        task.has_ended, task.error = True, error
        self._leave(number, task)

    def _leave(self, number: int, task: _Task) -> None:
        """Under the lock: a task that is due has ended; others may be due by that."""
        del self._tasks[number]
        if task.error is not None:
            # A collective that was skipped is missed by the other ranks.
            is_dropped = task.error is self._not_begun and not task.is_collective
            (self._dropped if is_dropped else self._failures).append((number, task.error))
            self._failed_variables += task.variables
        if task.skipped_by is None:
            self._act(self._lines.done(number, task.error))
        self._forget(task.stream)
        self._changed.notify_all()

    # --- our own threads ----------------------------------------------------------------------

    def _start_worker(self) -> None:
        """Under the lock: one more, as long as there are fewer than wanted."""
        if len(self._workers) >= self._wanted:
            return
        try:
            thread = start_thread(self._work, f"ftcomm-tasks-{len(self._workers)}")
        except ThreadLimitError:
            if not self._workers:  # one does the same as two, in more time
                raise
        else:
            self._workers.append(thread)

    def _work(self) -> None:
        with self._lock:
            if threading.current_thread() not in self._workers:  # Ctrl-C came in between
                return
        while (number := self._ready.get()) is not None:
            with self._lock:
                task = self._tasks.get(number)
                if task is None:  # taken back
                    continue
                error: BaseException | None = self._not_begun if self.is_closed else None
            if error is None:
                assert task.function is not None, "only functions come here"
                try:
                    task.function()
                except BaseException as raised:  # noqa: BLE001 - handed to who waits
                    error = raised
            if error is None and task.is_receive:  # who brings its message ends it
                continue
            with self._lock:
                self._end(number, task, error)
            self._queue.look_again()  # a collective may be due
            del task, error  # the next function may take long to come

    def _check_thread(self) -> None:
        """Refuse what would wait for itself, or for threads that a forked child has not."""
        if os.getpid() != self._pid:
            raise ForkError("this engine belongs to the parent process")
        if self._queue.is_own_thread or threading.current_thread() in self._workers:
            raise ThreadError("a function that an engine runs uses it; push and wait outside")


def _error_of(finish: Callable[[MessageValue], object], value: MessageValue) -> Exception | None:
    """Put a message where it is wanted; the error if its array cannot be written to any more."""
    try:
        finish(value)
    except Exception as error:  # noqa: BLE001 - this may be any thread; `wait` raises it
        return error
    return None


def _key(variable: Any) -> Hashable:
    """Return the key of an object among the dependencies, valid while the object is kept alive."""
    if isinstance(variable, Variable):
        return variable
    if isinstance(variable, np.ndarray):
        return id(variable)
    name = type(variable).__name__
    raise TypeError(f"read= and mutate= take arrays or variables from var(), not {name}")


def _listed(variables: Iterable[Any]) -> tuple[Any, ...]:
    """List the objects that `read` or `mutate` names."""
    if isinstance(variables, (np.ndarray, Variable)):  # an array of arrays would be taken for many
        raise TypeError("read and mutate are lists: put brackets around a single one")
    return tuple(variables)


def _checked_array(array: Any) -> np.ndarray[Any, Any]:
    """An array whose content is read when its turn comes, so it may not be copied before."""
    if not isinstance(array, np.ndarray):
        kind = kind_of(array)
        raise TypeError(f"the input is {kind}, must be a numpy array that tasks can mutate")
    if not (array.flags.c_contiguous and array.dtype.isnative):
        raise ValueError("the array is not C-contiguous in native byte order; copy it in a task")
    return array


def _checked_workers(workers: Any) -> int:
    """Check the number of threads that a user wants."""
    try:
        count = operator.index(workers)
    except TypeError:
        raise TypeError(f"workers is {kind_of(workers)}, must be a number") from None
    if not 1 <= count <= MAX_WORKERS:
        raise ValueError(f"workers is {count}, must be 1 to {MAX_WORKERS}")
    return count
