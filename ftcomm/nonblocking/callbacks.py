"""Callbacks: the user's functions that run when a nonblocking call is done.

They run one after the other on a thread of their own, which the first of them starts, so that a
slow one holds up no collective.  That thread may make no calls: it is barred from the communicator,
because ranks make calls in one order and callbacks run in an order of their own.
"""

import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ftcomm.api.call_guard import CallLock
from ftcomm.control.changes import Changes
from ftcomm.diagnostics.logs import JobLogger, LogContext
from ftcomm.nonblocking.threads import start_thread

MAX_BACKLOG = 1024  # callbacks of calls that are done; a new call waits until there are fewer


class Callback(NamedTuple):
    """One function to call."""

    what: str  # the kind of call that it follows, for messages
    run: Callable[[], object]  # without arguments


class Callbacks:
    """The callbacks of one communicator."""

    def __init__(self, barred_from: Iterable[CallLock]) -> None:
        """Of a communicator whose locks are `barred_from` them."""
        self._locks = tuple(barred_from)
        self._lock = threading.Lock()
        self._changed = Changes(self._lock)
        self._waiting: deque[Callback] = deque()
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._is_running = False

    @property
    def backlog(self) -> int:
        """Number of callbacks that wait or run; for any thread, without a lock."""
        return len(self._waiting) + self._is_running

    @property
    def is_own_thread(self) -> bool:
        """True inside of a callback."""
        return threading.current_thread() is self._thread

    def prepare(self) -> None:
        """Start the thread, for callbacks that may be put later; raises ThreadLimitError."""
        with self._lock:
            if self._thread is None:
                self._thread = start_thread(self._run, "ftcomm-callbacks")

    def put(self, callbacks: Iterable[Callback]) -> None:
        """Have `callbacks` run behind all before them.

        Raises:
            ThreadLimitError: the thread has ended with the communicator, and no other can begin.
        """
        with self._lock:
            if self._thread is None:  # all was over, and a handle is asked for more
                self._thread = start_thread(self._run, "ftcomm-callbacks")
            self._waiting += callbacks
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Return when the backlog is short enough for one more call."""
        if self.backlog >= MAX_BACKLOG and not self.is_own_thread:
            self._changed.wait_for(lambda: self.backlog < MAX_BACKLOG)

    def end(self, within_s: float = 0.0) -> None:
        """The thread ends when nothing waits; returns then, or after `within_s`."""
        with self._lock:
            self._is_over = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and within_s > 0 and not self.is_own_thread:
            thread.join(within_s)

    # --- our own thread -----------------------------------------------------------------------

    def _run(self) -> None:
        with self._lock:
            if not self.is_own_thread:  # Ctrl-C ended the start: another one is started
                return
        for lock in self._locks:
            lock.barred = threading.get_ident()
        while (callback := self._next()) is not None:
            try:
                callback.run()
            except BaseException:  # noqa: BLE001 - changes nothing, whatever it is
                _log_failure(callback)
            del callback  # which holds a result
            with self._lock:
                self._is_running = False
                self._changed.notify_all()

    def _next(self) -> Callback | None:
        self._changed.wait_for(lambda: self._waiting or self._is_over)  # which stays
        with self._lock:
            if self._waiting:
                self._is_running = True
                return self._waiting.popleft()
            for lock in self._locks:  # another thread may have this one's number later
                lock.barred = 0
            self._thread = None
            return None


def _log_failure(callback: Callback) -> None:
    JobLogger(LogContext()).warn_aloud(
        "a callback of %s raised, which changes nothing:\n%s",
        callback.what,
        traceback.format_exc().rstrip(),
    )
