"""A holder says all the time that it packs, and only silence ends a fetch, never slowness."""

import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ftcomm.config.job_settings import PACKING_SIGNS, JobSettings
from ftcomm.control.driver import EpochScopes
from ftcomm.control.fetching.fetch import _serve, serve_fetch
from ftcomm.control.idle_timeout import IdleTimeoutStream
from ftcomm.control.links.checksums import checked_stream
from ftcomm.control.links.dial import BROKEN
from ftcomm.control.message_stream import ByteStream, receive_message, send_all, send_message
from ftcomm.errors import StateChangedError
from ftcomm.protocol.checksum_records import xxh3_digest
from ftcomm.protocol.handshake import DataContext
from ftcomm.protocol.link_messages import FetchEnd, FetchItem, FetchRequest, FetchWait
from ftcomm.protocol.messages import (
    Suspect,
)
from ftcomm.recovery.events import Event, FatalFound
from ftcomm.recovery.machine import Checkpoint
from ftcomm.state.lazy import LazyState
from tests.unit.control.test_fetch import CHECKPOINT, END, LOCAL, RESULTS, STATE, WAIT, fetched_from
from tests.unit.recovery.worker_scenario import a_member

pytestmark = pytest.mark.trio
LIMIT_S = 30.0
SETTINGS = JobSettings(detect_within=LIMIT_S)


async def let_pass(seconds: float) -> None:
    """On the test's clock, which takes no time."""
    with trio.move_on_after(seconds):
        await trio.sleep_forever()


class HeavyState(LazyState):
    """A state that is being packed until `lift` is called."""

    def __init__(self, cause: Exception | None = None) -> None:
        super().__init__({"w": 1})
        self._cause = cause
        self._lifted = threading.Event()

    def raw(self) -> bytes | None:
        self._lifted.wait()
        if self._cause is not None:
            raise self._cause
        return STATE

    def lift(self) -> None:
        self._lifted.set()


@contextlib.asynccontextmanager
async def a_holder(state: HeavyState) -> AsyncIterator[Any]:
    """A driver that holds version 1; its state is lifted at the end at the latest."""
    core: Any = a_member()
    core.archive.committed = Checkpoint(1, state)
    hub = SimpleNamespace(
        core=core,
        settings=SETTINGS,
        digest=None,
        lock=threading.Lock(),
        fault=lambda _: None,
        log=logging.getLogger("t"),
    )
    events: list[Event] = []
    async with trio.open_nursery() as nursery:
        try:
            yield SimpleNamespace(
                hub=hub,
                nursery=nursery,
                apply=events.append,
                events=events,
                epoch_scopes=EpochScopes(),
            )
        finally:
            state.lift()


async def signs_of_packing(far: ByteStream, count: int) -> list[float]:
    """Return the times at which the holder reported packing, `count` times and nothing else."""
    times = []
    for _ in range(count):
        with trio.fail_after(LIMIT_S):
            assert await receive_message(far) == FetchWait()
        times.append(trio.current_time())
    return times


async def until_something_is_found(driver: Any, far: ByteStream) -> None:
    """Take what the holder says meanwhile: its clock runs on while the thread of the packing waits.

    Untaken, it would fill the socket, and the holder would wait for that.
    """
    while not driver.events:
        with trio.move_on_after(LIMIT_S):
            await receive_message(far)


async def after_packing(far: ByteStream) -> Any:
    """The first message of another kind."""
    while (message := await receive_message(far)) == FetchWait():
        pass
    return message


async def test_a_holder_says_that_it_packs_until_it_has(
    autojump_clock: trio.testing.MockClock,
) -> None:
    near, far = trio.socket.socketpair()
    state = HeavyState()
    with near, far:
        async with a_holder(state) as driver:
            driver.nursery.start_soon(_serve, driver, near, 1)
            await send_message(far, FetchRequest(1, 1, ()))
            times = await signs_of_packing(far, 3 * PACKING_SIGNS)
            state.lift()
            head = await after_packing(far)
            assert isinstance(head, FetchItem)
            assert head.nbytes == len(STATE)
            assert await far.recv(len(STATE)) == STATE
            assert await receive_message(far) == FetchEnd()
    assert times == [LIMIT_S / PACKING_SIGNS * number for number in range(1, 3 * PACKING_SIGNS + 1)]


async def test_the_news_that_a_state_has_changed_comes_from_the_packing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    near, far = trio.socket.socketpair()
    state = HeavyState(StateChangedError("state['w'] was written to"))
    with near, far:
        async with a_holder(state) as driver:
            driver.nursery.start_soon(_serve, driver, near, 1)
            await send_message(far, FetchRequest(1, 1, ()))
            await signs_of_packing(far, 1)
            state.lift()
            await until_something_is_found(driver, far)
        (found,) = driver.events
    assert isinstance(found, FatalFound)
    assert found.error == "StateChangedError"


async def test_a_holder_without_memory_says_so_and_is_not_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    near, far = trio.socket.socketpair()
    state = HeavyState(MemoryError("of 3 TiB"))
    with near, far:
        async with a_holder(state) as driver:
            driver.nursery.start_soon(_serve, driver, near, 1)
            await send_message(far, FetchRequest(1, 1, ()))
            state.lift()
            cause = "this process has no memory left for it: of 3 TiB"
            assert await after_packing(far) == FetchEnd(f"checkpoint 1: {cause}")
        assert driver.events == []


async def test_a_fetcher_that_has_gone_ends_the_serving_and_not_the_packing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    near, far = trio.socket.socketpair()
    state = HeavyState()
    with near, far:
        async with a_holder(state) as driver:
            await send_message(far, FetchRequest(1, 1, ()))
            far.close()
            with pytest.raises(BROKEN), trio.fail_after(2 * LIMIT_S):
                await _serve(driver, near, 1)


async def test_the_next_epoch_does_not_wait_for_the_packing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    near, far = trio.socket.socketpair()
    state = HeavyState()
    with near, far:
        async with a_holder(state) as driver:
            await send_message(far, FetchRequest(1, 1, ()))
            driver.nursery.start_soon(cancelled_when_it_packs, driver, far)
            await serve_fetch(driver, near, DataContext("job", 1, 1, 0, 1))
            assert not driver.epoch_scopes


async def cancelled_when_it_packs(driver: Any, far: ByteStream) -> None:
    """Cancel the fetch when it packs, as `close_links` does."""
    await signs_of_packing(far, 1)
    driver.epoch_scopes.cancel()


# --- the fetcher's side -----------------------------------------------------------------------


class Trickle:
    """A stream that sends one byte at a time, each just before its reader would give up."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self.recv_into: Callable[..., Any] = sock.recv_into

    async def send(self, data: memoryview, /) -> int:
        await let_pass(0.9 * LIMIT_S)
        return int(await self._sock.send(data[:1]))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
async def test_what_comes_byte_by_byte_is_taken_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, transport: str
) -> None:
    """By records under checksums too: they come whole or not at all."""
    settings = JobSettings(detect_within=LIMIT_S, transport=transport)

    async def holder(far: Any) -> None:
        hub: Any = SimpleNamespace(core=a_member(), settings=settings, digest=xxh3_digest)
        said = WAIT + CHECKPOINT + LOCAL + b"".join(RESULTS) + END
        await send_all(checked_stream(hub, Trickle(far), 1), said)

    core, said = await fetched_from(monkeypatch, holder, settings=settings, digest=xxh3_digest)
    assert (core.archive.committed.value, core.archive.locals.get(1, 0)) == (STATE, STATE)
    assert len(core.log.positions()) == len(RESULTS)
    assert not [message for message in said if isinstance(message, Suspect)]
    assert trio.current_time() > 10 * LIMIT_S


@pytest.mark.parametrize(
    "before", [b"", 5 * WAIT, CHECKPOINT[:-1]], ids=["nothing", "that it packs", "half"]
)
async def test_a_holder_that_falls_silent_is_suspected_whatever_it_has_said(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, before: bytes
) -> None:
    async def holder(far: Any) -> None:
        for at in range(len(before)):
            await let_pass(1)
            await send_all(far, before[at : at + 1])

    core, (suspect,) = await fetched_from(monkeypatch, holder, settings=SETTINGS)
    assert "nothing came for 30 s" in suspect.reason
    assert core.archive.committed is None
    assert trio.current_time() == len(before) + LIMIT_S


async def test_who_does_not_read_is_not_waited_for_either(
    autojump_clock: trio.testing.MockClock,
) -> None:
    near, far = trio.socket.socketpair()
    with near, far, pytest.raises(trio.TooSlowError, match="nothing could be sent for 30 s"):
        await send_without_end(IdleTimeoutStream(near, LIMIT_S))
    assert trio.current_time() == LIMIT_S


async def send_without_end(stream: ByteStream) -> None:
    while True:
        await stream.send(memoryview(bytes(1 << 20)))
