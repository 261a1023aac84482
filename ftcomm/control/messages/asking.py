"""Asking: links over which this rank gets the messages of others."""

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import trio

from ftcomm.collectives.dtypes import dtype_of
from ftcomm.control.idle_timeout import IdleTimeoutStream
from ftcomm.control.links.checksums import checked_stream, digest_for
from ftcomm.control.links.dial import BROKEN, RelayLost
from ftcomm.control.links.manager import link_down, open_peer
from ftcomm.control.message_stream import ByteStream, PeerClosed, send_message
from ftcomm.control.messages.intake import Intake
from ftcomm.control.messages.message_parser import MessageParser, ParsedMessage
from ftcomm.control.messages.own_socket import own_socket
from ftcomm.diagnostics.os_errors import describe
from ftcomm.errors import ProtocolError
from ftcomm.memory.message_value import MessageValue
from ftcomm.memory.pool import Array, dtype_from_wire, stored_from_wire
from ftcomm.protocol.link_messages import (
    Content,
    MessageItem,
    MessageRequest,
    StreamMark,
)
from ftcomm.recovery.events import AskForMessages, MessageArrived, MessagesLost

if TYPE_CHECKING:
    from ftcomm.control.driver import Driver

# Of one source, in this rank's memory, before its user asks for them. A source that has sent more
# waits, unless the user waits for a message of it: what is waited for may be behind others.
READ_AHEAD_BYTES = 64 << 20
# From here on a message that is waited for is received where its user wants it: a copy costs more
# than to look.
DIRECT_BYTES = 1 << 16

_Orders = trio.MemoryReceiveChannel[AskForMessages]


class MessageLinks:
    """The links of one worker, one to each source in an epoch; for the control thread."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._asking: dict[tuple[int, int], trio.MemorySendChannel[AskForMessages]] = {}

    def ask(self, order: AskForMessages) -> None:
        """Send a request, over the link of this epoch if there is one."""
        key = (order.epoch, order.source)
        orders = self._asking.get(key)
        if orders is None:
            orders, received = trio.open_memory_channel[AskForMessages](math.inf)
            self._asking[key] = orders
            self._driver.nursery.start_soon(self._run, *key, received)
        orders.send_nowait(order)

    async def _run(self, epoch: int, source: int, orders: _Orders) -> None:
        with self._driver.epoch_scopes.opened():
            try:
                if self._driver.hub.core.view.epoch == epoch:
                    await self._receive_all(epoch, source, orders)
            finally:
                self._asking.pop((epoch, source), None)

    async def _receive_all(self, epoch: int, source: int, orders: _Orders) -> None:
        """Take the messages of `source` until the link or the epoch ends."""
        driver = self._driver
        try:
            sock = await open_peer(driver, epoch, source, "messages", may_be_local=False)
        except RelayLost as error:  # the source itself is not to blame
            driver.apply(link_down(epoch, source, error))
            return
        except BROKEN as error:
            driver.apply(MessagesLost(epoch, source, f"cannot connect: {describe(error)}"))
            return
        with sock, driver.hub.kept_from_children(sock):
            patient = IdleTimeoutStream(sock, driver.hub.settings.detect_within)
            stream = checked_stream(driver.hub, patient, source)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_send_requests, stream, orders)
                cause = await self._take_until_broken(sock, stream, epoch, source)
                nursery.cancel_scope.cancel()
        driver.apply(MessagesLost(epoch, source, cause))

    async def _take_until_broken(
        self, sock: trio.socket.SocketType, stream: ByteStream, epoch: int, source: int
    ) -> str:
        """Take messages, and return why there are no more of them."""
        driver = self._driver

        def place_for(item: MessageItem) -> Array:
            return self._place_for(item, source)

        def take(message: ParsedMessage) -> None:
            driver.hub.fault("loading")
            driver.arrived(_arrived(message, epoch, source))

        async def room() -> None:
            await self._room(source)

        parser = MessageParser(place_for)
        try:
            if digest_for(driver.hub, source) is None:
                await self._read_plain(sock, parser, take, room, source)
            await _read_checked(stream, parser, take, room)
        except BROKEN as error:
            return describe(error)

    async def _read_plain(
        self,
        sock: trio.socket.SocketType,
        parser: MessageParser,
        take: Callable[[ParsedMessage], None],
        room: Callable[[], Awaitable[None]],
        source: int,
    ) -> None:
        """Read until the link ends, which raises; threads that receive may read it themselves."""
        hub = self._driver.hub
        intake = Intake(own_socket(sock), parser, take)
        hub.intakes[source] = intake
        try:
            await intake.keep_reading(hub.settings.detect_within, room)
        finally:
            if hub.intakes.get(source) is intake:
                del hub.intakes[source]
            intake.end()

    async def _room(self, source: int) -> None:
        """Return when more of `source` may be read."""
        receives = self._driver.hub.receives
        if receives.may_read(source, READ_AHEAD_BYTES):
            return
        with self._driver.taken_news.watched() as news:
            while True:
                taken = news.next()  # before the look: what is taken behind it sets this event
                if receives.may_read(source, READ_AHEAD_BYTES):
                    return
                await taken.wait()

    def _place_for(self, item: MessageItem, source: int) -> Array:
        """Memory for the bytes behind a message's head, which the user owns or will own."""
        hub = self._driver.hub
        dtype = dtype_from_wire(item.dtype, item.shape, item.nbytes, hub.settings.log_limit)
        if item.content != Content.OBJECT and item.nbytes >= DIRECT_BYTES:
            place = hub.receives.place_for(source, item, dtype)
            if place is not None:
                return place
        try:
            with hub.lock:
                return hub.pool.lend(item.nbytes, np.dtype(np.uint8))
        except MemoryError as error:
            raise ProtocolError(f"no room for {item.nbytes} bytes: {error}") from None


async def _read_checked(
    stream: ByteStream,
    parser: MessageParser,
    take: Callable[[ParsedMessage], None],
    room: Callable[[], Awaitable[None]],
) -> NoReturn:
    """Read until the link ends, which raises."""
    while True:
        await room()
        count = await stream.recv_into(parser.space())
        if not count:
            raise PeerClosed
        for message in parser.fed(count):
            take(message)


def _arrived(message: ParsedMessage, epoch: int, source: int) -> MessageArrived:
    item = message.item
    dtype = dtype_of(item.dtype)
    value = MessageValue(stored_from_wire(dtype, item.shape, message.raw), Content(item.content))
    return MessageArrived(
        epoch, source, item.version, item.tag, item.number, item.digest, value, item.nbytes
    )


async def _send_requests(stream: ByteStream, orders: _Orders) -> None:
    """Ask for each version; where that fails, who reads the link finds out."""
    try:
        async for order in orders:
            marks = tuple(StreamMark(tag, *mark) for tag, mark in order.marks)
            await send_message(stream, MessageRequest(order.epoch, order.version, marks))
    except BROKEN:
        return
