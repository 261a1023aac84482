"""Guards: a virtual process has no effect outside of its world.

A seam that was forgotten would be real: a file, a socket, a thread, a sleep.  Python tells its
audit hooks of each, and the hook here refuses what a virtual process asks for.  Modules that are
imported late are read all the same.
"""

import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from ftcomm_chaos.whole.world import CURRENT

REFUSED = (
    "socket.__new__",
    "socket.bind",
    "socket.connect",
    "socket.sendto",
    "_thread.start_new_thread",  # from Python 3.12 on
    "time.sleep",  # from Python 3.13 on
    "subprocess.Popen",
    "os.exec",
    "os.fork",
    "os.kill",
    "os.mkdir",
    "os.posix_spawn",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.system",
    "os.truncate",
    "signal.pthread_kill",
    "sqlite3.connect",
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class RealEffectError(Exception):
    """A virtual process has asked for a real effect."""


@functools.cache
def install() -> None:
    """Set the hook, once in this process: hooks stay.  Outside of virtual processes it is idle."""
    sys.addaudithook(_look)


def _look(event: str, args: tuple[Any, ...]) -> None:
    if event not in _WATCHED or CURRENT.get() is None:
        return
    if event == "open":
        path, _, flags = args
        if not isinstance(flags, int) or not flags & _WRITING or "__pycache__" in str(path):
            return
    raise RealEffectError(f"{CURRENT.get()} has asked for {event} {args!r:.200}")


def start_of_real_thread(start: Callable[..., None]) -> Callable[..., None]:
    """`threading.Thread.start`, refused in a virtual process: Python 3.11 tells no hook."""

    def guarded(thread: threading.Thread) -> None:
        if CURRENT.get() is not None:
            raise RealEffectError(f"{CURRENT.get()} has asked for the thread {thread.name}")
        start(thread)

    return guarded


_WATCHED = frozenset((*REFUSED, "open"))
