"""Calls out of a signal handler, which runs in the middle of whatever its thread was doing.

The thread may hold any lock of the library's, and gives it back when the handler has returned.  So
what needs locks runs on a thread of its own, as if another thread of the script had called it.
"""

import sys
import threading
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from types import FrameType
from typing import Final

from ftcomm.errors import ThreadLimitError

WAIT_S: Final = 0.5  # the work takes some milliseconds, if it may begin
_PACKAGE: Final = __name__.partition(".")[0]


def may_be_in_handler() -> bool:
    """True if the caller may be a handler that has interrupted this library.

    Handlers run on the main thread.  There the user's code, which has called this, runs above the
    library's; it may be a function that the library has called.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - nothing else tells what runs
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == _PACKAGE


def run_beside(work: Callable[[], object]) -> None:
    """Run `work` on another thread; return when it is done, or when the handler must go on.

    A thread of `threading` takes locks as it starts, which a handler may have interrupted too.

    Raises:
        ThreadLimitError: there can be no more threads.
    """
    is_running = allocate_lock()
    is_running.acquire()

    def run() -> None:
        try:
            work()
        finally:
            is_running.release()

    try:
        start_new_thread(run, ())
    except RuntimeError as error:
        raise ThreadLimitError(f"a signal handler cannot leave the job: {error}") from error
    is_running.acquire(timeout=WAIT_S)
