"""Serving: this rank's messages to one other, sent as it asks for them and as they are made."""

import itertools

import trio

from ftcomm.config.job_settings import PACKING_SIGNS
from ftcomm.control.driver import Driver
from ftcomm.control.links.checksums import checked_stream
from ftcomm.control.links.dial import BROKEN
from ftcomm.control.message_stream import ByteStream, receive_message, send_all
from ftcomm.errors import ProtocolError
from ftcomm.memory.message_value import MessageValue
from ftcomm.protocol.codec import encode
from ftcomm.protocol.handshake import DataContext
from ftcomm.protocol.link_messages import FetchWait, MessageItem, MessageRequest
from ftcomm.recovery.events import MessagesClaimed
from ftcomm.recovery.messages.names import Mark
from ftcomm.recovery.messages.sent_log import SentMessage

BATCH = 64  # messages between two looks whether something else was asked for
JOINED_BYTES = 1 << 14  # a message of so many is sent with others in one piece


async def serve_messages(
    driver: Driver, sock: trio.socket.SocketType, context: DataContext
) -> None:
    """Send what is asked for until the epoch ends: the next plan lets the receiver ask again."""
    with trio.CancelScope() as scope:
        driver.epoch_scopes.add(scope)
        try:
            await _Feed(driver, sock, context).run()
        finally:
            driver.epoch_scopes.discard(scope)


class _Feed:
    """One link, over which one receiver asks once for each version."""

    def __init__(self, driver: Driver, sock: trio.socket.SocketType, context: DataContext) -> None:
        self._driver, self._context = driver, context
        self._stream: ByteStream = checked_stream(driver.hub, sock, context.from_rank)
        self._request: MessageRequest | None = None
        self._numbers: dict[bytes, int] = {}  # of the request: what the receiver has, by tag
        self._at = 0  # entries of the log that have been sent, or that it does not need

    async def run(self) -> None:
        """Read requests and send messages, until the link ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_until_broken, nursery.cancel_scope)
            try:
                while True:
                    self._take(await receive_message(self._stream))
            except BROKEN as error:
                self._note_end(error)
            nursery.cancel_scope.cancel()

    def _note_end(self, error: Exception) -> None:
        rank = self._context.from_rank
        self._driver.hub.log.debug("sending messages to rank %d ended: %r", rank, error)

    def _take(self, message: object) -> None:
        """Take a request: it says what the receiver has."""
        epoch, rank = self._context.epoch, self._context.from_rank
        if not isinstance(message, MessageRequest) or message.epoch != epoch:
            raise ProtocolError(f"expected a request of epoch {epoch}, got {message!r:.200}")
        marks = {mark.tag: Mark(mark.number, mark.running) for mark in message.marks}
        claimed = MessagesClaimed(epoch, rank, message.version, tuple(marks.items()))
        self._driver.apply(claimed)
        self._request, self._at = message, 0
        self._numbers = {tag: mark.number for tag, mark in marks.items()}
        self._driver.message_news.tell()

    async def _send_until_broken(self, scope: trio.CancelScope) -> None:
        try:
            await self._send_all()
        except BROKEN as error:
            self._note_end(error)
        scope.cancel()

    async def _send_all(self) -> None:
        """Send messages as they are made; while none is, say so: only silence is suspect."""
        every = self._driver.hub.settings.detect_within / PACKING_SIGNS
        with self._driver.message_news.watched() as news:
            while True:
                sent = news.next()  # before the look: what is sent behind it sets this event
                batch = self._next_batch()
                if batch:
                    await self._send(batch)
                    continue
                with trio.move_on_after(every) as patience:
                    await sent.wait()
                if patience.cancelled_caught:
                    await send_all(self._stream, encode(FetchWait()))

    def _next_batch(self) -> list[SentMessage]:
        """Messages of the log that come next; none where the receiver is in another version."""
        request, core = self._request, self._driver.hub.core
        if request is None:
            return []
        to = self._context.from_rank
        with self._driver.hub.lock:
            following = core.messages.following(to, request.version, self._at, self._numbers)
            found = list(itertools.islice(following, BATCH))
        if found:
            self._at = found[-1][0]
        return [message for _, message in found]

    async def _send(self, batch: list[SentMessage]) -> None:
        """Send small messages together, and a large one from the log's own memory."""
        assert self._request is not None, "it was asked for"
        version, joined = self._request.version, bytearray()
        for message in batch:
            value: MessageValue = message.value
            raw = value.stored.raw()
            joined += encode(_head(version, message, value, raw.nbytes))
            if raw.nbytes <= JOINED_BYTES:
                joined += raw
                continue
            await send_all(self._stream, memoryview(joined))
            joined = bytearray()
            self._driver.hub.fault("serving")
            await send_all(self._stream, raw)
        self._driver.hub.fault("serving")
        await send_all(self._stream, memoryview(joined))


def _head(version: int, message: SentMessage, value: MessageValue, nbytes: int) -> MessageItem:
    stored = value.stored
    return MessageItem(
        version=version,
        tag=message.stream.tag,
        number=message.number,
        digest=message.digest,
        content=value.content,
        dtype=stored.dtype,
        shape=stored.shape,
        nbytes=nbytes,
    )
