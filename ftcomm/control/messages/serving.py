"""Serving: this rank's messages to one other, sent as it asks for them and as they are made."""

import trio

from ftcomm.config.job_settings import PACKING_SIGNS
from ftcomm.control.driver import Driver
from ftcomm.control.links.checksums import checked_stream, digest_for
from ftcomm.control.links.dial import BROKEN
from ftcomm.control.message_stream import ByteStream, receive_message, send_all
from ftcomm.control.messages.feed import Feed
from ftcomm.control.messages.own_socket import own_socket
from ftcomm.errors import ProtocolError
from ftcomm.protocol.codec import encode
from ftcomm.protocol.handshake import DataContext
from ftcomm.protocol.link_messages import FetchWait, MessageRequest
from ftcomm.recovery.events import MessagesClaimed
from ftcomm.recovery.messages.names import Mark


async def serve_messages(
    driver: Driver, sock: trio.socket.SocketType, context: DataContext
) -> None:
    """Send what is asked for until the epoch ends: the next plan lets the receiver ask again."""
    with driver.epoch_scopes.opened(), driver.hub.kept_from_children(sock):
        link = _MessageLink(driver, sock, context)
        try:
            await link.run()
        finally:
            link.end()


class _MessageLink:
    """One link, over which one receiver asks once for each version."""

    def __init__(self, driver: Driver, sock: trio.socket.SocketType, context: DataContext) -> None:
        self._driver, self._hub, self._context = driver, driver.hub, context
        self._stream: ByteStream = checked_stream(driver.hub, sock, context.from_rank)
        is_plain = digest_for(driver.hub, context.from_rank) is None
        self._feed = Feed(
            driver.hub.core.messages,
            context.from_rank,
            own_socket(sock) if is_plain else None,
            driver.message_news.note,
        )

    def end(self) -> None:
        """Nobody writes any more."""
        with self._hub.lock:
            if self._hub.feeds.get(self._context.from_rank) is self._feed:
                del self._hub.feeds[self._context.from_rank]
        self._feed.end()

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
        self._hub.log.debug("sending messages to rank %d ended: %r", rank, error)

    def _take(self, message: object) -> None:
        """Take a request: it says what the receiver has."""
        epoch, rank = self._context.epoch, self._context.from_rank
        if not isinstance(message, MessageRequest) or message.epoch != epoch:
            raise ProtocolError(f"expected a request of epoch {epoch}, got {message!r:.200}")
        marks = tuple((mark.tag, Mark(mark.number, mark.running)) for mark in message.marks)
        self._driver.apply(MessagesClaimed(epoch, rank, message.version, marks))
        with self._hub.lock:
            self._feed.ask(message)
            self._hub.feeds[rank] = self._feed
        self._driver.message_news.tell()

    async def _send_until_broken(self, scope: trio.CancelScope) -> None:
        try:
            await self._send_all()
        except BROKEN as error:
            self._note_end(error)
        scope.cancel()

    async def _send_all(self) -> None:
        """Send messages as they are made; while none is, say so: only silence is suspect."""
        every = self._hub.settings.detect_within / PACKING_SIGNS
        with self._driver.message_news.watched() as news:
            while True:
                sent = news.next()  # before the look: what is sent behind it sets this event
                if await self._send_next():
                    continue
                with trio.move_on_after(every) as patience:
                    await sent.wait()
                if patience.cancelled_caught:
                    await self._send_sign()

    async def _send_next(self) -> bool:
        """Send what comes next; False if there is nothing, or another thread sends."""
        with self._hub.lock:
            pieces = self._feed.next_pieces()
        try:
            for piece in pieces:
                self._hub.fault("serving")
                await send_all(self._stream, memoryview(piece))
        finally:
            if pieces:
                self._written()
        return bool(pieces)

    async def _send_sign(self) -> None:
        """Say that there is nothing, unless another thread says more just now."""
        with self._hub.lock:
            may_write = self._feed.may_write()
        if may_write:
            try:
                await send_all(self._stream, encode(FetchWait()))
            finally:
                self._written()

    def _written(self) -> None:
        with self._hub.lock:
            self._feed.written()
