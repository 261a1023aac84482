"""Waker: the one file descriptor by which another thread ends a blocked collective."""

import contextlib
import os


class Waker:
    """Set by the control thread, cleared by the thread that runs collectives.

    Attributes:
        is_set: read without a system call between two polls.
        fd: readable while set; -1 after `close`.
    """

    __slots__ = ("fd", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Make `fd` readable; may be called from any thread, any number of times."""
        # The descriptor first: whoever sees the flag can then empty it, and a sleeper that is
        # woken before it sees the flag finds the descriptor readable until it does.
        # A counter that is full is readable already.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.fd, 1)
        self.is_set = True

    def clear(self) -> None:
        """Forget earlier calls of `set`; the caller looks at its reason for them afterwards."""
        if not self.is_set:
            return  # nothing to forget, as before nearly every call: no system call
        # the flag first: a set() in between leaves it true, and it is looked at before each poll
        self.is_set = False
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Give the descriptor back; neither thread may use the waker any more."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
