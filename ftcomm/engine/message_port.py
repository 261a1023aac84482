"""MessagePort: sends and receives of the user's threads, at the machine and at the control thread.

Messages keep no order with collectives and take no turn in the line of calls: any thread may send
or receive at any time.
"""

import threading
from typing import NoReturn

from ftcomm.control.hub import Hub
from ftcomm.control.messages.awaited_message import AwaitedMessage
from ftcomm.control.messages.direct_receive import DirectReceive
from ftcomm.control.messages.feed import Claim, Feed
from ftcomm.control.messages.posted_receives import PostedReceive
from ftcomm.control.thread import ControlThread
from ftcomm.errors import ClosedError, FtcommError, JobLostError, LogLimitError
from ftcomm.memory.late_copy import LateCopy
from ftcomm.memory.message_value import ENTRY_BYTES, MessageValue, digest_of
from ftcomm.memory.pool import LoggedResult, Pool
from ftcomm.protocol.field_types import MAX_TAGS
from ftcomm.recovery.events import FatalFound, MessagesWanted
from ftcomm.recovery.messages.sent_log import SentMessage
from ftcomm.requests.message_request import MessageForm, MessageToSend

_LAST = ("sent", "received")

# What ends this communicator instead of a message that was to be logged; its entry, if neither a
# thread sends it nor the log has a value of it; the link that takes it now, and its claim.
_Logged = tuple[FtcommError | None, SentMessage | None, Feed | None, Claim | None]


class MessagePort:
    """Messages of one communicator."""

    def __init__(self, hub: Hub, control: ControlThread) -> None:
        self._hub, self._control = hub, control
        self._messages = hub.core.messages
        self._number = 0  # of sends and receives, for planned faults

    # --- sending --------------------------------------------------------------------------------

    def send(self, message: MessageToSend) -> None:
        """Log a message, and have it sent to its receiver as soon as that asks.

        Raises:
            ValueError: it has a tag more than a rank may send to another.
            FtcommError: what ended this communicator, or ends it now.
        """
        hub = self._hub
        self._fault("sending")
        value, copy = self._kept(message)
        elements = message.elements if value is None else value.stored.flat
        digest = digest_of(elements, message.form.text)
        logged = None
        while logged is None:
            with hub.lock:
                move = self._move_to_wait_for()
                if move is None:
                    logged = self._log(message, value, digest)
            if move is not None:
                move.acquire()  # without the lock: see `Changes`
        error, entry, feed, claim = logged
        if error is not None:
            self._end_by(error)
        if feed is not None and claim is not None:
            hub.fault("serving")
            feed.write(claim, hub.lock, copy)
        else:
            if entry is not None and copy is not None:
                whole = copy.whole()
                with hub.lock:
                    entry.keep(whole)
            self._control.driver.message_news.note()
        self._fault("sent")

    def _move_to_wait_for(self) -> "threading.Lock | None":
        """Under the lock: while a cut is taken, return what can be taken when messages move.

        Raises:
            FtcommError: what ended this communicator; `ClosedError` where that was the cut.
        """
        core = self._hub.core
        if core.view.error is not None:
            raise core.view.error
        if core.progress.closed:
            raise ClosedError("this message was sent while the communicator was closed")
        if self._hub.receives.has_ended:
            raise ClosedError("the communicator ended before this message was sent")
        return self._hub.messages_move.next_one() if self._messages.hold.is_on else None

    def _log(self, message: MessageToSend, value: MessageValue | None, digest: bytes) -> _Logged:
        """Under the lock: give a message its place in the log; None is a value to be copied yet."""
        form, hub = message.form, self._hub
        nbytes = message.elements.nbytes + ENTRY_BYTES
        held = self._messages.nbytes_with(form.to, form.tag, nbytes)
        if held is None:
            raise _too_many_tags(form.to)
        if held > hub.settings.log_limit:
            return self._too_much(form), None, None, None
        message.has_place = True  # before it has: what a signal's handler raises may come between
        found = self._messages.send(form.to, form.tag, digest, value, form.site, nbytes)
        if found is not None:
            return JobLostError(found.cause), None, None, None
        feed = hub.feeds.get(form.to)
        claim = None if feed is None else feed.claim()
        if claim is not None or value is not None:
            return None, None, feed, claim
        stream = (hub.core.view.rank, form.to, form.tag)
        return None, self._messages.sent.newest(stream), feed, claim

    def _kept(self, message: MessageToSend) -> tuple[MessageValue | None, LateCopy | None]:
        """The message as the log keeps it; of a large one a copy that has yet to be made.

        It is a copy, or the user's own memory if that was lent.
        """
        form, flat = message.form, message.elements
        if not message.is_own and flat.nbytes < Pool.MIN_BYTES:
            flat = flat.copy()  # no pool has memory of so little, and this needs no lock
        value = MessageValue(LoggedResult(flat, form.shape), form.content)
        if message.is_own or flat.nbytes < Pool.MIN_BYTES:
            return value, None
        with self._hub.lock:
            room = self._hub.pool.take(len(flat), flat.dtype)
            self._give_back()
        return None, LateCopy(value, room)

    def _give_back(self) -> None:
        """Under the lock: memory of messages of a committed version may be used again."""
        released = self._messages.take_released()
        while released:
            self._hub.pool.give(released.pop().stored)

    def _too_much(self, form: MessageForm) -> LogLimitError:
        core, limit = self._hub.core, self._hub.settings.log_limit
        return LogLimitError(
            f"the messages that rank {core.view.rank} has sent since checkpoint"
            f" {core.progress.position.version}, now one to rank {form.to} at {form.site},"
            f" would take more than the limit of {limit} bytes",
            rank=core.view.rank,
            position=core.progress.position,
        )

    def _end_by(self, error: FtcommError) -> NoReturn:
        """Have `error` raised on all ranks, and here."""
        self._control.driver.act(FatalFound(type(error).__name__, error.cause))
        raise self._hub.receives.await_end()

    def _fault(self, point: str) -> None:
        if self._hub.faults is not None:
            self._hub.fault(point, self._number)
            self._number += point in _LAST

    # --- receiving ------------------------------------------------------------------------------

    def post(self, receive: PostedReceive) -> None:
        """Have a receive done as soon as its message is here."""
        self._fault("receiving")
        if self._hub.receives.post(receive):
            self._want(receive.source)

    def receive_directly(self, direct: DirectReceive) -> None:
        """Have a receive done by this thread, if its message begins to come just now.

        Its `value` says whether it is done; if not, it is to be posted.
        """
        hub = self._hub
        intake = hub.intakes.get(direct.source)
        if intake is None or hub.faults is not None:
            return
        if hub.receives.may_bypass(direct.source, direct.tag):
            intake.read_for(direct)

    def end_cut(self) -> None:
        """A checkpoint or close is over here: messages that were held up for it go on.

        So do those that have come ahead of it: receives that other threads have posted get them.
        """
        with self._hub.lock:
            self._messages.hold.end_cut()
            self._hub.messages_move.notify_all()
            is_closed = self._hub.core.progress.closed
        if not is_closed:
            self._hub.receives.look(self._want)

    def _want(self, source: int) -> None:
        self._control.driver.act(MessagesWanted(source))

    def wait(self, receive: PostedReceive, awaited: AwaitedMessage) -> None:
        """Wait until a posted receive is done; where its link allows that, by reading it."""
        intake = self._hub.intakes.get(receive.source)
        if intake is not None and not awaited.is_over:
            intake.read_until(awaited)
        awaited.wait()

    def cool(self) -> None:
        """A message is waited for by who does not read: the control thread reads all links."""
        for intake in list(self._hub.intakes.values()):
            intake.cool()

    def note_received(self) -> None:
        """The user has got a message."""
        self._fault("received")

    @property
    def open_receive(self) -> PostedReceive | None:
        """One for which no thread waits; None if there is none."""
        return self._hub.receives.first_pending()


def _too_many_tags(to: int) -> ValueError:
    return ValueError(
        f"rank {to} has been sent {MAX_TAGS} distinct tags since the last checkpoint, the maximum;"
        " use fewer, or checkpoint in between"
    )
