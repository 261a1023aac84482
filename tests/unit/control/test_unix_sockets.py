"""Unix sockets within a host: used where the peer is, passed over where it is not."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ftcomm.config.job_settings import JobSettings
from ftcomm.control.links.dial import open_locally
from ftcomm.control.links.manager import open_link
from ftcomm.control.links.unix_sockets import connect_locally, listen_locally, local_name
from ftcomm.control.message_stream import server_hello, server_proof
from ftcomm.diagnostics.fault_injection import LinkAction
from ftcomm.protocol.handshake import epoch_key
from ftcomm.protocol.messages import Member
from tests.helpers.kept_sockets import KeptSockets

pytestmark = [
    pytest.mark.trio,
    pytest.mark.skipif(
        local_name("127.0.0.1", 1) is None, reason="abstract Unix addresses: Linux alone has them"
    ),
]
TOKEN = b"ab" * 32


class Host:
    """A worker of rank 1 on this host, and a driver of rank 0 that dials it."""

    def __init__(self, nursery: trio.Nursery, listeners: list[Any], port: int) -> None:
        members = tuple(Member(rank, f"w{rank}", 1, "here", "127.0.0.1", port) for rank in range(2))
        core = SimpleNamespace(
            view=SimpleNamespace(members=members, rank=0, relay_to=lambda _: None),
            contact=SimpleNamespace(job_id="job", identity=SimpleNamespace(host="here")),
        )
        hub = SimpleNamespace(
            core=core,
            token=TOKEN,
            settings=JobSettings(),
            log=logging.getLogger("test"),
            causes_told=set(),
            link_fault=lambda _: None,
            kept_from_children=KeptSockets(),
        )
        self.driver: Any = SimpleNamespace(hub=hub)
        self.families: list[Any] = []
        for listener in listeners:
            nursery.start_soon(self._accept, listener)

    async def _accept(self, listener: Any) -> None:
        with listener:
            conn, _ = await listener.accept()
            with conn:
                shake = await server_hello(conn)
                await server_proof(conn, shake, epoch_key(TOKEN, "job", 1))
                self.families.append(conn.family)


async def tcp_listener() -> tuple[Any, int]:
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener, listener.getsockname()[1]


async def test_a_peer_of_this_host_is_reached_by_its_unix_address() -> None:
    tcp, port = await tcp_listener()
    near = await listen_locally("127.0.0.1", port)
    with trio.fail_after(10), tcp:
        async with trio.open_nursery() as nursery:
            host = Host(nursery, [near], port)
            (sock,) = await open_link(host.driver, 1, 1)
            with sock:
                assert sock.family == trio.socket.AF_UNIX


@pytest.mark.parametrize("fault", [LinkAction.REFUSE, LinkAction.DROP])
async def test_a_planned_fault_of_a_link_is_none_of_the_segment(fault: LinkAction) -> None:
    """The link to its leader may not look broken: the segment has no part in calls then."""
    tcp, port = await tcp_listener()
    near = await listen_locally("127.0.0.1", port)
    with trio.fail_after(10), tcp:
        async with trio.open_nursery() as nursery:
            host = Host(nursery, [near], port)
            host.driver.hub.link_fault = lambda _: fault
            sock = await open_locally(host.driver, 1, 1, "segment", to_rank=1)
            assert sock is not None
            with sock:
                assert sock.getpeername() != "", "a pair of sockets has no address"


async def test_somebody_else_under_the_name_only_costs_a_try() -> None:
    tcp, port = await tcp_listener()
    squatter = await listen_locally("127.0.0.1", port)
    assert squatter is not None

    async def hang_up() -> None:
        with squatter:
            conn, _ = await squatter.accept()
            conn.close()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            host = Host(nursery, [tcp], port)
            nursery.start_soon(hang_up)
            (sock,) = await open_link(host.driver, 1, 1)
            with sock:
                assert sock.family == trio.socket.AF_INET


async def test_a_taken_name_and_an_empty_one_are_no_errors() -> None:
    tcp, port = await tcp_listener()
    assert await connect_locally("127.0.0.1", port) is None
    first = await listen_locally("127.0.0.1", port)
    assert first is not None
    with tcp, first:
        assert await listen_locally("127.0.0.1", port) is None


async def test_two_workers_of_one_host_have_two_names() -> None:
    """A process of another port answers nobody: without this, only the first would be reached."""
    (tcp, port), (other_tcp, other) = await tcp_listener(), await tcp_listener()
    with tcp, other_tcp:
        one, two = await listen_locally("127.0.0.1", port), await listen_locally("127.0.0.1", other)
        assert one is not None
        assert two is not None
        with one, two, trio.fail_after(10):
            dialled = await connect_locally("127.0.0.1", other)
            assert dialled is not None
            with dialled:
                conn, _ = await two.accept()
                conn.close()
