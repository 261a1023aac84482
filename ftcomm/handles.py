"""Handles: what an asynchronous call returns at once, and where its result appears."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, cast

R = TypeVar("R")


class Waited(Protocol):
    """What a handle asks to wait for it."""

    def wait_for(self, handle: "Handle[Any]", timeout: float | None) -> None:
        """Return when `handle` is done.

        Raises:
            TimeoutError: it is not, after `timeout` seconds.
        """

    def note_raised(self, error: BaseException) -> None:
        """The user is being told of `error`."""


class Handle(Generic[R]):
    """One asynchronous call.

    What was passed to the call belongs to it until `wait` or `result` has returned: inputs may not
    be written, nor ``out=`` read or written, before.  A handle may be dropped; its call runs all
    the same, and an error that it raises then leaves the next call.

    Attributes:
        work: what is called when its turn has come; None once it is done.
        what: the kind of call, for messages.
        has_place: it will run, or fail, whether its handle is kept or not.
        is_due: asked before it may have its turn, None where it always may.
        on_done: told its error, or None, when it is done; under a lock: it may not wait.
    """

    __slots__ = (
        "__weakref__",
        "_error",
        "_is_done",
        "_line",
        "_value",
        "has_place",
        "is_due",
        "on_done",
        "what",
        "work",
    )

    def __init__(self, line: Waited, work: Callable[[], R], what: str) -> None:
        """A call that runs as `work` when its turn has come."""
        self._line = line
        self.work: Callable[[], R] | None = work
        self.what = what
        self.has_place = False
        self.is_due: Callable[[], bool] | None = None
        self.on_done: Callable[[BaseException | None], None] | None = None
        self._is_done = False
        self._value: R | None = None
        self._error: BaseException | None = None

    def wait(self, timeout: float | None = None) -> R:
        """Wait for the call, and return its result.

        Ctrl-C ends the waiting and not the call: it may be waited for again.

        Args:
            timeout: seconds to wait; None is no limit.  The job knows nothing of it: the call goes
                on, unlike one that was given a ``deadline=``.

        Raises:
            TimeoutError: the call is not done after `timeout` seconds.
            FtcommError and others: what the call raised, or one that was made before it.
        """
        if not self._is_done:
            self._line.wait_for(self, timeout)
        if self._error is not None:
            self._line.note_raised(self._error)
            raise self._error
        return cast("R", self._value)

    def result(self) -> R:
        """The result; waits as `wait` does, without a limit."""
        return self.wait()

    def done(self) -> bool:
        """True once `wait` would not block: there is a result, or an error."""
        return self._is_done

    def succeed(self, value: R) -> None:
        """For whoever runs the call: it has returned `value`."""
        self._value, self.work = value, None
        self._end(None)

    def fail(self, error: BaseException) -> None:
        """For whoever runs the call: it has raised `error`, or will not run because of it."""
        self._error, self.work = error, None
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._is_done = True
        if self.on_done is not None:
            self.on_done(error)

    def __repr__(self) -> str:
        state = "pending" if not self._is_done else "done" if self._error is None else "failed"
        return f"<ftcomm.Handle of {self.what}, {state}>"
