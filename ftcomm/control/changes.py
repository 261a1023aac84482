"""Changes of what a lock guards: threads wait for them, and Ctrl-C finds the waiting without it.

A `threading.Condition` is waited for with its lock, which functions of Python give back and take
again.  An interrupt in there leaves the caller's `with` without the lock.  That raises RuntimeError
then; or it gives back the lock of the thread that has it by now.  Here a thread leaves its `with`,
sleeps, and enters it again to look.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager


class Changes:
    """Changes of what one lock guards, for any number of threads that wait for one."""

    __slots__ = ("_lock", "_sleepers")

    def __init__(self, lock: AbstractContextManager[bool, None]) -> None:
        """Changes that are made under `lock`."""
        self._lock = lock
        self._sleepers: set[threading.Lock] = set()  # each is taken until something has changed

    @property
    def is_awaited(self) -> bool:
        """True if some thread waits; asked without the lock by who looks again behind a change."""
        return bool(self._sleepers)

    def wait_for(self, holds: Callable[[], object], timeout: float | None = None) -> bool:
        """Return when `holds` is true, at which it looks under the lock.

        The caller has not got the lock, and enters it behind this if it needs it.  So `holds` is
        something that stays, or that may have changed by then.

        Returns:
            False if it is not after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        left = threading.TIMEOUT_MAX
        sleeper: threading.Lock | None = None
        while True:
            with self._lock:
                if sleeper is not None:
                    self._sleepers.discard(sleeper)  # it is there still if the time is over
                if holds():
                    return True
                if until is not None:
                    left = min(until - time.monotonic(), threading.TIMEOUT_MAX)
                    if left <= 0:
                        return False
                sleeper = self.next_one()
            sleeper.acquire(timeout=left)

    def next_one(self) -> threading.Lock:
        """Under the lock: return what can be taken, without the lock, once something has changed.

        It is a bare lock: an event of `threading` is waited for with a condition.
        """
        sleeper = threading.Lock()
        sleeper.acquire()
        self._sleepers.add(sleeper)
        return sleeper

    def notify_all(self) -> None:
        """Under the lock: something has changed, and all who wait look again."""
        for sleeper in self._sleepers:
            if sleeper.locked():  # else Ctrl-C came just behind its release
                sleeper.release()
        self._sleepers.clear()
