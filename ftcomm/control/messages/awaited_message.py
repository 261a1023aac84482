"""AwaitedMessage: the answer for a thread that receives."""

import threading
from typing import Any

from ftcomm.transport.waker import Waker


class AwaitedMessage:
    """One answer; the thread sleeps on the event, or on a link that it reads.

    Attributes:
        has_come: the answer is here.
        result: what the user gets.
        error: raised instead, None where there is none.
    """

    def __init__(self) -> None:
        self.has_come = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self._lock = threading.Lock()  # while the waker is set, it is not closed
        self._waker: Waker | None = None

    @property
    def is_over(self) -> bool:
        """The answer is here."""
        return self.has_come.is_set()

    def wake_by(self, waker: Waker | None) -> None:
        """Set `waker` when the answer comes; None where nothing must be set any more."""
        with self._lock:
            self._waker = waker

    def take(self, result: Any, error: BaseException | None) -> None:
        """Give the thread what it waits for."""
        self.result, self.error = result, error
        self.has_come.set()
        with self._lock:
            if self._waker is not None:
                self._waker.set()
