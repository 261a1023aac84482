"""Threads of this library's own, which a process may have no room for."""

import threading
from collections.abc import Callable

from ftcomm.errors import ThreadLimitError


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """A daemon thread that runs `target`; raises ThreadLimitError.

    If Ctrl-C ends this, the thread may run all the same and nobody knows it: `target` begins by
    asking, under the lock that the caller holds, whether it was noted.
    """
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise ThreadLimitError(f"the thread {name} could not be started: {error}") from error
    return thread
