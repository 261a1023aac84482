"""Links over which a spare fetches a committed checkpoint in advance (rule R17).

A spare has no rank and no epoch, so the key of such a link is the job's.  The job's id names the
attempt, in which a version has one state: whoever committed it may serve it.
"""

import numpy as np
import trio

from ftcomm.collectives.chunking import STATE_LIMIT
from ftcomm.collectives.dtypes import dtype_code
from ftcomm.control.background import BackgroundError, run_in_background
from ftcomm.control.driver import Driver
from ftcomm.control.idle_timeout import IdleTimeoutStream
from ftcomm.control.links.checksums import checked_by_default
from ftcomm.control.links.dial import BROKEN
from ftcomm.control.links.unix_sockets import connect_locally
from ftcomm.control.message_stream import (
    ByteStream,
    client_handshake,
    receive_into,
    receive_message,
    send_all,
    send_message,
)
from ftcomm.diagnostics.os_errors import describe
from ftcomm.errors import ProtocolError
from ftcomm.memory.pool import Array
from ftcomm.protocol.handshake import HANDSHAKE_DEADLINE_S, DataContext, prefetch_key
from ftcomm.protocol.link_messages import FetchEnd, FetchItem, FetchRequest
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.protocol.spares.prefetch_messages import Prefetch
from ftcomm.recovery.events import PrefetchEnded, StartPrefetch
from ftcomm.state.layout import Packed
from ftcomm.state.lazy import LazyState

NO_EPOCH = 0
ALONE, WITH_LOCALS = "checkpoint", "checkpoint beside local states"
BURST_BYTES = 1 << 20  # received at once, between two looks at the clock
BURSTS_PER_S = 20  # at least: a slow rate is no silence
# What the kernels of both sides may hold between them. A sender hears nothing until a good part of
# that has been read, and at a low rate this takes longer than silence may.
KERNELS_BYTES = 16 << 20

# --- the member's side ------------------------------------------------------------------------


async def serve_prefetch(driver: Driver, sock: trio.socket.SocketType) -> None:
    """Send the committed checkpoint if it is as new as what is asked for, and is packed already.

    No epoch change ends it: the spare hangs up when it gets a rank.
    """
    settings = driver.hub.settings
    to_read_s = KERNELS_BYTES / settings.spare_fetch_rate
    patient = IdleTimeoutStream(sock, settings.detect_within + to_read_s)
    try:
        await _serve(driver, checked_by_default(driver.hub, patient))
    except BROKEN as error:
        driver.hub.log.debug("serving a spare ended: %r", error)


async def _serve(driver: Driver, sock: ByteStream) -> None:
    request = await receive_message(sock)
    if not isinstance(request, FetchRequest) or request.epoch != NO_EPOCH:
        raise ProtocolError(f"expected a spare's request, got {request!r:.200}")
    version, raw, has_locals = _committed(driver)
    if raw is None or version < request.load:
        await send_message(sock, FetchEnd(f"checkpoint {request.load} is not held packed here"))
        return
    driver.hub.fault("serving")
    await send_message(sock, _head(version, len(raw), WITH_LOCALS if has_locals else ALONE))
    await send_all(sock, memoryview(raw))
    await send_message(sock, FetchEnd())


def _committed(driver: Driver) -> tuple[int, Packed | None, bool]:
    """The committed version, its packed state, and whether it has local states too.

    The state is None if it would have to be packed for this.
    """
    with driver.hub.lock:
        archive = driver.hub.core.archive
        checkpoint, version = archive.committed, archive.committed_version
        has_locals = archive.locals.of(version) is not None
    if checkpoint is None:
        return PRELUDE, None, False
    value = checkpoint.value
    return version, value.packed if isinstance(value, LazyState) else value, has_locals


def _head(version: int, nbytes: int, what: str) -> FetchItem:
    return FetchItem(
        what=what,
        position=Position(0, version, 0),
        signature=b"",
        dtype=dtype_code(np.dtype(np.uint8)),
        shape=(nbytes,),
        nbytes=nbytes,
    )


# --- the spare's side -------------------------------------------------------------------------


async def prefetch(driver: Driver, start: StartPrefetch) -> None:
    """Fetch as ordered; a rank that this process gets meanwhile ends it."""
    order, ended = start.order, PrefetchEnded(start.number)
    with driver.epoch_scopes.opened():
        try:
            ended = await _fetched(driver, start)
        except BROKEN as error:
            reason = describe(error)
            driver.hub.log.info(
                "checkpoint %d was not fetched in advance from rank %d: %s",
                order.version, order.rank, reason,
            )  # fmt: skip
    driver.apply(ended)


async def _fetched(driver: Driver, start: StartPrefetch) -> PrefetchEnded:
    hub, order = driver.hub, start.order
    with await _dialled(driver, order) as sock, hub.kept_from_children(sock):
        patient = IdleTimeoutStream(sock, hub.settings.detect_within)
        stream = checked_by_default(hub, patient)
        job_id = hub.core.contact.job_id
        context = DataContext(job_id, NO_EPOCH, order.rank, order.rank, 0).encode()
        await client_handshake(sock, prefetch_key(hub.token, job_id), "prefetch", context)
        request = FetchRequest(
            epoch=NO_EPOCH, load=order.version, runs=(), local_version=PRELUDE, locals=()
        )
        await send_message(stream, request)
        item = await receive_message(stream)
        if isinstance(item, FetchEnd):
            raise ProtocolError(item.missing)
        if not _is_expected(item, order.version):
            raise ProtocolError(f"expected checkpoint {order.version}, got {item!r:.200}")
        assert isinstance(item, FetchItem)
        try:
            whole = await _received(driver, stream, item.nbytes)
            own = await run_in_background(whole.copy)
        except (MemoryError, BackgroundError) as error:
            raise ProtocolError(f"no room for {item.nbytes} bytes: {error}") from None
    value = whole.data.toreadonly()
    return PrefetchEnded(
        number=start.number,
        version=item.position.version,
        value=value,
        nbytes=item.nbytes,
        own=own.data,
        has_locals=item.what == WITH_LOCALS,
    )


def _is_expected(item: object, version: int) -> bool:
    """True for the head of a checkpoint that is as new as that, and of a possible size."""
    if not isinstance(item, FetchItem) or item.what not in (ALONE, WITH_LOCALS):
        return False
    if item.nbytes > STATE_LIMIT or item.position.version < version:
        return False
    return item == _head(item.position.version, item.nbytes, item.what)


async def _dialled(driver: Driver, order: Prefetch) -> trio.socket.SocketType:
    own = driver.hub.core.contact.identity
    if driver.hub.settings.transport != "tcp" and order.host == own.host:
        near = await connect_locally(order.address, order.port)
        if near is not None:
            return near
    with trio.fail_after(HANDSHAKE_DEADLINE_S):
        stream = await trio.open_tcp_stream(order.address, order.port)
    return stream.socket


async def _received(driver: Driver, sock: ByteStream, nbytes: int) -> Array:
    """The bytes, no faster than the job's rate.

    Raises:
        MemoryError: there is no room for so many.
    """
    rate = driver.hub.settings.spare_fetch_rate
    burst = max(1, min(BURST_BYTES, rate // BURSTS_PER_S))
    began = trio.current_time()
    whole: Array = np.empty(nbytes, np.uint8)  # the system gives it pages as they are written
    for at in range(0, nbytes, burst):
        await receive_into(sock, whole.data[at : at + burst])
        await trio.sleep_until(began + min(at + burst, nbytes) / rate)
    return whole
