"""Serving: this rank's messages to one other, sent as it asks for them and as they are made."""

import trio

from ftcomm.config.job_settings import PACKING_SIGNS
from ftcomm.control.driver import Driver
from ftcomm.control.links.dial import BROKEN
from ftcomm.control.links.link_stream import LinkStream
from ftcomm.control.message_stream import receive_message, send_all
from ftcomm.control.messages.feed import Feed
from ftcomm.errors import ProtocolError
from ftcomm.protocol.handshake import DataContext
from ftcomm.protocol.link_messages import MessageRequest
from ftcomm.protocol.message_head import NOTHING
from ftcomm.recovery.events import MessagesClaimed
from ftcomm.recovery.messages.names import Mark
from ftcomm.transport.link import Link


async def serve_messages(driver: Driver, link: Link, context: DataContext) -> None:
    """Send what is asked for until the epoch ends: the next plan lets the receiver ask again.

    It owns `link`.
    """
    with driver.epoch_scopes.opened():
        served = _MessageLink(driver, link, context)
        driver.hub.message_links.add(link)
        try:
            await served.run()
        finally:
            served.end()
            driver.hub.message_links.discard(link)


class _MessageLink:
    """One link, over which one receiver asks once."""

    def __init__(self, driver: Driver, link: Link, context: DataContext) -> None:
        self._driver, self._hub, self._context = driver, driver.hub, context
        self._stream = LinkStream(link)
        self._feed = Feed(
            driver.hub.core.messages, context.from_rank, link, driver.message_news.note
        )

    def end(self) -> None:
        """Nobody writes any more."""
        with self._hub.lock:
            if self._hub.feeds.get(self._context.from_rank) is self._feed:
                del self._hub.feeds[self._context.from_rank]
        self._feed.end()

    async def run(self) -> None:
        """Read a request and send messages, until the link ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_until_broken, nursery.cancel_scope)
            try:
                self._take(await receive_message(self._stream))
                again = await receive_message(self._stream)
                raise ProtocolError(f"expected one request, got {again!r:.200} behind it")
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
            if self._hub.core.view.epoch != epoch:  # its link was opened as the epoch ended
                raise ProtocolError(f"epoch {epoch} is over")
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
                await send_all(self._stream, NOTHING)
            finally:
                self._written()

    def _written(self) -> None:
        with self._hub.lock:
            self._feed.written()
