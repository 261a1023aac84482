"""Call guard: every call of a communicator passes it, one thread at a time.

Its lock is held by a call that runs, and by none that Ctrl-C has thrown out.

An interrupt is raised between two steps of Python, so also after a lock was taken and before the
`try` or `with` that would give it back, or before the first step of what gives it back.  No order
of steps closes these gaps, so nothing depends on giving back.  What is noted is the *frame* that
has taken the lock, in the one step that takes it.  A frame that is not on its thread's stack any
more has been left, by whatever way, and holds nothing.  Where an interrupt can land:

- before `setdefault`, nothing has happened;
- behind it, up to the step that gives back, inside of a `try` or not: the frame is left, and the
  next call of this thread finds that and frees the lock.  If a result was lost on that way, `mark`
  has moved since the lock was taken: its owner has to look;
- behind the step that gives back, the call has ended.  From there to the caller nothing is called,
  and without a call no interrupt is raised.  That is why `release` deletes and calls nothing.

Only the thread that has taken a lock can see that its call has been left: the stacks of others
change while one looks.  To another one it stays taken until then.
"""

import os
import sys
from _thread import get_ident
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from ftcomm.config.deadline import Limit, QueuedLimit
from ftcomm.errors import ClosedError, ForkError, FtcommError, ThreadError
from ftcomm.requests.call_site import site_of


class Holder(NamedTuple):
    """Holder of a call lock.

    Attributes:
        frame: of the call; None where it is not one call that has it.
        thread: on which the frame runs.
        mark: what the lock's owner wants to compare if the call is cut short.
    """

    frame: FrameType | None
    thread: int
    mark: Any


STAND_IN: Final = Holder(None, 0, None)  # for calls that run on another thread
NOBODY: Final = Holder(None, 0, None)  # for all calls that would come behind the end


class CallLock:
    """Excludes other threads, and calls inside of a call; never waits.

    Attributes:
        holder: empty, or who has it under 0; looked at by who has no time for a call.
        barred: the number of a thread that never gets it, 0 for none.
    """

    __slots__ = ("barred", "holder")

    def __init__(self) -> None:
        self.barred = 0
        self.holder: dict[int, Any] = {}  # whose setdefault is atomic

    def take(self, frame: FrameType, mark: Any = None) -> bool:
        """For the call that runs as `frame`, until `release`; False if somebody has it."""
        thread = get_ident()
        if thread == self.barred:
            return False
        holder = (frame, thread, mark)
        return self.holder.setdefault(0, holder) is holder

    def lend(self) -> bool:
        """For calls of another thread, until `release`; True also if they have it already."""
        return self.holder.setdefault(0, STAND_IN) is STAND_IN

    @property
    def is_lent(self) -> bool:
        """The calls of another thread have it."""
        return self.holder.get(0) is STAND_IN

    def shut(self) -> bool:
        """Let nobody have it any more; False if a call of another thread has it.

        Those of a thread that it is lent to do not count.
        """
        return self.holder.setdefault(0, NOBODY)[1] in (0, get_ident())

    @property
    def is_held_here(self) -> bool:
        """A call of this thread has it, and has not been left."""
        holder = self.holder.get(0)
        return holder is not None and holder[1] == get_ident() and self.left_by() is None

    def release(self) -> None:
        """Give it back."""
        del self.holder[0]

    def left_by(self) -> Holder | None:
        """Return this thread's call that ended without releasing; None if there is no such call."""
        holder = self.holder.get(0)
        if holder is None or holder[1] != get_ident():
            return None
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - nothing else tells what runs
        while frame is not None:
            if frame is holder[0]:
                return None
            frame = frame.f_back
        return Holder(*holder)


class PendingCalls(Protocol):
    """Nonblocking calls, which own the engine while no thread is inside."""

    def hand_back(self, frame: FrameType, limit: QueuedLimit | None) -> bool:
        """Wait for all that is pending, then own the engine for the call that runs as `frame`.

        Args:
            frame: of the call.
            limit: of the call, which the wait is a part of.

        Returns:
            False if it may not have it.
        """

    @property
    def is_own_thread(self) -> bool:
        """True on the thread that runs them."""


class CallGuard:
    """Lets one call in at a time, in the process that opened it, until it is closed.

    A class and not a generator function: entering one takes a third of the time.

    Attributes:
        is_closed: no call is admitted any more.
        error: what ended the communicator, raised by every later call; None after a plain close.
        pending: the nonblocking calls, which may own the engine; None where there are none.
        lock: who is inside.
        waiting_submitters: who begins a nonblocking call; empty, unless one was cut short in
            between.
    """

    __slots__ = (
        "_give_up",
        "_judge",
        "_pid",
        "_reached",
        "error",
        "is_closed",
        "lock",
        "pending",
        "waiting_submitters",
    )

    def __init__(
        self,
        judge: Callable[[FtcommError], bool],
        reached: Callable[[], Any],
        give_up: Callable[[FtcommError], None],
    ) -> None:
        """Requirements of the guard on its communicator.

        Args:
            judge: acts on an error that leaves a call; True if it ends the communicator.
            reached: how far the calls have come: another one, if a result has been lost.
            give_up: ends the communicator, because the script would make a call again.
        """
        self.is_closed = False
        self.error: FtcommError | None = None
        self.pending: PendingCalls | None = None
        self.lock = CallLock()
        self.waiting_submitters: dict[int, Any] = {}
        self._judge, self._reached, self._give_up = judge, reached, give_up
        self._pid = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """True in a forked child."""
        return os.getpid() != self._pid

    @property
    def is_inside(self) -> bool:
        """True in a call: a function of the user's asks that it runs, or a signal handler."""
        return self.lock.is_held_here or (self.pending is not None and self.pending.is_own_thread)

    def __enter__(self) -> None:
        frame = sys._getframe(1)  # noqa: SLF001 - as long as it runs, the call is inside
        if (
            self.is_closed
            or self.waiting_submitters
            or os.getpid() != self._pid
            or not self.lock.take(frame, self._reached())
        ):
            self.enter_behind(frame)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self.heed(error)
        finally:
            self.lock.release()

    def heed(self, error: BaseException) -> None:
        """An error has left a call: it may be the communicator's end."""
        if isinstance(error, FtcommError) and self._judge(error):
            self.error = error

    def try_take(self, frame: FrameType) -> bool:
        """Enter for the call that runs as `frame`; False if somebody is inside."""
        return self.lock.take(frame, self._reached())

    def repair(self) -> None:
        """Release a call that was cut short, for this thread's next one."""
        left = self.lock.left_by()
        if left is not None:
            if left.mark != self._reached():
                self.lose()
            self.lock.release()

    def lose(self) -> None:
        """A call was cut short when it had its result, or its place: the script does not know."""
        if not self.is_closed:
            error = ClosedError("a call was interrupted when it was complete; its result is lost")
            self._give_up(error)
            self.error = self.error or error

    def within(self, limit: Limit | None, known: bytes = b"") -> AbstractContextManager[None]:
        """Enter for a call whose `limit` holds while it waits for others too.

        Args:
            limit: None for none.
            known: the call's signature, as far as it is known.
        """
        return self if limit is None else LimitedEntry(self, limit, known)

    def enter_behind(
        self, frame: FrameType, limit: Limit | None = None, known: bytes = b""
    ) -> None:
        """Enter behind the nonblocking calls.

        Args:
            frame: of the call.
            limit: of the call, which the wait is a part of.
            known: as of `within`.

        Raises:
            FtcommError: another thread owns the engine, or the communicator is closed.
        """
        if self.is_inherited:
            self.refuse()
        self.repair()
        if not self.is_closed and not self.waiting_submitters and self.try_take(frame):
            return
        queued = limit and QueuedLimit(limit, known, site_of(frame))
        if self.pending is None or not self.pending.hand_back(frame, queued):
            self.refuse()

    def refuse(self) -> NoReturn:
        """Say why no call is admitted."""
        if self.is_inherited:
            raise ForkError("this communicator belongs to the parent process")
        if self.is_closed:
            raise self.error or ClosedError("this communicator is closed")
        if self.lock.barred == get_ident():
            raise called_in_callback()
        raise ThreadError("two threads use this communicator, or it is used in a callback")


class LimitedEntry:
    """Enters a guard for a call that has a limit."""

    __slots__ = ("_guard", "_known", "_limit")

    def __init__(self, guard: CallGuard, limit: Limit, known: bytes) -> None:
        self._guard, self._limit, self._known = guard, limit, known

    def __enter__(self) -> None:
        frame = sys._getframe(1)  # noqa: SLF001 - as in `CallGuard.__enter__`
        self._guard.enter_behind(frame, self._limit, self._known)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._guard.__exit__(kind, error, trace)


def called_in_callback() -> ThreadError:
    """The error of a call that a callback of a handle makes."""
    return ThreadError(
        "a callback of a handle made a call of the communicator",
        remedy="make it in the script, after handle.wait(): calls are in one order on all ranks",
    )
