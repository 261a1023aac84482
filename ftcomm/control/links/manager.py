"""Connections between workers: one listener, dials, and the handshake that keys them per epoch.

The lower rank dials, the higher accepts: both know from the schedule that the link is needed.  A
hello of an older epoch is dropped, one of a newer epoch waits for the plan (rule R1).
"""

import functools
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from ftcomm.config.backoff import ACCEPT_PAUSE_S
from ftcomm.config.environment import WILDCARDS, parse_endpoint
from ftcomm.config.ip_addresses import is_link_local
from ftcomm.control.driver import Driver
from ftcomm.control.fetching.prefetch import serve_prefetch
from ftcomm.control.hub import Hub
from ftcomm.control.links.checksums import checked_link
from ftcomm.control.links.dial import (
    BROKEN,
    is_beside,
    link_down,
    open_by_tcp,
    open_direct,
    open_locally,
    patiently,
    proven,
)
from ftcomm.control.links.multi_stream import Gathering, open_bundle
from ftcomm.control.links.relay import open_through, serve_relay
from ftcomm.control.links.unix_sockets import listen_locally
from ftcomm.control.message_stream import send_at_once, server_hello, server_proof
from ftcomm.diagnostics.os_errors import describe
from ftcomm.errors import ConfigError, ProtocolError
from ftcomm.protocol.handshake import (
    HANDSHAKE_DEADLINE_S,
    MAX_UNAUTHENTICATED,
    DataContext,
    epoch_key,
    prefetch_key,
)
from ftcomm.protocol.messages import Member
from ftcomm.recovery.machine import WorkerState
from ftcomm.transport.link import Link
from ftcomm.transport.socket_link import SocketLink
from ftcomm.transport.striped_link import StripedLink

LINK_ROLES = ("data", "fetch", "relay", "segment", "prefetch", "part", "messages", "copies")

Serve = Callable[[Driver, trio.socket.SocketType, DataContext], Awaitable[None]]
ServeLink = Callable[[Driver, Link, DataContext], Awaitable[None]]


def as_link(hub: Hub, conns: Sequence[trio.socket.SocketType], rank: int) -> Link:
    """The link to `rank` that these connections make, under checksums if the job has them.

    It owns them from now on.
    """
    links = [SocketLink(socket.socket(fileno=conn.detach()), rank) for conn in conns]
    return checked_link(hub, links[0] if len(links) == 1 else StripedLink(links))


class Listener:
    """This worker's data listener; bound once, at the first connection to the tracker."""

    def __init__(
        self, driver: Driver, serve: Mapping[str, Serve], serve_messages: ServeLink
    ) -> None:
        """`serve` has, by role, who answers a connection over which something is asked for.

        `serve_messages` does for messages, whose links may have several connections.
        """
        self._driver = driver
        self._serve, self._serve_messages = serve, serve_messages
        self._gathering = Gathering(driver)
        self._gathering_for_messages = Gathering(driver)
        self._sock: trio.socket.SocketType | None = None
        self._pending: dict[int, trio.CancelScope] = {}
        self._counter = 0

    async def bind(self, control: trio.socket.SocketType) -> None:
        """Listen on the local address of the control connection, or where the options say."""
        if self._sock is not None:
            return
        options = self._driver.hub.options
        own = control.getsockname()[0]
        host, port = parse_endpoint(options.bind or own, name="FTCOMM_BIND")
        if is_link_local(host):
            raise ConfigError(
                f"this worker has reached the tracker from {own}, which others cannot dial",
                remedy="use no link-local address for the tracker; or set FTCOMM_BIND",
            )
        sock = trio.socket.socket(control.family, trio.socket.SOCK_STREAM)
        if port:  # an earlier process's connections linger there for a minute
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            await sock.bind((host, port))
        except OSError as error:
            sock.close()
            raise ConfigError(
                f"this worker cannot listen on {options.bind or own}: {describe(error)}",
                remedy="correct FTCOMM_BIND",
            ) from None
        sock.listen(128)
        self._sock = sock
        # A wildcard is no address to dial: then the one from which the tracker was reached.
        reached = own if host in WILDCARDS else host
        address, told = parse_endpoint(options.advertise or reached, name="FTCOMM_ADVERTISE")
        port = told or sock.getsockname()[1]
        self._driver.set_address(address, port)
        self._driver.nursery.start_soon(self._accept, sock)
        beside = await listen_locally(address, port)
        if beside is not None:
            self._driver.nursery.start_soon(self._accept, beside)

    async def _accept(self, sock: trio.socket.SocketType) -> None:
        with sock, self._driver.hub.kept_from_children(sock):
            while True:
                try:
                    conn, _ = await sock.accept()
                except OSError as error:  # out of descriptors, or the dialler went away
                    self._driver.hub.log.warning("accepting a link failed: %s", error)
                    await trio.sleep(ACCEPT_PAUSE_S)
                    continue
                self._driver.nursery.start_soon(self._welcome, conn)

    async def _welcome(self, conn: trio.socket.SocketType) -> None:
        """One connection, which what fails here ends alone; its other end sees that it is gone."""
        try:
            await self._serve_one(conn)
        except Exception:  # no memory to serve it, for example: this rank need not be lost by that
            self._driver.hub.log.exception("a connection of another worker failed and is dropped")

    async def _serve_one(self, conn: trio.socket.SocketType) -> None:
        """Authenticate within the deadline, then hand it on."""
        self._counter += 1
        key = self._counter
        while len(self._pending) >= self._places:
            self._pending.pop(next(iter(self._pending))).cancel()
        with conn, self._driver.hub.kept_from_children(conn):
            send_at_once(conn)
            role, context = "", None
            with trio.move_on_after(HANDSHAKE_DEADLINE_S) as scope:
                self._pending[key] = scope
                try:
                    role, context = await self._authenticate(conn)
                except BROKEN as error:
                    self._driver.hub.log.debug("refused a link: %r", error)
                finally:
                    self._pending.pop(key, None)
            if context is None:
                return
            if role in self._serve:
                await self._serve[role](self._driver, conn, context)
            elif role == "prefetch":
                await serve_prefetch(self._driver, conn)
            elif role == "relay":
                await serve_relay(self._driver, conn, context)
            elif role == "messages":
                await self._take_for_messages(conn, context)
            else:
                await self._take(conn, context)

    @property
    def _places(self) -> int:
        """For connections that have not proved anything: one for each that members may open.

        Those of a newer epoch wait here for its plan; none of them loses its place to another.
        """
        hub = self._driver.hub
        of_members = hub.core.contact.world_size * hub.settings.streams
        return max(MAX_UNAUTHENTICATED, 2 * of_members)  # for data and for messages

    async def _take(self, conn: trio.socket.SocketType, context: DataContext) -> None:
        """One connection of a link, most often the only one."""
        driver, rank = self._driver, context.from_rank
        conns: list[trio.socket.SocketType] | None = [conn]
        try:
            if context.streams > 1:
                conns = await self._gathering.take(conn, context)
        except BROKEN as error:
            self._note_nothing(rank, error)
            return
        if conns is not None:
            hand_over(driver, conns, context.epoch, rank)

    async def _take_for_messages(self, conn: trio.socket.SocketType, context: DataContext) -> None:
        """The same for a link of messages; who brings its last connection serves it."""
        conns: list[trio.socket.SocketType] | None = [conn]
        try:
            if context.streams > 1:
                conns = await self._gathering_for_messages.take(conn, context)
        except BROKEN as error:
            self._note_nothing(context.from_rank, error)
            return
        if conns is not None:
            link = as_link(self._driver.hub, conns, context.from_rank)
            await self._serve_messages(self._driver, link, context)

    def _note_nothing(self, rank: int, error: Exception) -> None:
        cause = describe(error)
        self._driver.hub.log.debug("rank %d's connection came to nothing: %s", rank, cause)

    async def _authenticate(self, conn: trio.socket.SocketType) -> tuple[str, DataContext]:
        shake = await server_hello(conn)
        assert shake.request is not None
        hub = self._driver.hub
        context = DataContext.decode(shake.request.context)
        role = shake.request.role
        if role not in LINK_ROLES or context.job_id != hub.core.contact.job_id:
            raise ProtocolError(f"a link for {role} of job {context.job_id}")
        if role == "prefetch":
            await server_proof(conn, shake, prefetch_key(hub.token, context.job_id))
            return role, context
        await wait_for_epoch(self._driver, context.epoch)
        member = self._member(role, context)
        key = epoch_key(hub.token, context.job_id, context.epoch)
        await server_proof(conn, shake, key)
        if member.incarnation != context.incarnation:
            raise ProtocolError(f"rank {context.from_rank} is another incarnation")
        return role, context

    def _member(self, role: str, context: DataContext) -> Member:
        """Return the member that dials: it wants this rank, or this rank as a relay."""
        core = self._driver.hub.core
        if role == "relay":
            wanted = core.view.relays_between(context.from_rank, context.to_rank)
        else:
            wanted = context.to_rank == core.view.rank
        if not wanted or context.from_rank >= len(core.view.members):
            raise ProtocolError(f"a link for {role} {context.from_rank} to {context.to_rank}")
        return core.view.members[context.from_rank]


async def wait_for_epoch(driver: Driver, epoch: int) -> None:
    """Return when the plan of `epoch` is in force; older epochs never come again.

    Raises:
        ProtocolError: the epoch is over.
    """
    core = driver.hub.core
    while True:
        live = core.view.state in (WorkerState.RUNNING, WorkerState.CATCHING_UP)
        if live and core.view.epoch == epoch:
            return
        if epoch < core.view.revoke_epoch or (epoch == core.view.epoch and not live):
            raise ProtocolError(
                f"a link of epoch {epoch}, this side is at {core.view.revoke_epoch}"
            )
        await driver.changed.wait()


def hand_over(
    driver: Driver, conns: Sequence[trio.socket.SocketType], epoch: int, rank: int
) -> None:
    """Give an authenticated link to the user's thread, if its epoch still runs."""
    link = as_link(driver.hub, conns, rank)
    if not driver.hub.add_link(epoch, link):
        link.close()


async def open_link(driver: Driver, epoch: int, rank: int) -> list[trio.socket.SocketType]:
    """Open the connections of a data link to a member; errors are those of `open_peer`."""
    if driver.hub.core.view.relay_to(rank) is not None:
        return [await open_peer(driver, epoch, rank, "data")]
    near = await open_locally(driver, epoch, rank, "data", to_rank=rank)
    if near is not None:
        return [near]
    return await open_bundle(driver, epoch, rank, "data")


async def open_message_link(driver: Driver, epoch: int, rank: int) -> Link:
    """Open a link by which the messages of a member come; errors are those of `open_peer`.

    It is TCP within a host too: a Unix socket has a buffer of one size, and one of TCP grows.
    """
    conns = await patiently(driver, functools.partial(_open_for_messages, driver, epoch, rank))
    return as_link(driver.hub, conns, rank)


async def _open_for_messages(driver: Driver, epoch: int, rank: int) -> list[trio.socket.SocketType]:
    if driver.hub.core.view.relay_to(rank) is not None:
        return [await open_peer(driver, epoch, rank, "messages")]
    if await is_beside(driver, rank):
        return [await open_by_tcp(driver, epoch, rank, "messages", to_rank=rank)]
    return await open_bundle(driver, epoch, rank, "messages")


async def open_peer(driver: Driver, epoch: int, rank: int, role: str) -> trio.socket.SocketType:
    """Reach a member of the present epoch, through a relay if the plan says so, and prove tokens.

    Raises:
        RelayLost: the plan's relay to `rank` cannot be reached.
        OSError, PeerClosed, trio.TooSlowError, FtcommError: it did not work.
    """
    via = driver.hub.core.view.relay_to(rank)
    if via is None:
        return await open_direct(driver, epoch, rank, role, to_rank=rank)
    sock = await open_through(driver, epoch, rank, via)
    return await proven(driver, sock, epoch, rank, role)


async def keep_dialling(
    driver: Driver, requests: trio.MemoryReceiveChannel[tuple[int, int]]
) -> None:
    """Dial what the user's thread asks for, each pair once at a time."""
    busy: set[tuple[int, int]] = set()
    async for request in requests:
        if request not in busy:
            busy.add(request)
            driver.nursery.start_soon(_dial, driver, *request, busy)


async def _dial(driver: Driver, epoch: int, rank: int, busy: set[tuple[int, int]]) -> None:
    with driver.epoch_scopes.opened():
        try:
            if driver.hub.core.view.epoch == epoch:
                await _dial_patiently(driver, epoch, rank)
        finally:
            busy.discard((epoch, rank))


async def _dial_patiently(driver: Driver, epoch: int, rank: int) -> None:
    driver.hub.fault("linking")
    try:
        conns = await patiently(driver, functools.partial(open_link, driver, epoch, rank))
    except BROKEN as error:
        driver.apply(link_down(epoch, rank, error))
        return
    hand_over(driver, conns, epoch, rank)
