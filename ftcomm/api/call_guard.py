"""Call guard: every call of a communicator passes it, one thread at a time.

A signal's handler may raise where a function of Python begins, and behind each call of C.  So a
lock is taken in one call of C, and released by a statement that calls nothing: whatever is raised
in a call, its lock is free behind it.
"""

import os
from _thread import get_ident
from collections.abc import Callable
from typing import Final, NoReturn, Protocol, TypeVar

from ftcomm.config.deadline import Limit, QueuedLimit
from ftcomm.errors import ClosedError, ForkError, FtcommError, ThreadError
from ftcomm.requests.call_site import call_site, passes_on

passes_on(__file__)

R = TypeVar("R")
Holder = tuple[int]  # the number of a thread; each time that a lock is taken has its own

LENT: Final[Holder] = (0,)  # to the calls of another thread
SHUT: Final[Holder] = (-1,)  # to all calls that would come behind the end


class CallLock:
    """Excludes other threads, and calls inside of a call; never waits.

    It is released by ``del lock.holder[0]``.
    """

    __slots__ = ("barred", "holder")

    def __init__(self) -> None:
        self.barred = 0  # the number of a thread that never gets it, 0 for none
        # Empty, or who has it under 0; its setdefault is atomic.
        self.holder: dict[int, Holder] = {}

    def take(self) -> bool:
        """For a call of this thread; False if another call has it."""
        thread = get_ident()
        if thread == self.barred:
            return False
        holder = (thread,)
        try:
            return self.holder.setdefault(0, holder) is holder
        except BaseException:  # of a signal's handler
            if self.holder.get(0) is holder:
                del self.holder[0]
            raise

    def lend(self) -> bool:
        """For calls of another thread; True also if they have it already."""
        return self.holder.setdefault(0, LENT) is LENT

    @property
    def is_lent(self) -> bool:
        """The calls of another thread have it."""
        return self.holder.get(0) is LENT

    def shut(self) -> bool:
        """Let nobody have it any more; False if a call of another thread has it.

        Those of a thread that it is lent to do not count.
        """
        (thread,) = self.holder.setdefault(0, SHUT)
        return thread <= 0 or thread == get_ident()

    @property
    def is_held_here(self) -> bool:
        """A call of this thread has it."""
        return self.holder.get(0, SHUT)[0] == get_ident()


class PendingCalls(Protocol):
    """Nonblocking calls, which own the engine while no thread is inside."""

    def hand_back(self, limit: QueuedLimit | None) -> bool:
        """Wait for all that is pending, then take the guard's lock for this thread's call.

        Returns:
            False if it may not have it.
        """

    @property
    def is_own_thread(self) -> bool:
        """True on the thread that runs them."""


class CallGuard:
    """Lets one call in at a time, in the process that opened it, until it is closed."""

    __slots__ = ("_ended_by", "_pid", "error", "is_closed", "lock", "pending", "submitters")

    def __init__(self, ended_by: Callable[[BaseException], FtcommError | None]) -> None:
        """`ended_by` acts on an error that leaves a call.

        It returns the error of later calls if that one ends the communicator.
        """
        self.is_closed = False  # no call is admitted any more
        # What ended the communicator, raised by every later call; None after a plain close.
        self.error: FtcommError | None = None
        # The nonblocking calls, which may own the engine; None where there are none.
        self.pending: PendingCalls | None = None
        self.lock = CallLock()  # who is inside
        # The holder of the lock of who makes a nonblocking call; empty if no thread does.
        self.submitters: dict[int, Holder] = {}
        self._ended_by = ended_by
        self._pid = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """True in a forked child."""
        return os.getpid() != self._pid

    @property
    def is_inside(self) -> bool:
        """True in a call: a function of the user's asks that it runs, or a signal handler."""
        return self.lock.is_held_here or (self.pending is not None and self.pending.is_own_thread)

    def run(self, call: Callable[[], R], limit: Limit | None = None, known: bytes = b"") -> R:
        """Run `call` as the only one inside, behind the nonblocking calls.

        Raises:
            FtcommError: another thread owns the engine, or the communicator is closed.
        """
        if self.is_closed or self.submitters or os.getpid() != self._pid or not self.lock.take():
            self._enter_behind(limit, known)
        try:
            return call()
        except BaseException as error:
            self.heed(error)
            raise
        finally:
            del self.lock.holder[0]

    def heed(self, error: BaseException) -> None:
        """An error has left a call: it may be the communicator's end."""
        found = self._ended_by(error)  # first: it may set the error
        self.error = self.error or found  # what ended it, and not what came behind

    def _enter_behind(self, limit: Limit | None, known: bytes) -> None:
        if self.is_inherited:
            self.refuse()
        queued = limit and QueuedLimit(limit, known, call_site())
        if self.pending is None or not self.pending.hand_back(queued):
            self.refuse()

    def refuse(self) -> NoReturn:
        """Say why no call is admitted."""
        if self.is_inherited:
            raise ForkError("this communicator belongs to the parent process")
        if self.is_closed:
            error = self.error or ClosedError("this communicator is closed")
            raise error.with_traceback(None)  # a script may try again and again
        if self.lock.barred == get_ident():
            raise called_in_callback()
        raise used_twice()


def used_twice() -> ThreadError:
    """The error of a call that another thread's call excludes, or one that it is a part of."""
    return ThreadError("two threads use this communicator, or it is used in a callback")


def called_in_callback() -> ThreadError:
    """The error of a call that a callback of a handle makes."""
    return ThreadError(
        "a callback of a handle made a call of the communicator",
        remedy="make it in the script, after handle.wait(): calls are in one order on all ranks",
    )
