"""Catching up in bulk: links over which a holder serves its checkpoint and log.

A request is answered by items: a framed header and raw bytes behind it.  A holder that has to pack
a lazy checkpoint first says so all the time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import trio

from ftcomm.collectives.chunking import STATE_LIMIT, pieces
from ftcomm.config.job_settings import PACKING_SIGNS
from ftcomm.control.background import BackgroundError, run_in_background
from ftcomm.control.driver import Driver
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
from ftcomm.errors import ProtocolError, StateChangedError
from ftcomm.memory.pool import EMPTY, Array, LoggedResult, dtype_from_wire, stored_from_wire
from ftcomm.protocol.handshake import DataContext
from ftcomm.protocol.link_messages import FetchEnd, FetchItem, FetchRequest, FetchWait
from ftcomm.protocol.position import PRELUDE
from ftcomm.protocol.signature import is_contributed, scalar_of
from ftcomm.recovery.events import (
    CheckpointFetched,
    FatalFound,
    FetchEnded,
    LocalFetched,
    ResultFetched,
    StartFetch,
)
from ftcomm.recovery.fetch_orders import ExpectedItems, Item, items_of
from ftcomm.state.layout import Packed, behind_each_other
from ftcomm.state.lazy import LazyState

_Outcome = Packed | StateChangedError | BackgroundError | None  # of packing a state

# --- the holder's side ------------------------------------------------------------------------


async def serve_fetch(driver: Driver, sock: trio.socket.SocketType, context: DataContext) -> None:
    """Send what is asked for."""
    with answering(driver, sock, context) as stream:
        await _serve(driver, stream, context.epoch)


async def _serve(driver: Driver, sock: ByteStream, epoch: int) -> None:
    request = await receive_request(sock, epoch, FetchRequest)
    state = None
    if request.load > PRELUDE:
        try:
            state = await _state(driver, sock, request.load)
        except StateChangedError as error:
            driver.apply(FatalFound(type(error).__name__, error.cause))
            return
        except BackgroundError as error:  # another holder may be able to
            driver.hub.log.warning("checkpoint %d cannot be packed: %s", request.load, error)
            await send_message(sock, FetchEnd(f"checkpoint {request.load}: {error.cause}"))
            return
    for item in items_of(request):
        found = _look_up(driver, item, state)
        if found is None:
            await send_message(sock, FetchEnd(f"{item} is not held here"))
            return
        driver.hub.fault("serving")
        stored = found.stored
        raw = stored.raw()
        await send_message(
            sock,
            FetchItem(
                what=item.what,
                position=item.position,
                signature=found.signature,
                dtype=stored.dtype,
                shape=stored.shape,
                nbytes=raw.nbytes,
                rank=item.rank,
                digests=stored.digests,
                site=found.site,
            ),
        )
        await send_all(sock, raw)
    await send_message(sock, FetchEnd())


class _Found(NamedTuple):
    """One thing that was asked for; a result has a signature, and maybe the line of its call."""

    stored: LoggedResult
    signature: bytes = b""
    site: str = ""


def _look_up(driver: Driver, item: Item, state: LoggedResult | None) -> _Found | None:
    """One thing that was asked for, None if it is not held.

    The checkpoint is `state`: it may have had to be packed.
    """
    if item.what == "checkpoint":
        return None if state is None else _Found(state)
    core = driver.hub.core
    with driver.hub.lock:
        core.freeze()
        local = core.archive.locals.get(item.position.version, item.rank)
        entry = core.log.get(item.position)
        site = ""
        if entry is not None and is_contributed(entry.signature):
            reached = core.progress.position
            site = entry.site or core.progress.recent.site_of(item.position, reached)
    if item.what == "local":
        return None if local is None else _Found(_as_stored(local))
    if entry is None:
        return None
    # a close that was served has no value of its own
    return _Found(entry.value or EMPTY, entry.signature, site)


async def _state(driver: Driver, sock: ByteStream, version: int) -> LoggedResult | None:
    """The checkpoint of `version`, packed now if it is kept lazily; None if it is not held.

    Raises:
        StateChangedError: it is not what it was.
        BackgroundError: it could not be packed.
    """
    with driver.hub.lock:
        checkpoint = driver.hub.core.archive.committed
    if checkpoint is None or checkpoint.version != version:
        return None
    value = checkpoint.value
    raw = await _packed(driver, sock, value) if isinstance(value, LazyState) else value
    return None if raw is None else _as_stored(raw)


async def _packed(driver: Driver, sock: ByteStream, state: LazyState) -> Packed | None:
    """Have a state packed beside the heartbeats, and tell the fetcher meanwhile that it comes.

    Packing has a task of its own, so that nothing ever cuts a message to the fetcher in two.
    """
    every = driver.hub.settings.detect_within / PACKING_SIGNS
    done, packed = trio.open_memory_channel[_Outcome](1)
    driver.nursery.start_soon(_pack, state, done)
    while True:
        with trio.move_on_after(every):
            raw = await packed.receive()
            if isinstance(raw, Exception):
                raise raw
            return raw
        await send_message(sock, FetchWait())


async def _pack(state: LazyState, done: trio.MemorySendChannel[_Outcome]) -> None:
    try:
        done.send_nowait(await run_in_background(state.raw))
    except (StateChangedError, BackgroundError) as error:
        done.send_nowait(error)


def _as_stored(raw: Packed) -> LoggedResult:
    flat: np.ndarray[Any, Any] = np.frombuffer(raw, np.uint8)
    return LoggedResult(flat, (len(raw),))


# --- the fetcher's side -----------------------------------------------------------------------


async def fetch(driver: Driver, order: StartFetch) -> None:
    """Take what the plan orders from one source; `FetchEnded` follows, unless the epoch ends."""
    with driver.epoch_scopes.opened():
        if driver.hub.core.view.epoch == order.epoch:
            await _fetch_from(driver, order)


async def _fetch_from(driver: Driver, order: StartFetch) -> None:
    failure = ""
    try:
        async with request_link(driver, order.epoch, order.source, "fetch") as stream:
            await send_message(stream, _request_of(order))
            due = ExpectedItems(order)
            while await _receive_item(driver, stream, order.epoch, due):
                pass
    except RelayLost as error:  # the source itself is not to blame
        driver.apply(link_down(order.epoch, order.source, error))
        return
    except BROKEN as error:
        failure = describe(error)
    driver.apply(FetchEnded(order.epoch, order.source, failure))


def _request_of(order: StartFetch) -> FetchRequest:
    return FetchRequest(
        epoch=order.epoch,
        load=order.load,
        runs=order.runs,
        local_version=order.local_version,
        locals=order.locals,
    )


async def _receive_item(driver: Driver, sock: ByteStream, epoch: int, due: ExpectedItems) -> bool:
    """Take one item, or the news that it will come; False after the last.

    Raises:
        ProtocolError: it is not what is `due`, or not as announced; nothing is stored.
    """
    item = await receive_message(sock)
    if isinstance(item, FetchWait):
        due.wait()
        return True
    if isinstance(item, FetchEnd):
        if item.missing:
            raise ProtocolError(item.missing)
        due.end()
        return False
    if not isinstance(item, FetchItem):
        raise ProtocolError(f"expected a result, got {type(item).__name__}")
    due.take(item)
    try:
        event = await _content(driver, sock, item, epoch)
    except (MemoryError, BackgroundError) as error:
        raise ProtocolError(f"no room for {item.nbytes} bytes: {error}") from None
    driver.hub.fault("loading")
    driver.apply(event)
    return True


async def _content(
    driver: Driver, sock: ByteStream, item: FetchItem, epoch: int
) -> CheckpointFetched | LocalFetched | ResultFetched:
    """The bytes behind an item's head; memory for them is taken as they come.

    A result has at most what the log's limit leaves, so its place is made at once, and the system
    gives it pages as they are written; to join several of that size would cost more than they do.
    """
    is_result, version = item.what == "result", item.position.version
    limit = _largest_result(driver) if is_result else STATE_LIMIT
    dtype = dtype_from_wire(item.dtype, item.shape, item.nbytes, limit)
    parts: list[Array] = []
    for piece in [slice(0, item.nbytes)] if is_result else pieces(item.nbytes):
        parts.append(np.empty(piece.stop - piece.start, np.uint8))
        await receive_into(sock, parts[-1].data)
    if is_result:
        stored = stored_from_wire(dtype, item.shape, parts[0])
        stored.digests = item.digests
        stored.scalar = scalar_of(item.signature)
        content = item.signature, stored, item.nbytes, item.site
        return ResultFetched(epoch, item.position, *content)
    state = await _beside(behind_each_other, parts)
    if item.what == "checkpoint":
        return CheckpointFetched(epoch, version, state)
    return LocalFetched(epoch, version, item.rank, state)


async def _beside(join: Callable[[list[Array]], Packed], parts: list[Array]) -> Packed:
    """The parts in one; several are large, and are joined beside the heartbeats."""
    return join(parts) if len(parts) == 1 else await run_in_background(join, parts)


def _largest_result(driver: Driver) -> int:
    """Bytes of one result that the log's limit lets a member keep its share of.

    A share is rounded down, so that one of the limit may be nearly one byte more.
    """
    settings, size = driver.hub.settings, driver.hub.core.contact.world_size
    return (settings.log_limit + 1) * size // min(size, settings.replicas)
