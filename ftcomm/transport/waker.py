"""Waker: the one file descriptor by which another thread ends a blocked collective."""

import contextlib
import os
import sys

_ONE = (1).to_bytes(8, sys.byteorder)  # what an eventfd takes; of a pipe just some bytes
_PIPE_BYTES = 64 * 1024  # no system's pipe holds more, so one read empties it


class Waker:
    """Set by the control thread, cleared by the thread that runs collectives.

    Attributes:
        is_set: read without a system call between two polls.
        fd: readable while set; -1 after `close`.
    """

    __slots__ = ("_at_most", "_other_end", "fd", "is_set")

    def __init__(self) -> None:
        """Take an eventfd, or a pipe where the system has none."""
        self.is_set = False
        if sys.platform == "linux":
            self.fd = self._other_end = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._at_most = len(_ONE)
        else:
            self.fd, self._other_end = os.pipe()
            os.set_blocking(self.fd, False)
            os.set_blocking(self._other_end, False)
            self._at_most = _PIPE_BYTES

    def set(self) -> None:
        """Make `fd` readable; may be called from any thread, any number of times."""
        # The descriptor first: whoever sees the flag can then empty it, and a sleeper that is
        # woken before it sees the flag finds the descriptor readable until it does.
        # A counter or a pipe that is full is readable already.
        with contextlib.suppress(BlockingIOError):
            os.write(self._other_end, _ONE)
        self.is_set = True

    def clear(self) -> None:
        """Forget earlier calls of `set`; the caller looks at its reason for them afterwards."""
        if not self.is_set:
            return  # nothing to forget, as before nearly every call: no system call
        # the flag first: a set() in between leaves it true, and it is looked at before each poll
        self.is_set = False
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, self._at_most)

    def close(self) -> None:
        """Give the descriptor back; neither thread may use the waker any more."""
        if self.fd < 0:
            return
        for fd in {self.fd, self._other_end}:
            os.close(fd)
        self.fd = self._other_end = -1
