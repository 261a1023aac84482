"""Catching up in bulk: fetch links over which a holder serves its checkpoint and log.

A fetch link is authenticated as any link of its epoch.  It asks once, then receives items: a
framed header and raw bytes behind it.  It belongs to the control threads of both sides, so that a
holder serves while its user computes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import trio

from ftcomm.control.checking import checked_stream
from ftcomm.control.dialling import BROKEN, RelayLost
from ftcomm.control.driver import Driver
from ftcomm.control.links import link_down, open_peer
from ftcomm.control.wire import (
    Stream,
    describe,
    receive_into,
    receive_message,
    send_all,
    send_message,
)
from ftcomm.errors import ProtocolError, StateChangedError
from ftcomm.lazy_state import LazyState
from ftcomm.protocol.handshake import DataContext
from ftcomm.protocol.messages import FetchEnd, FetchItem, FetchRequest
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.recovery.events import (
    CheckpointFetched,
    FetchEnded,
    Found,
    LocalFetched,
    ResultFetched,
    StartFetch,
)
from ftcomm.values import EMPTY, Stored, stored_from_wire

CHECKPOINT_LIMIT = (
    1 << 40
)  # bytes; as large as a state or local state may be, far below what breaks arithmetic


# --- the holder's side ------------------------------------------------------------------------


async def serve_fetch(driver: Driver, sock: trio.socket.SocketType, context: DataContext) -> None:
    """Send what is asked for; an epoch change ends it, and the next plan asks again."""
    with trio.CancelScope() as scope:
        driver.epoch_scopes.add(scope)
        try:
            await _serve(driver, checked_stream(driver.hub, sock, context.from_rank), context.epoch)
        except BROKEN as error:
            driver.hub.log.debug("serving rank %d ended: %r", context.from_rank, error)
        finally:
            driver.epoch_scopes.discard(scope)


async def _serve(driver: Driver, sock: Stream, epoch: int) -> None:
    request = await receive_message(sock)
    if not isinstance(request, FetchRequest) or request.epoch != epoch:
        raise ProtocolError(f"expected a fetch request of epoch {epoch}, got {request!r:.200}")
    if request.load > PRELUDE and not await _is_packed(driver, request.load):
        return
    for item in _asked_for(driver, request):
        if item.stored is None:
            await send_message(sock, FetchEnd(f"{item} is not held here"))
            return
        driver.hub.fault("serving")
        raw, stored = item.stored.raw(), item.stored
        await send_message(
            sock,
            FetchItem(
                what=item.what,
                position=item.position,
                signature=item.signature,
                dtype=stored.dtype,
                shape=stored.shape,
                nbytes=raw.nbytes,
                rank=item.rank,
                digests=stored.digests,
            ),
        )
        await send_all(sock, raw)
    await send_message(sock, FetchEnd())


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """One thing that was asked for; `stored` is None if it is not held."""

    what: str
    position: Position
    stored: Stored | None
    signature: bytes = b""
    rank: int = -1

    def __str__(self) -> str:
        owner = "" if self.rank < 0 else f" of rank {self.rank}"
        return f"{self.what} {self.position}{owner}"


def _asked_for(driver: Driver, request: FetchRequest) -> Iterator[_Item]:
    hub = driver.hub
    if request.load > PRELUDE:
        with hub.lock:
            checkpoint = hub.core.checkpoint
        held = None
        if checkpoint is not None and checkpoint.version == request.load:
            held = _held(checkpoint.value)
        yield _Item("checkpoint", Position(0, request.load, 0), held)
    for rank in request.locals:
        with hub.lock:
            local = hub.core.locals.get(request.local_version, rank)
        held = None if local is None else _as_stored(local)
        yield _Item("local", Position(0, request.local_version, 0), held, rank=rank)
    for run in request.runs:
        for seqno in run.seqnos():
            position = Position(0, run.version, seqno)
            with hub.lock:
                entry = hub.core.log.get(position)
            if entry is None:
                yield _Item("result", position, None)
            else:  # a close that was served has no value of its own
                yield _Item("result", position, entry.value or EMPTY, entry.signature)


async def _is_packed(driver: Driver, version: int) -> bool:
    """Pack a state that is kept lazily, beside the heartbeats; False if it is not what it was."""
    with driver.hub.lock:
        checkpoint = driver.hub.core.checkpoint
    if checkpoint is None or checkpoint.version != version:
        return True
    if isinstance(checkpoint.value, LazyState):
        try:
            await trio.to_thread.run_sync(checkpoint.value.raw)
        except StateChangedError as error:
            driver.apply(Found(type(error).__name__, error.cause))
            return False
    return True


def _held(value: bytes | LazyState) -> Stored | None:
    raw = value.raw() if isinstance(value, LazyState) else value
    return None if raw is None else _as_stored(raw)


def _as_stored(raw: bytes) -> Stored:
    flat: np.ndarray[Any, Any] = np.frombuffer(raw, np.uint8)
    return Stored(flat, (len(raw),))


# --- the fetcher's side -----------------------------------------------------------------------


async def keep_fetching(driver: Driver, orders: trio.MemoryReceiveChannel[StartFetch]) -> None:
    """Carry out the plans' fetches, one task for each source."""
    async for order in orders:
        driver.nursery.start_soon(_fetch, driver, order)


async def _fetch(driver: Driver, order: StartFetch) -> None:
    with trio.CancelScope() as scope:
        driver.epoch_scopes.add(scope)
        try:
            if driver.hub.core.epoch == order.epoch:
                await _fetch_from(driver, order)
        finally:
            driver.epoch_scopes.discard(scope)


async def _fetch_from(driver: Driver, order: StartFetch) -> None:
    failure = ""
    try:
        sock = await open_peer(driver, order.epoch, order.source, "fetch")
        with sock:
            request = FetchRequest(
                epoch=order.epoch,
                load=order.load,
                runs=order.runs,
                local_version=order.local_version,
                locals=order.locals,
            )
            stream = checked_stream(driver.hub, sock, order.source)
            await send_message(stream, request)
            while await _receive_item(driver, stream, order):
                pass
    except RelayLost as error:  # the source itself is not to blame
        driver.apply(link_down(order.epoch, order.source, error))
        return
    except BROKEN as error:
        failure = describe(error)
    driver.apply(FetchEnded(order.epoch, order.source, failure))


async def _receive_item(driver: Driver, sock: Stream, order: StartFetch) -> bool:
    """Take one item; False after the last.

    Raises:
        trio.TooSlowError: the holder has been silent for `detect_within`.
    """
    silence = driver.hub.settings.detect_within
    with trio.fail_after(silence):
        item = await receive_message(sock)
    if isinstance(item, FetchEnd):
        if item.missing:
            raise ProtocolError(item.missing)
        return False
    if not isinstance(item, FetchItem):
        raise ProtocolError(f"expected a result, got {type(item).__name__}")
    limit = _largest_result(driver) if item.what == "result" else CHECKPOINT_LIMIT
    stored = stored_from_wire(item.dtype, item.shape, item.nbytes, limit)
    stored.digests = item.digests
    await _receive_patiently(sock, stored.raw(), silence)
    driver.hub.fault("loading")
    driver.apply(_arrived(order.epoch, item, stored))
    return True


def _arrived(
    epoch: int, item: FetchItem, stored: Stored
) -> CheckpointFetched | LocalFetched | ResultFetched:
    version = item.position.version
    if item.what == "checkpoint":
        return CheckpointFetched(epoch, version, stored.flat.tobytes())
    if item.what == "local":
        return LocalFetched(epoch, version, item.rank, stored.flat.tobytes())
    return ResultFetched(epoch, item.position, item.signature, stored)


def _largest_result(driver: Driver) -> int:
    """Bytes of one result that the log's limit lets a member keep its share of."""
    settings, size = driver.hub.settings, driver.hub.core.world_size
    return settings.log_limit * size // min(size, settings.replicas)


async def _receive_patiently(sock: Stream, view: memoryview, silence: float) -> None:
    """Fill `view`; only silence is limited, not the whole transfer."""
    piece = 1 << 20
    for start in range(0, len(view), piece):
        with trio.fail_after(silence):
            await receive_into(sock, view[start : start + piece])
