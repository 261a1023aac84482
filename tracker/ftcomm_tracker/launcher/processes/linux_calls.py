"""System calls of Linux about parents and children; nothing happens elsewhere."""

import contextlib
import ctypes
import os
import signal
import sys

from ftcomm.errors import ConfigError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# loaded here: nothing may be imported after a fork
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that is its parent ends.

    To be called in a forked child; `parent` is the process that should be its parent.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def ended_child() -> int | None:
    """Number of a child that has ended and is not reaped; it may be any of them."""
    if sys.platform == "linux":
        with contextlib.suppress(ChildProcessError):  # there are no children
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return None if ended is None else ended.si_pid
    return None


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends.

    Raises:
        ConfigError: the kernel refuses.
    """
    if _LIBC is None or _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise ConfigError("--prefork needs PR_SET_CHILD_SUBREAPER of Linux 3.4")
