"""Connections of other workers: what one of them costs this rank when it goes wrong."""

import contextlib
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ftcomm.config.environment import WorkerOptions
from ftcomm.control.hub import Hub
from ftcomm.control.links import dial
from ftcomm.control.links.manager import Listener
from ftcomm.errors import ConfigError
from ftcomm.protocol.handshake import DataContext
from ftcomm.recovery.machine import WorkerMachine
from ftcomm.recovery.states import Identity, MachineLimits
from tests.unit.recovery.worker_scenario import a_member

pytestmark = pytest.mark.trio
CONTEXT = DataContext("job", 1, 1, 0, 1)


def a_hub() -> Hub:
    identity = Identity("0", b"n" * 16, "here", "127.0.0.1", 1)
    return Hub(WorkerMachine(identity, MachineLimits(), now=0.0), WorkerOptions(), b"")


@contextlib.asynccontextmanager
async def a_listener(monkeypatch: pytest.MonkeyPatch, serve: Any) -> Any:
    """Build a listener on which every connection is a proven `fetch` link."""

    async def authenticated(*_: object) -> tuple[str, DataContext]:
        await trio.lowlevel.checkpoint()
        return "fetch", CONTEXT

    monkeypatch.setattr(Listener, "_authenticate", authenticated)
    with contextlib.closing(a_hub()) as hub:
        driver: Any = SimpleNamespace(hub=hub)
        yield Listener(driver, {"fetch": serve}, serve)


async def test_a_connection_that_cannot_be_served_is_dropped_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its holder would be lost too, and with it what only that one holds."""

    async def serve(driver: Any, conn: Any, _: DataContext) -> None:
        if await conn.recv(1) == b"x":
            raise MemoryError("of 3 TiB")
        await conn.send(b"served")

    with caplog.at_level(logging.ERROR, "ftcomm"):
        async with a_listener(monkeypatch, serve) as listener:
            for said, answer in ((b"x", b""), (b"y", b"served")):
                near, far = trio.socket.socketpair()
                with far:
                    await far.send(said)
                    await listener._welcome(near)
                    assert await far.recv(6) == answer
    (line,) = caplog.records
    assert line.getMessage() == "a connection of another worker failed and is dropped"
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], MemoryError)


async def test_a_forked_child_keeps_no_connection_that_is_being_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other end would wait for this process after its death, as long as the child runs."""
    kept: list[bool] = []

    async def serve(driver: Any, conn: Any, _: DataContext) -> None:
        kept.append(conn in driver.hub.control_sockets)

    async with a_listener(monkeypatch, serve) as listener:
        near, far = trio.socket.socketpair()
        with far:
            await listener._welcome(near)
        assert (kept, listener._driver.hub.control_sockets) == ([True], set())


async def test_a_forked_child_keeps_no_connection_whose_token_is_being_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[bool] = []

    async def handshake(sock: Any, *_: object) -> None:
        kept.append(sock in hub.control_sockets)

    monkeypatch.setattr(dial, "client_handshake", handshake)
    near, far = trio.socket.socketpair()
    with near, far, contextlib.closing(a_hub()) as hub:
        hub.core = a_member()
        driver: Any = SimpleNamespace(hub=hub)
        assert await dial.proven(driver, near, 1, 1, "data") is near
        assert (kept, hub.control_sockets) == ([True], set())


async def test_a_link_local_address_is_not_advertised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each machine that dials it must name an interface of its own."""
    control: Any = SimpleNamespace(getsockname=lambda: ("fe80::a", 4711, 0, 2))
    async with a_listener(monkeypatch, None) as listener:
        with pytest.raises(ConfigError, match="from fe80::a, which others cannot dial"):
            await listener.bind(control)
