"""Orders of the machine to fetch, or to ask: each is carried out by tasks of its own."""

import trio

from ftcomm.control.driver import Driver, FetchOrder
from ftcomm.control.fetching.copies import ask_for_copies
from ftcomm.control.fetching.fetch import fetch
from ftcomm.control.fetching.parts import ask_for_parts
from ftcomm.control.fetching.prefetch import prefetch
from ftcomm.control.messages.asking import ask_for_messages
from ftcomm.recovery.events import AskForMessages, FetchCopies, FetchParts, StartPrefetch


async def keep_fetching(driver: Driver, orders: trio.MemoryReceiveChannel[FetchOrder]) -> None:
    """Carry out the plans' fetches, one task for each source, and what else is fetched."""
    async for order in orders:
        if isinstance(order, StartPrefetch):
            driver.nursery.start_soon(prefetch, driver, order)
        elif isinstance(order, FetchParts):
            ask_for_parts(driver, order)
        elif isinstance(order, FetchCopies):
            driver.nursery.start_soon(ask_for_copies, driver, order)
        elif isinstance(order, AskForMessages):
            driver.nursery.start_soon(ask_for_messages, driver, order)
        else:
            driver.nursery.start_soon(fetch, driver, order)
