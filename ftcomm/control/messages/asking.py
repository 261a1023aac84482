"""Asking: links over which this rank gets the messages of others."""

import contextlib
from typing import TYPE_CHECKING

import trio

from ftcomm.control.idle_timeout import IdleTimeoutStream
from ftcomm.control.links.dial import BROKEN, RelayLost, link_down
from ftcomm.control.links.link_stream import LinkStream
from ftcomm.control.links.manager import open_message_link
from ftcomm.control.message_stream import ByteStream, send_message
from ftcomm.control.messages.arrivals import Arrivals
from ftcomm.control.messages.intake import SPINS_ALONE, SPINS_SHARED, Intake
from ftcomm.control.messages.message_parser import MessageParser, ParsedMessage
from ftcomm.diagnostics.os_errors import describe
from ftcomm.memory.pool import Array
from ftcomm.protocol.link_messages import MessageRequest, StreamMark
from ftcomm.protocol.message_head import MessageHead
from ftcomm.recovery.events import AskForMessages, MessagesLost
from ftcomm.transport.link import Link
from ftcomm.transport.waiting import spins_before_sleep

if TYPE_CHECKING:
    from ftcomm.control.driver import Driver

# Of one source, in this rank's memory, before its user asks for them; each counts with
# `ENTRY_BYTES` more. A source that has sent more waits, unless the user waits for a message of it:
# what is waited for may be behind others.
READ_AHEAD_BYTES = 64 << 20


async def ask_for_messages(driver: "Driver", order: AskForMessages) -> None:
    """Take the messages of a source until the link or the epoch ends; for the control thread."""
    with driver.epoch_scopes.opened():
        if driver.hub.core.view.epoch == order.epoch:
            await _SourceLink(driver, order).run()


class _SourceLink:
    """The link to one source in one epoch."""

    def __init__(self, driver: "Driver", order: AskForMessages) -> None:
        self._driver, self._order = driver, order

    async def run(self) -> None:
        """Open it, ask, and take what comes until it ends; report that to the machine."""
        driver, epoch, source = self._driver, self._order.epoch, self._order.source
        try:
            link = await open_message_link(driver, epoch, source)
        except RelayLost as error:  # the source itself is not to blame
            driver.apply(link_down(epoch, source, error))
            return
        except BROKEN as error:
            driver.apply(MessagesLost(epoch, source, f"cannot connect: {describe(error)}"))
            return
        try:
            intake = self._intake(link)
        except OSError as error:  # no descriptor is left for it
            link.close()
            driver.apply(MessagesLost(epoch, source, describe(error)))
            return
        driver.hub.message_links.add(link)
        driver.hub.intakes[source] = intake
        try:
            cause = await self._take_until_broken(intake, link)
        finally:
            if driver.hub.intakes.get(source) is intake:
                del driver.hub.intakes[source]
            intake.end()
            driver.hub.message_links.discard(link)
        driver.apply(MessagesLost(epoch, source, cause))

    def _intake(self, link: Link) -> Intake:
        """Return the intake by which the link is read."""
        arrivals = Arrivals(self._driver, self._order.epoch, self._order.source)

        def place_for(head: MessageHead) -> Array:
            return arrivals.place_for(head, intake.direct)

        def take(message: ParsedMessage) -> None:
            arrivals.take(message, intake)

        view = self._driver.hub.core.view
        ranks = view.grouping.count(view.grouping[view.rank])
        spins = spins_before_sleep(ranks, SPINS_ALONE, SPINS_SHARED)
        intake = Intake(link, MessageParser(place_for), take, spins)
        return intake

    async def _take_until_broken(self, intake: Intake, link: Link) -> str:
        """Ask for messages and take them; return why there are no more of them."""
        limit_s = self._driver.hub.settings.detect_within
        cause = ""
        async with trio.open_nursery() as nursery:
            stream = IdleTimeoutStream(LinkStream(link), limit_s)
            nursery.start_soon(_send_request, stream, self._order)
            try:
                await intake.keep_reading(limit_s, self._room)
            except BROKEN as error:
                cause = describe(error)
            nursery.cancel_scope.cancel()
        return cause

    async def _room(self) -> None:
        """Return when more of the source may be read."""
        source, receives = self._order.source, self._driver.hub.receives
        if receives.may_read(source, READ_AHEAD_BYTES):
            return
        with self._driver.taken_news.watched() as news:
            while True:
                taken = news.next()  # before the look: what is taken behind it sets this event
                if receives.may_read(source, READ_AHEAD_BYTES):
                    return
                await taken.wait()


async def _send_request(stream: ByteStream, order: AskForMessages) -> None:
    """Ask for messages; where that fails, who reads the link finds out."""
    marks = tuple(StreamMark(tag, *mark) for tag, mark in order.marks)
    with contextlib.suppress(*BROKEN):
        await send_message(stream, MessageRequest(order.epoch, order.version, marks))
