"""Gate: every call of a communicator passes it, one thread at a time."""

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, Protocol

from ftcomm.errors import ClosedError, ForkError, FtcommError, ThreadError


class Pending(Protocol):
    """Who holds the gate while nobody is inside: the asynchronous calls."""

    def hand_back(self) -> bool:
        """Wait for all that is pending, then take the gate for the thread that calls this.

        Returns:
            False if this thread may not have it.
        """


class Gate:
    """Lets one call in at a time, in the process that opened it, until it is closed.

    A class and not a generator function: entering one takes a third of the time.

    Attributes:
        is_closed: no call is let in any more.
        error: what ended the communicator, raised by every later call; None after a plain close.
        pending: who else may hold the gate, None where nobody does.
    """

    __slots__ = ("_busy", "_judge", "_pid", "error", "is_closed", "pending")

    def __init__(self, judge: Callable[[FtcommError], bool]) -> None:
        """`judge` acts on an error that leaves a call; True if it ends the communicator."""
        self.is_closed = False
        self.error: FtcommError | None = None
        self.pending: Pending | None = None
        self._judge = judge
        self._busy = threading.Lock()
        self._pid = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """True in a forked child."""
        return os.getpid() != self._pid

    def __enter__(self) -> None:
        if self.is_closed or os.getpid() != self._pid or not self._busy.acquire(blocking=False):
            self._wait_in_line()

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
            self._busy.release()

    def heed(self, error: BaseException) -> None:
        """An error has left a call: it may be the communicator's end."""
        if isinstance(error, FtcommError) and self._judge(error):
            self.error = error

    def try_take(self) -> bool:
        """Enter, to leave by `give_back`, from whatever thread; False if somebody is inside."""
        return self._busy.acquire(blocking=False)

    def give_back(self) -> None:
        """Leave, after `try_take`."""
        self._busy.release()

    def _wait_in_line(self) -> None:
        """Enter behind the asynchronous calls.

        Raises:
            FtcommError: it is not they who hold the gate, or it is closed.
        """
        if self.is_inherited or self.pending is None or not self.pending.hand_back():
            self.refuse()

    def refuse(self) -> NoReturn:
        """Say why no call is let in."""
        if self.is_inherited:
            raise ForkError("this communicator belongs to the parent process")
        if self.is_closed:
            raise self.error or ClosedError("this communicator is closed")
        raise ThreadError("two threads use this communicator, or it is used in a callback")
