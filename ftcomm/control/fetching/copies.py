"""Copies of results: links over which a rank asks for what other ranks hold of it, or should give.

A request names several results, and is answered by each, or by the word that there is none.  A rank
that has yet to get its own result says so until it has (rule R20).
"""

import functools

import numpy as np
import trio

from ftcomm.control.driver import Driver
from ftcomm.control.fetching.offers import await_offer
from ftcomm.control.fetching.request_link import answering, receive_request, request_link
from ftcomm.control.links.dial import BROKEN, RelayLost, link_down
from ftcomm.control.message_stream import (
    ByteStream,
    receive_into,
    receive_message,
    send_all,
    send_message,
)
from ftcomm.diagnostics.os_errors import describe
from ftcomm.errors import ProtocolError
from ftcomm.memory.packed_result import result_digest
from ftcomm.memory.pool import Array, LoggedResult
from ftcomm.protocol.handshake import DataContext
from ftcomm.protocol.link_messages import CopyItem, CopyName, CopyRequest, FetchWait
from ftcomm.recovery.archive.archive import ResultCopy
from ftcomm.recovery.contributions.contributed_calls import Offer
from ftcomm.recovery.events import CopyFetched, CopyLost, FetchCopies

# --- the side of the rank that is asked ---------------------------------------------------------


async def serve_copies(driver: Driver, sock: trio.socket.SocketType, context: DataContext) -> None:
    """Send what the rank asks for that may have it."""
    with answering(driver, sock, context) as stream:
        await _serve(driver, stream, context)


async def _serve(driver: Driver, stream: ByteStream, context: DataContext) -> None:
    request = await receive_request(stream, context.epoch, CopyRequest)
    for name in request.names:
        look = functools.partial(driver.hub.core.copied.offer, name, context.from_rank)
        offer = await await_offer(driver, stream, look)
        driver.hub.fault("serving")
        if isinstance(offer, Offer):
            await send_message(stream, CopyItem(0, 0, offer.value))
            continue
        raw = offer.value.raw()
        await send_message(stream, CopyItem(offer.epoch, raw.nbytes))
        await send_all(stream, raw)


# --- the side of the rank that lacks results ----------------------------------------------------


async def ask_for_copies(driver: Driver, order: FetchCopies) -> None:
    """Ask one rank for all that `order` names."""
    with driver.epoch_scopes.opened():
        if driver.hub.core.view.epoch == order.epoch:
            await _ask(driver, order)


async def _ask(driver: Driver, order: FetchCopies) -> None:
    epoch, rank, due = order.epoch, order.rank, list(order.names)
    try:
        async with request_link(driver, epoch, rank, "copies") as stream:
            await send_message(stream, CopyRequest(epoch, order.names))
            while due:
                answer = await _answer(driver, stream, order, due[0])
                del due[0]
                driver.apply(answer)
                driver.contributions.tell()  # a rank may wait here for what has come
    except RelayLost as error:  # the rank itself is not to blame
        driver.apply(link_down(epoch, rank, error))
    except BROKEN as error:
        if due:
            driver.apply(CopyLost(epoch, due[0], rank, describe(error)))


async def _answer(
    driver: Driver, stream: ByteStream, order: FetchCopies, name: CopyName
) -> CopyFetched | CopyLost:
    """One result, or the word that there is none.

    Raises:
        ProtocolError: something else; nothing is kept of it.
    """
    while isinstance(message := await receive_message(stream), FetchWait):
        pass
    if not isinstance(message, CopyItem):
        raise ProtocolError(f"expected a result, got {type(message).__name__}")
    if message.missing:
        return CopyLost(order.epoch, name, order.rank, message.missing, is_gone=True)
    flat = await _content(driver, stream, message.nbytes)
    copy = ResultCopy(message.made_in, result_digest(flat), LoggedResult(flat, flat.shape))
    return CopyFetched(order.epoch, name, order.rank, copy)


async def _content(driver: Driver, stream: ByteStream, nbytes: int) -> Array:
    """The bytes behind a result's head; the log has room for a result as large as its limit."""
    limit = driver.hub.settings.log_limit
    if nbytes > limit:
        raise ProtocolError(f"a result of {nbytes} bytes, the log's limit is {limit}")
    try:
        raw: Array = np.empty(nbytes, np.uint8)
    except MemoryError as error:
        raise ProtocolError(f"no room for {nbytes} bytes: {error}") from None
    await receive_into(stream, raw.data)
    driver.hub.fault("loading")
    return raw
