"""Asking: links over which this rank gets the messages of others."""

import math
from typing import TYPE_CHECKING

import trio

from ftcomm.control.idle_timeout import IdleTimeoutStream
from ftcomm.control.links.dial import BROKEN, RelayLost, link_down
from ftcomm.control.links.link_stream import LinkStream
from ftcomm.control.links.manager import open_message_link
from ftcomm.control.message_stream import ByteStream, send_message
from ftcomm.control.messages.arrivals import Arrivals
from ftcomm.control.messages.intake import SPINS_ALONE, SPINS_SHARED, Intake
from ftcomm.control.messages.message_head import MessageHead
from ftcomm.control.messages.message_parser import MessageParser, ParsedMessage
from ftcomm.diagnostics.os_errors import describe
from ftcomm.memory.pool import Array
from ftcomm.protocol.link_messages import MessageRequest, StreamMark
from ftcomm.recovery.events import AskForMessages, MessagesLost
from ftcomm.transport.link import Link
from ftcomm.transport.waiting import spins_before_sleep

if TYPE_CHECKING:
    from ftcomm.control.driver import Driver

# Of one source, in this rank's memory, before its user asks for them; each counts with
# `ENTRY_BYTES` more. A source that has sent more waits, unless the user waits for a message of it:
# what is waited for may be behind others.
READ_AHEAD_BYTES = 64 << 20
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
            link = await open_message_link(driver, epoch, source)
        except RelayLost as error:  # the source itself is not to blame
            driver.apply(link_down(epoch, source, error))
            return
        except BROKEN as error:
            driver.apply(MessagesLost(epoch, source, f"cannot connect: {describe(error)}"))
            return
        try:
            intake = self._intake(link, epoch, source)
        except OSError as error:  # no descriptor is left for it
            link.close()
            driver.apply(MessagesLost(epoch, source, describe(error)))
            return
        driver.hub.message_links.add(link)
        driver.hub.intakes[source] = intake
        try:
            cause = await self._take_until_broken(intake, link, source, orders)
        finally:
            if driver.hub.intakes.get(source) is intake:
                del driver.hub.intakes[source]
            intake.end()
            driver.hub.message_links.discard(link)
        driver.apply(MessagesLost(epoch, source, cause))

    def _intake(self, link: Link, epoch: int, source: int) -> Intake:
        """Return the intake by which the messages of `source` are read."""
        arrivals = Arrivals(self._driver, epoch, source)

        def place_for(head: MessageHead) -> Array:
            return arrivals.place_for(head, intake.direct)

        def take(message: ParsedMessage) -> None:
            arrivals.take(message, intake)

        view = self._driver.hub.core.view
        ranks = view.grouping.count(view.grouping[view.rank])
        spins = spins_before_sleep(ranks, SPINS_ALONE, SPINS_SHARED)
        intake = Intake(link, MessageParser(place_for), take, spins)
        return intake

    async def _take_until_broken(
        self, intake: Intake, link: Link, source: int, orders: _Orders
    ) -> str:
        """Ask for messages and take them; return why there are no more of them."""
        limit_s = self._driver.hub.settings.detect_within
        cause = ""

        async def room() -> None:
            await self._room(source)

        async with trio.open_nursery() as nursery:
            stream = IdleTimeoutStream(LinkStream(link), limit_s)
            nursery.start_soon(_send_requests, stream, orders)
            try:
                await intake.keep_reading(limit_s, room)
            except BROKEN as error:
                cause = describe(error)
            nursery.cancel_scope.cancel()
        return cause

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


async def _send_requests(stream: ByteStream, orders: _Orders) -> None:
    """Ask for each version; where that fails, who reads the link finds out."""
    try:
        async for order in orders:
            marks = tuple(StreamMark(tag, *mark) for tag, mark in order.marks)
            await send_message(stream, MessageRequest(order.epoch, order.version, marks))
    except BROKEN:
        return
