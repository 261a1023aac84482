"""Call guard: every call of a communicator passes it, one thread at a time."""

import os
import sys
import time
from _thread import get_ident
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol

from ftcomm.api.call_lock import CallLock
from ftcomm.errors import ClosedError, ForkError, FtcommError, ThreadError


class PendingCalls(Protocol):
    """Nonblocking calls, which own the engine while no thread is inside."""

    def hand_back(self, frame: FrameType) -> bool:
        """Wait for all that is pending, then own the engine for the call that runs as `frame`.

        Returns:
            False if it may not have it.
        """


class CallGuard:
    """Lets one call in at a time, in the process that opened it, until it is closed.

    A class and not a generator function: entering one takes a third of the time.

    Attributes:
        is_closed: no call is admitted any more.
        error: what ended the communicator, raised by every later call; None after a plain close.
        pending: the nonblocking calls, which may own the engine; None where there are none.
        lock: who is inside.
        waited: who was inside after waiting for others, and since when; None otherwise.
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
        "waited",
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
        self.waited: tuple[Any, float] | None = None
        self.lock = CallLock()
        self.waiting_submitters: dict[int, Any] = {}
        self._judge, self._reached, self._give_up = judge, reached, give_up
        self._pid = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """True in a forked child."""
        return os.getpid() != self._pid

    def __enter__(self) -> None:
        frame = sys._getframe(1)  # noqa: SLF001 - as long as it runs, the call is inside
        if (
            self.is_closed
            or self.waiting_submitters
            or os.getpid() != self._pid
            or not self.lock.take(frame, self._reached())
        ):
            self._wait_in_line(frame)

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

    def _wait_in_line(self, frame: FrameType) -> None:
        """Enter behind the nonblocking calls.

        Raises:
            FtcommError: another thread owns the engine, or the communicator is closed.
        """
        if self.is_inherited:
            self.refuse()
        self.repair()
        if not self.is_closed and not self.waiting_submitters and self.try_take(frame):
            return
        since = time.monotonic()
        if self.pending is None or not self.pending.hand_back(frame):
            self.refuse()
        self.waited = self.lock.holder.get(0), since

    def asked_at(self) -> float | None:
        """Since when the call inside waited for others; None if it did not. Asked once a call."""
        waited, self.waited = self.waited, None  # it holds the frame of its call
        if waited is None or waited[0] is not self.lock.holder.get(0):
            return None
        return waited[1]

    def refuse(self) -> NoReturn:
        """Say why no call is admitted."""
        if self.is_inherited:
            raise ForkError("this communicator belongs to the parent process")
        if self.is_closed:
            raise self.error or ClosedError("this communicator is closed")
        if self.lock.barred == get_ident():
            raise called_in_callback()
        raise ThreadError("two threads use this communicator, or it is used in a callback")


def called_in_callback() -> ThreadError:
    """The error of a call that a callback of a handle makes."""
    return ThreadError(
        "a callback of a handle made a call of the communicator",
        remedy="make it in the script, after handle.wait(): calls are in one order on all ranks",
    )
