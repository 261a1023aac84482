"""A relay's pipe: bytes both ways, each direction's end, and what stands in the way, in words."""

import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ftcomm.config.job_settings import JobSettings
from ftcomm.control.driver import EpochScopes
from ftcomm.control.links import relay as relays
from ftcomm.control.links.dial import RelayLost
from ftcomm.control.links.manager import Listener, link_down, open_peer
from ftcomm.control.links.relay import serve_relay
from ftcomm.control.message_stream import server_hello, server_proof
from ftcomm.control.messages.serving import serve_messages
from ftcomm.errors import ProtocolError
from ftcomm.protocol.handshake import DataContext, epoch_key
from ftcomm.protocol.messages import Member
from ftcomm.recovery.events import LinkDown

pytestmark = pytest.mark.trio
TOKEN = b"ab" * 32
EPOCH = 3
Serve = Callable[[Any], Any]


def a_driver(rank: int, ports: list[int], relay: int | None = None) -> Any:
    """Build the part of a driver that links and relays use; `events` receives the core's events."""
    members = tuple(
        Member(r, f"w{r}", 1, "here", "127.0.0.1", port) for r, port in enumerate(ports)
    )
    core = SimpleNamespace(
        view=SimpleNamespace(members=members, rank=rank, relay_to=lambda _: relay),
        contact=SimpleNamespace(
            job_id="job", world_size=len(members), identity=SimpleNamespace(host="here")
        ),
    )
    hub = SimpleNamespace(
        core=core,
        token=TOKEN,
        settings=JobSettings(transport="tcp"),
        log=logging.getLogger("test"),
        link_fault=lambda _: None,
        digest=None,
        kept_from_children=lambda _: nullcontext(),
    )
    events: list[Any] = []
    return SimpleNamespace(hub=hub, epoch_scopes=EpochScopes(), apply=events.append, events=events)


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """A port on which every connection is proven and then given to `serve`."""
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen()

    async def accept() -> None:
        while True:
            conn, _ = await listener.accept()
            nursery.start_soon(greet, conn)

    async def greet(conn: Any) -> None:
        with conn:
            shake = await server_hello(conn)
            await server_proof(conn, shake, epoch_key(TOKEN, "job", EPOCH))
            await serve(conn, DataContext.decode(shake.request.context))

    with listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            yield listener.getsockname()[1]
            nursery.cancel_scope.cancel()


async def a_closed_port() -> int:
    sock = trio.socket.socket()
    await sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    sock.close()
    return int(port)


async def read_all(conn: Any) -> bytes:
    data = b""
    while piece := await conn.recv(1 << 16):
        data += piece
    return data


async def test_bytes_pass_both_ways_and_each_direction_ends_by_itself() -> None:
    block = bytes(range(256)) * 4096  # more than a pipe holds at once

    async def target(conn: Any, _: DataContext) -> None:
        asked = await read_all(conn)  # the whole question, though our answer is still to come
        await trio.SocketStream(conn).send_all(asked[::-1])
        conn.shutdown(trio.socket.SHUT_WR)

    async with listening(target) as target_port:
        relay = a_driver(2, [0, target_port, 0])

        async def serve(conn: Any, context: DataContext) -> None:
            await serve_relay(relay, conn, context)

        async with listening(serve) as relay_port:
            driver = a_driver(0, [0, target_port, relay_port], relay=2)
            with await open_peer(driver, EPOCH, 1, "fetch") as sock:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.SocketStream(sock).send_all, block)
                sock.shutdown(trio.socket.SHUT_WR)
                assert await read_all(sock) == block[::-1]
    assert relay.events == []


async def test_the_relay_says_that_it_cannot_reach_the_target_and_suspects_it_too() -> None:
    target_port = await a_closed_port()
    relay = a_driver(2, [0, target_port, 0])

    async def serve(conn: Any, context: DataContext) -> None:
        await serve_relay(relay, conn, context)

    async with listening(serve) as relay_port:
        driver = a_driver(0, [0, target_port, relay_port], relay=2)
        with pytest.raises(ProtocolError, match="the relay, rank 2, cannot reach rank 1: ") as lost:
            await open_peer(driver, EPOCH, 1, "data")
    assert link_down(EPOCH, 1, lost.value).rank == 1
    ((event),) = relay.events
    assert (event.epoch, event.rank) == (EPOCH, 1)


async def test_a_relay_that_is_not_reached_is_itself_suspected() -> None:
    relay_port = await a_closed_port()
    driver = a_driver(0, [0, 1, relay_port], relay=2)
    with pytest.raises(RelayLost) as lost:
        await open_peer(driver, EPOCH, 1, "data")
    event = link_down(EPOCH, 1, lost.value)
    assert isinstance(event, LinkDown)
    assert event.rank == 2
    assert "the relay, rank 2, cannot be reached: " in event.cause


async def test_the_end_of_the_epoch_ends_the_pipe() -> None:
    ended = trio.Event()

    async def target(conn: Any, _: DataContext) -> None:
        assert await read_all(conn) == b""
        ended.set()

    async with listening(target) as target_port:
        relay = a_driver(2, [0, target_port, 0])

        async def serve(conn: Any, context: DataContext) -> None:
            await serve_relay(relay, conn, context)

        async with listening(serve) as relay_port:
            driver = a_driver(0, [0, target_port, relay_port], relay=2)
            with await open_peer(driver, EPOCH, 1, "data") as sock:
                relay.epoch_scopes.cancel()
                assert await sock.recv(1) == b""
                await ended.wait()
    assert not relay.epoch_scopes


@pytest.mark.parametrize("rank", [0, 1])
async def test_the_end_that_acknowledges_nothing_is_suspected_by_the_relay(
    rank: int, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """Before the other end may blame the pair, and only if it goes on for as long."""
    relay = a_driver(2, [0, 0, 0])
    ends = {0: trio.socket.socket(), 1: trio.socket.socket()}
    looks: list[bool] = []

    def is_sent_again(sock: object) -> bool:
        return sock is ends[rank] and looks[-1]

    monkeypatch.setattr(relays, "_is_sent_again", is_sent_again)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relays._watch, relay, EPOCH, ends)
        for is_bad in (True, True, False, *[True] * (relays.LOOKS - 1)):
            await trio.testing.wait_all_tasks_blocked()
            assert relay.events == []
            looks.append(is_bad)
            mock_clock.jump(relay.hub.settings.detect_within / relays.LOOKS)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    ((event),) = relay.events
    assert (event.epoch, event.rank) == (EPOCH, rank)
    for sock in ends.values():
        sock.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
async def test_a_link_that_works_sends_nothing_again(family: socket.AddressFamily) -> None:
    near, far = socket.socketpair() if family == socket.AF_UNIX else a_tcp_pair()
    with far, trio.socket.from_stdlib_socket(near) as sock:
        await sock.send(b"x")
        assert far.recv(1) == b"x"
        assert not relays._is_sent_again(sock)


async def test_only_the_relay_of_the_plan_passes_bytes_on() -> None:
    core = SimpleNamespace(
        view=SimpleNamespace(
            rank=2, members=("m0", "m1", "m2", "m3"), relays_between=lambda a, b: {a, b} == {0, 1}
        )
    )
    driver: Any = SimpleNamespace(hub=SimpleNamespace(core=core))
    listener = Listener(driver, {}, serve_messages)
    assert listener._member("relay", DataContext("job", EPOCH, 0, 1, 1)) == "m0"
    for role, ends in (("relay", (0, 2)), ("relay", (0, 3)), ("data", (0, 1)), ("fetch", (1, 0))):
        with pytest.raises(ProtocolError, match=f"a link for {role}"):
            listener._member(role, DataContext("job", EPOCH, *ends, 1))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
async def test_small_messages_do_not_wait_for_each_other_on_what_a_listener_accepted(
    family: socket.AddressFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe's way back, and a holder's answers: 44 ms for two frames of 8 bytes without it."""
    near, far = socket.socketpair() if family == socket.AF_UNIX else a_tcp_pair()
    waits: list[bool] = []

    async def authenticate(_: Listener, __: Any) -> tuple[str, DataContext]:
        return "fetch", DataContext("job", EPOCH, 0, 1, 1)

    async def serve(_: Any, conn: Any, __: DataContext) -> None:
        tcp = conn.family == trio.socket.AF_INET
        waits.append(tcp and not conn.getsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY))

    monkeypatch.setattr(Listener, "_authenticate", authenticate)
    with near, far:
        listener = Listener(a_driver(1, [0, 0]), {"fetch": serve}, serve_messages)
        await listener._welcome(trio.socket.from_stdlib_socket(near))
    assert waits == [False]


def a_tcp_pair() -> tuple[socket.socket, socket.socket]:
    """The accepted end first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        return server.accept()[0], far
