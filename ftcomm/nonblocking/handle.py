"""Handles: what a nonblocking call returns at once, and where its result appears."""

import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, cast

from ftcomm.config.deadline import Duration, QueuedLimit, checked_timeout
from ftcomm.diagnostics.error_text import bound_to_process, raised_anew
from ftcomm.nonblocking.callbacks import Callback

R = TypeVar("R")


class Unpacking(Generic[R]):
    """Makes a result once, on the thread that first asks for it."""

    def __init__(self, make: Callable[[], R]) -> None:
        """`make` runs functions of the user's."""
        self._make: Callable[[], R] | None = make
        self._lock = threading.Lock()

    def run(self, call: "QueuedCall[R]") -> None:
        """Give `call` its value, or the error that `make` raises."""
        with self._lock:
            if self._make is None:
                return
            try:
                call.value = self._make()
            except Exception as error:  # noqa: BLE001 - the user's own; `wait` raises it
                call.error = error
            self._make = None


class QueuedCall(Generic[R]):
    """One nonblocking call, as who runs it sees it.

    Attributes:
        work: what is called when its turn has come; None once it is done.
        what: the kind of call, for messages.
        limit: of the call's time, waiting for its turn included; None for no limit.
        is_due: asked before it may have its turn, None where it always may.
        on_done: told its error, or None, when it is done; under a lock: it may not wait.
        is_done: there is a `value`, or an `error`; or there is one to be unpacked.
        callbacks: the user's, to be run when it is done.
        unpacking: makes the value, for who first asks for it; None if it is there.
    """

    __slots__ = (
        "callbacks",
        "error",
        "is_done",
        "is_due",
        "limit",
        "on_done",
        "unpacking",
        "value",
        "what",
        "work",
    )

    def __init__(self, work: Callable[[], R], what: str, limit: QueuedLimit | None = None) -> None:
        """A call that runs as `work` when its turn has come."""
        self.work: Callable[[], R] | None = work
        self.what = what
        self.limit = limit
        self.is_due: Callable[[], bool] | None = None
        self.on_done: Callable[[BaseException | None], None] | None = None
        self.is_done = False
        self.value: R | None = None
        self.error: BaseException | None = None
        self.callbacks: deque[Callback] | None = None
        self.unpacking: Unpacking[R] | None = None

    def succeed(self, value: R) -> None:
        """It has returned `value`."""
        self.value, self.work = value, None
        self._end()

    def fail(self, error: BaseException) -> None:
        """It has raised `error`, or will not run because of it."""
        self.error, self.work = error, None
        self._end()

    def succeed_by(self, make: Callable[[], R]) -> None:
        """Its value is what `make` returns, which is called when the value is first asked for."""
        self.unpacking, self.work = Unpacking(make), None
        self._end()

    def _end(self) -> None:
        self.is_done = True
        if self.on_done is not None:
            self.on_done(self.error)


class Waited(Protocol):
    """Operations that a handle needs to wait for its call."""

    def wait_for(self, call: QueuedCall[Any], timeout: float | None) -> None:
        """Return when `call` is done.

        Raises:
            TimeoutError: it is not, after `timeout` seconds.
        """

    def note_raised(self, error: BaseException) -> None:
        """The user is being told of `error`."""

    def heed(self, error: BaseException) -> None:
        """`error` ends a wait; one that is no `Exception` ends the communicator too."""

    def call_back(self, call: QueuedCall[Any], callback: Callback) -> None:
        """Run `callback` when `call` is done."""


class Handle(Generic[R]):
    """One nonblocking call, as ``comm.iallreduce`` and the like return it.

    What was passed to the call belongs to it until `wait` or `result` has returned: inputs may not
    be written, nor ``out=`` read or written, before.  A handle may be dropped; its call runs all
    the same, and an error that it raises then leaves the next call.
    """

    __slots__ = ("__weakref__", "_call", "_line")

    def __init__(self, call: QueuedCall[R], line: Waited) -> None:
        """For the library alone: the handle of a `call` in a line of them."""
        self._call = call
        self._line = line

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies and pickles.

        Raises:
            TypeError: always.
        """
        raise bound_to_process("a handle", "wait for it, and pass on its result")

    def wait(self, timeout: Duration | None = None) -> R:
        """Wait for the call, and return its result.

        Args:
            timeout: seconds to wait, 0 or more, or a `datetime.timedelta`; None is no limit.  The
                job knows nothing of it: the call goes on, unlike one that was given a
                ``deadline=``.

        Raises:
            TimeoutError: the call is not done after `timeout`.  `CollectiveTimeoutError`, by which
                the job is over, is one too.
            TypeError, ValueError: `timeout` is no duration, whether the call is done or not.
            FtcommError and others: what the call raised, or one that was made before it.
        """
        error = self.exception(timeout)
        if error is not None:
            raise raised_anew(error)
        return cast("R", self._call.value)

    def result(self, timeout: Duration | None = None) -> R:
        """The same as `wait`, by the name that `concurrent.futures` has for it."""
        return self.wait(timeout)

    def exception(self, timeout: Duration | None = None) -> BaseException | None:
        """Wait as `wait` does, and return what it would raise of the call; None for a result.

        Raises:
            TimeoutError: the call is not done after `timeout`.
            TypeError, ValueError: `timeout` is no duration, as for `wait`.
        """
        call = self._call
        seconds = checked_timeout(timeout)
        try:
            if not call.is_done:
                self._line.wait_for(call, seconds)
            if call.unpacking is not None:
                call.unpacking.run(call)
        except BaseException as error:
            self._line.heed(error)
            raise
        if call.error is not None:
            self._line.note_raised(call.error)
        return call.error

    def done(self) -> bool:
        """True once `wait` would not block: there is a result, or an error."""
        return self._call.is_done

    def add_done_callback(self, function: "Callable[[Handle[R]], object]") -> None:
        """Call `function` with this handle when the call is done; soon, if it is done now.

        Callbacks of a communicator run one at a time, in the order in which their calls were done,
        on a thread of the library and under none of its locks.  They may read results, send and
        receive messages, and push functions and messages to a task engine.  Other calls of the
        communicator raise `ThreadError` there.
        What one raises is written to the log with its traceback and changes nothing; `exception` in
        one does not count as the script's having heard of an error.  ``close`` waits for them, five
        seconds at most.

        Raises:
            TypeError: `function` cannot be called.
            ThreadLimitError: the thread cannot be started; nothing is added.
            ForkError: in a forked child.
        """
        if not callable(function):
            raise TypeError(f"callback must be callable, got {type(function).__name__}")
        run = functools.partial(function, self)
        self._line.call_back(self._call, Callback(self._call.what, run))

    def __repr__(self) -> str:
        call = self._call
        state = "pending" if not call.is_done else "done" if call.error is None else "failed"
        return f"<ftcomm.Handle of {call.what}, {state}>"
