"""Offers: what another rank asks for, awaited where this rank has yet to get it (rule R20).

A rank that was restarted itself makes its calls again, and serves meanwhile.  The asker hears so
until the answer is there: only silence ends a link early.
"""

from collections.abc import Callable
from typing import TypeVar

import trio

from ftcomm.config.job_settings import PACKING_SIGNS
from ftcomm.control.driver import Driver
from ftcomm.control.message_stream import ByteStream, send_message
from ftcomm.protocol.link_messages import FetchWait
from ftcomm.recovery.contributions.contributed_calls import Offer

T = TypeVar("T")


async def await_offer(driver: Driver, sock: ByteStream, look: Callable[[], T | Offer]) -> T | Offer:
    """Return what `look` finds, as soon as that is not `NOT_YET`.

    Args:
        driver: whose core is looked into.
        sock: leads to the asker.
        look: asks the core; called with the hub's lock.
    """
    every = driver.hub.settings.detect_within / PACKING_SIGNS
    with driver.contributions.watched() as news:
        while True:
            came = news.next()  # before the look: what comes behind it sets this event
            with driver.hub.lock:
                offer = look()
            if offer is not Offer.NOT_YET:
                return offer
            with trio.move_on_after(every) as patience:
                await came.wait()
            if patience.cancelled_caught:
                await send_message(sock, FetchWait())
