"""A member gives a spare what it has packed, and a spare takes nothing but a checkpoint."""

import logging
import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio

from ftcomm.config.job_settings import JobSettings
from ftcomm.control.driver import EpochScopes
from ftcomm.control.fetching import prefetch
from ftcomm.control.message_stream import PeerClosed, receive_message, send_all, send_message
from ftcomm.protocol.codec import encode
from ftcomm.protocol.link_messages import FetchEnd, FetchRequest
from ftcomm.protocol.spares.prefetch_messages import Prefetch
from ftcomm.recovery.events import Event, PrefetchEnded, StartPrefetch
from ftcomm.recovery.machine import Checkpoint
from ftcomm.state.lazy import LazyState
from ftcomm.state.serializer import pack_state
from tests.helpers.kept_sockets import KeptSockets
from tests.unit.control.test_fetch import END, RESULTS, STATE, item
from tests.unit.recovery.worker_scenario import a_member

pytestmark = pytest.mark.trio
NONE_HERE = FetchEnd("checkpoint 1 is not held packed here")


def a_driver(**changes: Any) -> Any:
    events: list[Event] = []
    hub = SimpleNamespace(
        core=a_member(),
        settings=JobSettings(**changes),
        digest=None,
        token=b"",
        lock=threading.Lock(),
        fault=lambda _: None,
        kept_from_children=KeptSockets(),
        log=logging.getLogger("t"),
    )
    return SimpleNamespace(hub=hub, apply=events.append, events=events, epoch_scopes=EpochScopes())


class SlowSocket:
    """A socket that takes bytes again after so many seconds."""

    def __init__(self, sock: trio.socket.SocketType, takes_s: float) -> None:
        self.recv_into = sock.recv_into
        self._sock, self._takes_s = sock, takes_s

    async def send(self, data: memoryview, /) -> int:
        with trio.move_on_after(self._takes_s):
            await trio.sleep_forever()
        return await self._sock.send(data)


async def served(
    held: Checkpoint | None, takes_s: float = 0.0, **changes: Any
) -> tuple[Any, bytes]:
    """The head of what a member sends that holds this, asked for version 1, and the rest."""
    near, far = trio.socket.socketpair()
    driver, slow = a_driver(**changes), SlowSocket(near, takes_s)
    driver.hub.core.archive.committed = held
    with near, far:
        await send_message(far, FetchRequest(prefetch.NO_EPOCH, 1, ()))
        await prefetch.serve_prefetch(driver, cast("trio.socket.SocketType", slow))
        near.shutdown(trio.socket.SHUT_WR)
        head, rest = await receive_message(far), b""
        while part := await far.recv(1 << 16):
            rest += part
    return head, rest


@pytest.mark.parametrize("version", [1, 2])
async def test_a_member_gives_what_is_as_new_as_that(version: int) -> None:
    head, rest = await served(Checkpoint(version, STATE))
    assert (head.position.version, rest) == (version, STATE + END)


async def test_a_spare_that_reads_at_a_low_rate_is_not_taken_for_a_lost_one(
    autojump_clock: object,
) -> None:
    settings = {"spare_fetch_rate": 100_000, "detect_within": 5.0}
    assert (await served(Checkpoint(1, STATE), takes_s=60.0, **settings))[1] == STATE + END
    with pytest.raises(PeerClosed):  # so long even that rate does not explain
        await served(Checkpoint(1, STATE), takes_s=600.0, **settings)


@pytest.mark.parametrize("held", [None, Checkpoint(0, STATE)])
async def test_a_member_that_holds_nothing_as_new_says_so(held: Checkpoint | None) -> None:
    assert await served(held) == (NONE_HERE, b"")


async def test_a_lazy_state_is_not_packed_for_a_spare() -> None:
    lazy = LazyState({"w": np.zeros(3)})
    assert await served(Checkpoint(1, lazy)) == (NONE_HERE, b"")
    assert lazy.packed is None
    lazy.raw()
    assert (await served(Checkpoint(1, lazy)))[1] == bytes(pack_state({"w": np.zeros(3)})) + END


async def fetched(monkeypatch: pytest.MonkeyPatch, said: bytes, **changes: Any) -> PrefetchEnded:
    """The end of a fetch of version 1 from a member that says this."""
    near, far = trio.socket.socketpair()
    driver = a_driver(**changes)

    async def dialled(*_: object) -> Any:
        return near

    async def handshake(*_: object) -> None:
        assert driver.hub.kept_from_children.now == [near]

    monkeypatch.setattr(prefetch, "_dialled", dialled)
    monkeypatch.setattr(prefetch, "client_handshake", handshake)
    with far:
        await send_all(far, said)
        far.shutdown(trio.socket.SHUT_WR)
        await prefetch.prefetch(driver, StartPrefetch(7, Prefetch(1, 0, "h", "a", 1)))
    [ended] = driver.events
    assert isinstance(ended, PrefetchEnded)
    return ended


@pytest.mark.parametrize("rate", [100, 1 << 30])
async def test_a_spare_takes_a_checkpoint_and_makes_a_copy_to_give_away(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object, rate: int
) -> None:
    ended = await fetched(monkeypatch, item("checkpoint", 2) + END, spare_fetch_rate=rate)
    assert (ended.number, ended.version, ended.nbytes) == (7, 2, len(STATE))
    assert (bytes(ended.value), bytes(ended.own)) == (STATE, STATE)
    assert (ended.value.readonly, ended.own.readonly) == (True, False)


@pytest.mark.parametrize(
    "said",
    [
        item("checkpoint", 0) + END,
        item("local", 1, rank=0) + END,
        RESULTS[0] + END,
        item("checkpoint", 1)[:-1],
        encode(NONE_HERE),
        END,
        b"",
        b"\x00\x00\x00\x01\xff",
    ],
    ids=["older", "local", "result", "cut", "none", "end", "gone", "garbage"],
)
async def test_anything_else_leaves_a_spare_as_it_was(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    assert await fetched(monkeypatch, said) == PrefetchEnded(7)
