"""Handles of messages: they are done as soon as the message is here, in no line of calls."""

import functools
import os
import threading
from collections import deque
from typing import Any

from ftcomm.api.messages import MessageCalls, Receive
from ftcomm.config.deadline import QueuedLimit
from ftcomm.control.changes import Changes
from ftcomm.errors import ForkError
from ftcomm.memory.message_value import MessageValue
from ftcomm.nonblocking.callbacks import Callback, Callbacks
from ftcomm.nonblocking.handle import Handle, QueuedCall
from ftcomm.requests.call_site import passes_on
from ftcomm.requests.message_request import MessageToSend

passes_on(__file__)


class MessageHandles:
    """Nonblocking sends and receives of one communicator; any thread may make and wait for one."""

    def __init__(self, calls: MessageCalls, callbacks: Callbacks) -> None:
        """`callbacks` are the communicator's: they run in one order with those of other calls."""
        self.calls = calls
        self._callbacks = callbacks
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._changed = Changes(self._lock)

    def send(self, message: MessageToSend) -> Handle[None]:
        """Send; the handle is done, since the log has the message."""
        call: QueuedCall[None] = QueuedCall(_nothing, "isend")
        call.succeed(None)
        handle = Handle(call, self)
        self.calls.send(message)
        return handle

    def receive(self, asked: Receive) -> Handle[Any]:
        """Begin to receive; the handle is done when the message is here."""
        limit: QueuedLimit | None = None  # the receive has its own
        call: QueuedCall[Any] = QueuedCall(_nothing, asked.form.what, limit)

        def done(value: MessageValue | None, error: BaseException | None) -> None:
            with self._lock:
                _end(call, asked, value, error)
                self._changed.notify_all()
                if call.callbacks:
                    self._callbacks.put(call.callbacks)  # first: an interrupt may come behind it
                call.callbacks = None

        handle = Handle(call, self)
        self.calls.post(self.calls.posted(asked, done))
        return handle

    # --- what a handle asks for -----------------------------------------------------------------

    def wait_for(self, call: QueuedCall[Any], timeout: float | None) -> None:
        """Wait until `call` is done; from any thread.

        Raises:
            TimeoutError: it is still pending after `timeout` seconds.
            ForkError: in a forked child.
        """
        self._check_process()
        self.calls.wait_elsewhere()
        if not self._changed.wait_for(lambda: call.is_done, timeout):
            raise TimeoutError(f"{call.what} is still pending after {timeout:g} s")

    def note_raised(self, error: BaseException) -> None:
        """The user hears of `error` now; it may be the communicator's end."""
        if not self._callbacks.is_own_thread:
            self.calls.heed(error)

    def heed(self, error: BaseException) -> None:
        """`error` ends a wait; one that is no `Exception` ends the communicator too."""
        self.calls.heed(error)

    def call_back(self, call: QueuedCall[Any], callback: Callback) -> None:
        """Run `callback` when `call` is done; from any thread.

        Raises:
            ThreadLimitError: there is no thread for it.
            ForkError: in a forked child.
        """
        self._check_process()
        with self._lock:
            if not call.is_done:
                self._callbacks.prepare()
                if call.callbacks is None:
                    call.callbacks = deque()
                call.callbacks.append(callback)
                return
        self._callbacks.put([callback])

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkError("this handle belongs to the parent process")


def _end(
    call: QueuedCall[Any],
    asked: Receive,
    value: MessageValue | None,
    error: BaseException | None,
) -> None:
    """The message has come, or an error; this may be any thread."""
    if value is None:
        call.fail(error or AssertionError("a receive ends with a message or an error"))
    elif asked.is_object:
        call.succeed_by(functools.partial(asked.finish, value))
    else:
        try:
            call.succeed(asked.finish(value))
        except Exception as mistake:  # noqa: BLE001 - the user has made `out` read-only meanwhile
            call.fail(mistake)


def _nothing() -> None:
    """Nothing runs: a message is sent at once, and received by the control thread."""
