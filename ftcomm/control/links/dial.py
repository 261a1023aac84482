"""Dialling another worker and proving each other's token: what all links between workers share."""

import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import trio

from ftcomm.config.backoff import LINK_ATTEMPTS, LINK_BACKOFF
from ftcomm.control.driver import Driver
from ftcomm.control.links.unix_sockets import connect_locally
from ftcomm.control.message_stream import PeerClosed, client_handshake
from ftcomm.diagnostics.fault_injection import LinkAction
from ftcomm.diagnostics.os_errors import describe
from ftcomm.errors import AuthenticationError, ProtocolError, ProtocolVersionError
from ftcomm.protocol.handshake import HANDSHAKE_DEADLINE_S, DataContext, epoch_key
from ftcomm.recovery.events import LinkDown

T = TypeVar("T")


class RelayLost(Exception):  # noqa: N818 - an event on the way to the relay
    """The relay itself cannot be reached: its link is at fault, not that of the relayed pair."""

    def __init__(self, via: int, cause: str) -> None:
        self.via = via
        super().__init__(f"the relay, rank {via}, cannot be reached: {cause}")


class Share(NamedTuple):
    """Index of one connection among those of its link: see `DataContext`."""

    attempt: int = 0
    stream: int = 0
    streams: int = 1


ALONE = Share()

BROKEN = (
    OSError,
    UnicodeError,  # a host name that no resolver takes
    PeerClosed,
    RelayLost,
    trio.TooSlowError,
    ProtocolError,
    AuthenticationError,
    ProtocolVersionError,
)


def is_by_tcp(sock: trio.socket.SocketType) -> bool:
    """Tell whether a connection may lead to another host."""
    return sock.family in (trio.socket.AF_INET, trio.socket.AF_INET6)


async def connect(
    driver: Driver, rank: int, *, deadline_s: float, share: Share = ALONE
) -> trio.socket.SocketType:
    """A TCP connection to a member's data listener, before any handshake.

    Raises:
        OSError, UnicodeError, trio.TooSlowError: it did not work.
    """
    _may_dial(driver, rank, share)
    member = driver.hub.core.view.members[rank]
    with trio.fail_after(deadline_s):
        stream = await trio.open_tcp_stream(member.address, member.port)
    return stream.socket


async def open_direct(
    driver: Driver, epoch: int, rank: int, role: str, *, to_rank: int
) -> trio.socket.SocketType:
    """Dial `rank` and run the handshake of a link to `to_rank`, which a relay may pass on.

    Raises:
        OSError, PeerClosed, trio.TooSlowError, FtcommError: it did not work.
    """
    near = await open_locally(driver, epoch, rank, role, to_rank=to_rank)
    if near is not None:
        return near
    return await open_by_tcp(driver, epoch, rank, role, to_rank=to_rank)


def is_near(driver: Driver, rank: int) -> bool:
    """`rank` runs on this host, and may be reached by more than TCP."""
    core = driver.hub.core
    near = core.view.members[rank].host == core.contact.identity.host
    return near and driver.hub.settings.transport != "tcp"


async def is_beside(driver: Driver, rank: int) -> bool:
    """`rank` is found on this host: hosts of one name may be two, as containers are."""
    if not is_near(driver, rank):
        return False
    member = driver.hub.core.view.members[rank]
    found = await connect_locally(member.address, member.port)
    if found is not None:
        found.close()
    return found is not None


async def open_locally(
    driver: Driver, epoch: int, rank: int, role: str, *, to_rank: int
) -> trio.socket.SocketType | None:
    """The same by a Unix socket; None where `rank` is not reached so.

    Raises:
        OSError: a planned fault.
    """
    if not is_near(driver, rank):
        return None
    member = driver.hub.core.view.members[rank]
    may_fail = role != "segment"  # which no planned fault of links is for: calls go by them then
    if may_fail:
        _may_dial(driver, rank, ALONE)
    near = await connect_locally(member.address, member.port)
    if near is None:
        return None
    try:
        near = await proven(driver, near, epoch, to_rank, role)
    except BROKEN as error:  # not our peer, or it is gone: TCP tells
        driver.hub.log.debug("local link to rank %d: %s", rank, describe(error))
        return None
    return _planned(driver, rank, near) if may_fail else near


async def open_by_tcp(
    driver: Driver, epoch: int, rank: int, role: str, *, to_rank: int, share: Share = ALONE
) -> trio.socket.SocketType:
    """The same by TCP; `share` says which connection of its link it is.

    Raises:
        OSError, PeerClosed, trio.TooSlowError, FtcommError: it did not work.
    """
    sock = await connect(driver, rank, deadline_s=HANDSHAKE_DEADLINE_S, share=share)
    return _planned(driver, rank, await proven(driver, sock, epoch, to_rank, role, share))


async def proven(
    driver: Driver,
    sock: trio.socket.SocketType,
    epoch: int,
    to_rank: int,
    role: str,
    share: Share = ALONE,
) -> trio.socket.SocketType:
    """The socket behind its handshake; closed if that fails."""
    core = driver.hub.core
    own = core.view.members[core.view.rank]
    context = DataContext(
        core.contact.job_id, epoch, core.view.rank, to_rank, own.incarnation, *share
    ).encode()
    key = epoch_key(driver.hub.token, core.contact.job_id, epoch)
    try:
        with driver.hub.kept_from_children(sock):
            await client_handshake(sock, key, role, context)
    except BaseException:
        sock.close()
        raise
    return sock


def link_down(epoch: int, rank: int, error: Exception) -> LinkDown:
    """Name the rank to suspect when `rank` was not reached: `rank`, or the relay of its link."""
    at_fault = error.via if isinstance(error, RelayLost) else rank
    return LinkDown(epoch, at_fault, f"cannot connect: {describe(error)}")


async def patiently(driver: Driver, dial: Callable[[], Awaitable[T]]) -> T:
    """Dial, and again with jitter where that fails, for `detect_within` in all.

    Raises:
        RelayLost, OSError, trio.TooSlowError, FtcommError: the last attempt's; see `BROKEN`.
    """
    limit_s = driver.hub.settings.detect_within
    lost: Exception = trio.TooSlowError(f"no connection within {limit_s:g} s")
    with trio.move_on_after(limit_s):
        for failures in range(1, LINK_ATTEMPTS + 1):
            try:
                return await dial()
            except BROKEN as error:
                lost = error
            if failures < LINK_ATTEMPTS:
                await trio.sleep(LINK_BACKOFF.delay_s(failures, random.random()))  # noqa: S311 - jitter
    raise lost


# --- fault injection --------------------------------------------------------------------------


def _may_dial(driver: Driver, rank: int, share: Share) -> None:
    fault = driver.hub.link_fault(rank)
    last_of_several = 0 < share.stream == share.streams - 1
    if fault is LinkAction.REFUSE or (fault is LinkAction.REFUSE_ONE and last_of_several):
        raise ConnectionRefusedError(f"planned fault: no connection to rank {rank}")


def _planned(driver: Driver, rank: int, sock: trio.socket.SocketType) -> trio.socket.SocketType:
    """The link itself; or, by a planned fault, one on which nothing comes and nothing arrives.

    As with packets that vanish, sending goes on until a buffer is full, and both ends live.
    """
    if driver.hub.link_fault(rank) is not LinkAction.DROP:
        return sock
    near, far = trio.socket.socketpair()
    driver.nursery.start_soon(_hold, driver, sock, far)
    return near


async def _hold(driver: Driver, *socks: trio.socket.SocketType) -> None:
    """Keep sockets open, and do nothing with them, until the epoch ends."""
    with driver.epoch_scopes.opened(), contextlib.ExitStack() as held:
        for sock in socks:
            held.enter_context(sock)
        await trio.sleep_forever()
