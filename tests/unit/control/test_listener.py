"""Connections of other workers: what one of them costs this rank when it goes wrong."""

import contextlib
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from ftcomm.config.environment import WorkerOptions
from ftcomm.control.hub import Hub
from ftcomm.control.links.manager import Listener
from ftcomm.protocol.handshake import DataContext
from ftcomm.recovery.machine import WorkerMachine
from ftcomm.recovery.states import Identity, MachineLimits

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
