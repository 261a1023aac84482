"""Intake: the link by which one source's messages come, read by whoever waits for them.

The control thread reads it, unless a thread waits for a message of this source: then that one does,
which saves two changes of thread for each message.  Meanwhile, and for a moment after, the control
thread only looks now and then.
"""

import contextlib
import math
import select
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from ftcomm.control.message_stream import PeerClosed
from ftcomm.control.messages.direct_receive import DirectReceive
from ftcomm.control.messages.message_parser import MessageParser, ParsedMessage
from ftcomm.errors import ProtocolError
from ftcomm.transport.link import Link
from ftcomm.transport.waiting import let_others_run
from ftcomm.transport.waker import Waker

HOT_S = 0.02  # a thread that has read is expected to do so again for as long
LOOK_S = 0.01  # between two looks of the control thread meanwhile
# Empty tries before a thread sleeps. Who sleeps needs 50 us to come back; where ranks share
# processors, who tries keeps another one from its turn: with 8 ranks on two of them, 64 bytes there
# and back take 580 us with 5 tries, 640 with 20, and 700 with 100.
SPINS_ALONE, SPINS_SHARED = 100, 5
# A thread reads for itself alone as long, before it posts its receive; longer only if its message
# comes by then.
DIRECT_S = 0.02
BROKEN = (OSError, PeerClosed, ProtocolError, trio.TooSlowError)


class Awaiting(Protocol):
    """A thread that waits for a message."""

    @property
    def is_over(self) -> bool:
        """The message has come, or an error."""

    def wake_by(self, waker: Waker | None) -> None:
        """Set `waker` when it is over; None where nothing must be set any more."""


class Intake:
    """One link of one epoch, behind its request."""

    def __init__(
        self,
        link: Link,
        parser: MessageParser,
        take: Callable[[ParsedMessage], None],
        spins: int,
    ) -> None:
        """It owns `link`; `take` is given the messages, in order.

        A thread that reads sleeps after `spins` empty tries.
        """
        self._link, self._parser, self._take = link, parser, take
        self._spins = spins
        self._lock = threading.Lock()
        self._waker = Waker()
        self._has_reader = self._is_over = False
        self._read_at = float("-inf")
        self._heard_at = time.monotonic()
        self._pause = trio.CancelScope()  # of the control thread
        self._token = trio.lowlevel.current_trio_token()
        self.lost: Exception | None = None  # what ended it; None while it works
        # The receive of the thread that reads for itself alone; None where none does.
        self.direct: DirectReceive | None = None

    # --- the control thread -----------------------------------------------------------------------

    async def keep_reading(self, limit_s: float, may_read: Callable[[], Awaitable[None]]) -> None:
        """Read until the link ends, which raises one of `BROKEN`.

        `may_read` is awaited before each read, and returns when there is room.
        """
        while True:
            if not self._is_hot:
                with trio.CancelScope() as self._pause:
                    await may_read()
                if self._pause.cancelled_caught:  # a thread that reads may be waiting for long
                    continue
            if self._is_hot:
                with trio.move_on_after(LOOK_S) as self._pause:
                    await trio.sleep_forever()
            else:
                with trio.move_on_after(limit_s / 4) as self._pause:
                    await self._readable()
                    self._heard_at = time.monotonic()  # of part of a record a link gives nothing
            self._look(limit_s)

    async def _readable(self) -> None:
        with self._lock:
            wanted = self._link.poll_for(reading=True, writing=False)
        if not wanted:
            await trio.lowlevel.checkpoint()
        for fd, _ in wanted:
            await trio.lowlevel.wait_readable(fd)

    def _look(self, limit_s: float) -> None:
        with self._lock:
            before = self._link.poll_for(reading=True, writing=False)
            has_come = self._step()
            moved = self.lost or before != self._link.poll_for(reading=True, writing=False)
            if self._has_reader and (has_come or moved):
                self._waker.set()  # what it sleeps on may be another connection than the next one
        if self.lost is not None:
            raise self.lost
        if time.monotonic() > self._heard_at + limit_s:
            raise trio.TooSlowError(f"nothing came for {limit_s:g} s")

    @property
    def _is_hot(self) -> bool:
        return self._has_reader or time.monotonic() < self._read_at + HOT_S

    def end(self) -> None:
        """Give the link up; a thread that reads it leaves."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            self._waker.set()
            if not self._has_reader:
                self._close()

    def _close(self) -> None:
        self._link.close()
        self._waker.close()

    # --- any thread -------------------------------------------------------------------------------

    def cool(self) -> None:
        """Somebody waits who does not read: the control thread shall."""
        if self._is_hot:
            self._read_at = float("-inf")
            self._wake_control()

    def _wake_control(self) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._end_pause)

    def _end_pause(self) -> None:
        self._pause.cancel()

    def read_until(self, awaiting: Awaiting) -> None:
        """Read until `awaiting` is over, or the link; at once if another thread reads."""
        self._read(awaiting, None)

    def read_for(self, direct: DirectReceive) -> None:
        """Read for `direct`, for a moment: most messages come so soon, and to post takes longer.

        A message that comes into the user's array by then is read to its end, or the link's.

        Return at once if another thread reads, or if the control thread may.
        """
        self._read(None, direct)

    def _read(self, awaiting: Awaiting | None, direct: DirectReceive | None) -> None:
        is_reader = False
        try:
            with self._lock:
                if self._is_over or self._has_reader or self.lost is not None:
                    return
                was_hot = self._is_hot
                if direct is not None and not was_hot:
                    return
                self.direct = direct
                self._has_reader = is_reader = True  # in one step: Ctrl-C may not come in between
            if direct is not None:
                self._try_for(direct)
                return
            if not was_hot:  # what the control thread waits for may have come when this one leaves
                self._wake_control()
            assert awaiting is not None, "one of the two"
            self._read_until(awaiting)
        finally:
            if is_reader:
                self.direct = None
                with self._lock:
                    self._has_reader = False
                    if self._is_over:
                        self._close()
                    self._read_at = time.monotonic()

    def _try_for(self, direct: DirectReceive) -> None:
        spins, until, stays = 0, time.monotonic() + DIRECT_S, False
        while True:
            self._waker.clear()
            if direct.is_over or self._is_over or self.lost is not None:
                return
            with self._lock:
                has_come = self._step()
            if has_come:
                if direct.is_filling:  # the pieces of one message come in quick succession
                    spins = 0
                continue
            spins += 1
            if spins < self._spins:
                let_others_run()
            elif stays:
                self._sleep_on_the_link()
            elif (left_s := until - time.monotonic()) > 0:
                self._sleep_on_the_link(left_s)
            elif self._may_leave(direct):
                return
            else:
                stays = True
                self._wake_control()  # it may wait for room; it alone ends a link that is silent

    def _may_leave(self, direct: DirectReceive) -> bool:
        """False while its message comes into the user's array, which it may not go back to."""
        with self._lock:
            if direct.is_filling:
                return False
            self.direct = None
            return True

    def _read_until(self, awaiting: Awaiting) -> None:
        spins = 0
        while True:
            self._waker.clear()
            if awaiting.is_over or self._is_over or self.lost is not None:
                return
            with self._lock:
                has_come = self._step()
            if has_come:
                spins = 0
            elif spins < self._spins:
                spins += 1
                let_others_run()
            else:
                self._sleep(awaiting)

    def _sleep(self, awaiting: Awaiting) -> None:
        try:
            awaiting.wake_by(self._waker)
            if not awaiting.is_over:  # asked again: until now nothing would have woken this thread
                self._sleep_on_the_link()
        finally:
            awaiting.wake_by(None)

    def _sleep_on_the_link(self, limit_s: float | None = None) -> None:
        poll = select.poll()
        poll.register(self._waker.fd, select.POLLIN)
        with self._lock:
            wanted = self._link.poll_for(reading=True, writing=False)
        for fd, mask in wanted:
            poll.register(fd, mask)
        limit_ms = None if limit_s is None else math.ceil(limit_s * 1000)
        if wanted and any(fd != self._waker.fd for fd, _ in poll.poll(limit_ms)):
            self._heard_at = time.monotonic()

    def _step(self) -> bool:
        """Under the lock: read what is there, and give messages on; False if there is nothing."""
        if self._is_over or self.lost is not None:
            return False
        try:
            count = self._link.recv_into(self._parser.space(head_alone=self._has_reader))
            self._heard_at = time.monotonic()
            if not count:
                self.lost = PeerClosed()
                return True
            for message in self._parser.fed(count):
                self._take(message)
        except BlockingIOError:
            return False
        except BROKEN as error:
            self.lost = error
        except BaseException:  # Ctrl-C: bytes may be gone that nobody has counted
            self.lost = OSError("reading was interrupted")
            raise
        return True
