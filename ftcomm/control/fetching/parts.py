"""Parts of contributed calls: links over which a rank asks for what others give to a call (R20).

A request is answered by one part.  The rank that is asked may have been restarted itself: it says
so until it has made that call again.
"""

import functools
import time
from typing import Any

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
from ftcomm.memory.pool import LoggedResult, dtype_from_wire, stored_from_wire
from ftcomm.protocol.handshake import DataContext
from ftcomm.protocol.link_messages import FetchEnd, FetchWait, PartItem, PartRequest
from ftcomm.protocol.messages import ControlMessage
from ftcomm.protocol.position import Position
from ftcomm.recovery.archive.archive import Contribution
from ftcomm.recovery.contributions.contributed_calls import Offer
from ftcomm.recovery.events import FetchParts, PartFetched, PartLost

# --- the side of the rank that has the part -----------------------------------------------------


async def serve_part(driver: Driver, sock: trio.socket.SocketType, context: DataContext) -> None:
    """Send one part to the rank that asks."""
    with answering(driver, sock, context) as stream:
        await _serve(driver, stream, context)


async def _serve(driver: Driver, stream: ByteStream, context: DataContext) -> None:
    request = await receive_request(stream, context.epoch, PartRequest)
    look = functools.partial(driver.hub.core.contributed.offer, request.position)
    offer = await await_offer(driver, stream, look)
    driver.hub.fault("serving")
    if isinstance(offer, Offer):
        await send_message(stream, FetchEnd(offer.value))
        return
    part = part_for(offer, context.from_rank)
    raw = part.raw()
    await send_message(stream, PartItem(offer.signature, part.dtype, part.shape, raw.nbytes))
    await send_all(stream, raw)


def part_for(contribution: Contribution, rank: int) -> LoggedResult:
    """The rows of a contribution that are meant for `rank`, in the contribution's own memory."""
    value: LoggedResult = contribution.value
    lo, hi = contribution.extents[rank]
    width = len(value.flat) // value.shape[0] if value.shape[0] else 0
    return LoggedResult(value.flat[lo * width : hi * width], (hi - lo, *value.shape[1:]))


# --- the side of the rank that lacks the part ---------------------------------------------------


def ask_for_parts(driver: Driver, order: FetchParts) -> None:
    """Ask each of the ranks on a link of its own."""
    for rank in order.ranks:
        driver.nursery.start_soon(_ask, driver, order.epoch, order.position, rank)


async def _ask(driver: Driver, epoch: int, position: Position, rank: int) -> None:
    with driver.epoch_scopes.opened():
        if driver.hub.core.view.epoch == epoch:
            await _ask_rank(driver, epoch, position, rank)


async def _ask_rank(driver: Driver, epoch: int, position: Position, rank: int) -> None:
    try:
        async with request_link(driver, epoch, rank, "part") as stream:
            await send_message(stream, PartRequest(epoch, position))
            answer = await _answer(driver, stream, position, rank)
    except RelayLost as error:  # the rank itself is not to blame
        driver.apply(link_down(epoch, rank, error))
    except BROKEN as error:
        driver.apply(PartLost(epoch, position, rank, describe(error)))
    else:
        if isinstance(answer, FetchEnd):
            driver.apply(PartLost(epoch, position, rank, answer.missing, is_gone=True))
        else:
            driver.apply(PartFetched(epoch, position, rank, answer))


async def _answer(
    driver: Driver, stream: ByteStream, position: Position, rank: int
) -> LoggedResult | FetchEnd:
    """The part, or the word that there is none.

    Raises:
        ProtocolError: something else, or a part of another call; nothing is kept of it.
    """
    message = await _first_but_waits(driver, stream, rank)
    match message:
        case FetchEnd():
            return message
        case PartItem():
            return await _content(driver, stream, message, position)
        case _:
            raise ProtocolError(f"expected a part, got {type(message).__name__}")


async def _first_but_waits(driver: Driver, stream: ByteStream, rank: int) -> ControlMessage:
    """The answer itself; while `rank` says that it has yet to come, heartbeats name it.

    While bytes of the part arrive they do not: the tracker would take the link for dead.
    """
    late = driver.hub.late_parts
    try:
        while isinstance(message := await receive_message(stream), FetchWait):
            late.setdefault(rank, time.monotonic())
    finally:
        late.pop(rank, None)
    return message


async def _content(
    driver: Driver, stream: ByteStream, item: PartItem, position: Position
) -> LoggedResult:
    """The bytes behind a part's head; memory for them is taken once the head has been checked."""
    with driver.hub.lock:
        driver.hub.core.freeze()
        entry = driver.hub.core.log.get(position)
    if entry is None or entry.signature != item.signature:
        raise ProtocolError(f"a part of another call than the one at {position}")
    limit = driver.hub.settings.log_limit  # a contribution counts whole
    dtype = dtype_from_wire(item.dtype, item.shape, item.nbytes, limit)
    try:
        raw: np.ndarray[Any, Any] = np.empty(item.nbytes, np.uint8)
    except MemoryError as error:
        raise ProtocolError(f"no room for {item.nbytes} bytes: {error}") from None
    await receive_into(stream, raw.data)
    driver.hub.fault("loading")
    return stored_from_wire(dtype, item.shape, raw)
