"""AwaitedMessage: the answer for a thread that receives."""

import threading

from ftcomm.memory.message_value import MessageValue
from ftcomm.transport.waker import Waker


class AwaitedMessage:
    """One answer; the thread sleeps until it is here, or on a link that it reads.

    It has two bare locks: an event of `threading` takes ten times as long to make.
    """

    __slots__ = ("_lock", "_sleeping", "_waker", "error", "is_over", "value")

    def __init__(self) -> None:
        self.is_over = False  # the answer is here
        self.value: MessageValue | None = None  # the message
        self.error: BaseException | None = None  # raised instead, None where there is none
        self._sleeping = threading.Lock()  # taken until the answer is here
        self._sleeping.acquire()
        self._lock = threading.Lock()  # while the waker is set, it is not closed
        self._waker: Waker | None = None

    def wait(self) -> None:
        """Return when the answer is here; for one thread, once."""
        self._sleeping.acquire()

    def wake_by(self, waker: Waker | None) -> None:
        """Set `waker` when the answer comes; None where nothing must be set any more."""
        with self._lock:
            self._waker = waker

    def take(self, value: MessageValue | None, error: BaseException | None) -> None:
        """Give the thread what it waits for; the same again changes nothing."""
        if not self.is_over:
            self.value, self.error = value, error
            self.is_over = True
            self._sleeping.release()
        with self._lock:
            if self._waker is not None:
                self._waker.set()
