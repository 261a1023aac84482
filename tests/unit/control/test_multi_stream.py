"""Links of several connections: whole or not at all, at both ends, and always in bounds."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ftcomm.config.job_settings import JobSettings
from ftcomm.control.driver import Driver
from ftcomm.control.links import manager
from ftcomm.control.links.manager import Listener
from ftcomm.control.links.multi_stream import (
    BUNDLE_DEADLINE_S,
    DIALLED_AT_ONCE,
    Gathering,
    open_bundle,
)
from ftcomm.errors import ProtocolError
from ftcomm.protocol.handshake import DataContext
from ftcomm.transport.link import Link
from ftcomm.transport.striped_link import STRIPE_BYTES
from tests.unit.control.test_relay import EPOCH, a_driver, listening

pytestmark = pytest.mark.trio


def context(attempt: int, stream: int, streams: int = 3, epoch: int = EPOCH) -> DataContext:
    return DataContext("job", epoch, 0, 1, 1, attempt, stream, streams)


class Listening:
    """A listener's gathering; `took` is what became of each connection that was brought."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.driver = a_driver(1, [0, 0])
        self.driver.hub.settings = JobSettings(transport="tcp", streams=3)
        self.gathering = Gathering(self.driver)
        self.took: dict[str, Any] = {}
        self._nursery = nursery

    async def bring(self, name: Any, what: DataContext) -> None:
        """A connection, for which its own name stands."""

        async def take() -> None:
            try:
                self.took[name] = await self.gathering.take(name, what)
            except ProtocolError as error:
                self.took[name] = str(error).partition(" - ")[0]

        self._nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def listener(nursery: trio.Nursery) -> Listening:
    return Listening(nursery)


async def test_the_last_brings_all_in_the_order_of_the_streams(listener: Listening) -> None:
    for name, stream in (("c", 2), ("a", 0)):
        await listener.bring(name, context(1, stream))
    before = dict(listener.took)
    await listener.bring("b", context(1, 1))
    assert (before, listener.took) == ({}, {"a": None, "b": ["a", "b", "c"], "c": None})
    assert not listener.driver.epoch_scopes


async def test_of_two_attempts_that_interleave_the_later_one_becomes_the_link(
    listener: Listening,
) -> None:
    for name, attempt, stream in (
        ("old 0", 1, 0),
        ("old 1", 1, 1),
        ("new 2", 2, 2),
        ("old 2", 1, 2),
        ("new 0", 2, 0),
        ("new 1", 2, 1),
    ):
        await listener.bring(name, context(attempt, stream))
    assert listener.took == {
        "old 0": None,
        "old 1": None,
        "old 2": "rank 0's attempt 1 is over",
        "new 2": None,
        "new 0": None,
        "new 1": ["new 0", "new 1", "new 2"],
    }


async def test_a_stream_that_is_there_already_changes_nothing(listener: Listening) -> None:
    for name, stream in (("a", 0), ("again", 0), ("b", 1), ("c", 2), ("late", 1)):
        await listener.bring(name, context(1, stream))
    assert listener.took == {
        "a": None,
        "again": "rank 0 dials stream 0 of 3 when [0] of 3 are there",
        "b": None,
        "c": ["a", "b", "c"],
        "late": "rank 0's attempt 1 is over",
    }


async def test_another_number_of_streams_than_the_jobs_is_refused(listener: Listening) -> None:
    await listener.bring("a", context(1, 0, streams=16))
    assert listener.took == {"a": "a link of 16 connections, the job has 3"}


async def test_half_a_bundle_is_given_up_in_time(
    listener: Listening, mock_clock: trio.testing.MockClock
) -> None:
    await listener.bring("a", context(1, 0))
    mock_clock.jump(BUNDLE_DEADLINE_S - 1)
    await listener.bring("b", context(1, 1))
    assert listener.took == {}
    mock_clock.jump(1)
    await trio.testing.wait_all_tasks_blocked()
    await listener.bring("c", context(1, 2))
    assert listener.took == {"a": None, "b": None, "c": "rank 0's attempt 1 is over"}


async def test_half_a_bundle_ends_with_its_epoch_and_the_next_begins_anew(
    listener: Listening,
) -> None:
    await listener.bring("a", context(7, 0))
    listener.driver.epoch_scopes.cancel()
    await trio.testing.wait_all_tasks_blocked()
    ended = dict(listener.took)
    for stream in range(3):
        await listener.bring(stream, context(1, stream, epoch=EPOCH + 1))
    assert (ended, listener.took[2]) == ({"a": None}, [0, 1, 2])


# --- the dialling end ---------------------------------------------------------------------------


class Accepting:
    """A port; `streams` tells what has been proven there, `ended` what the dialler has given up."""

    def __init__(self) -> None:
        self.streams: list[tuple[int, int, int]] = []
        self.ended = 0

    async def serve(self, conn: Any, said: DataContext) -> None:
        self.streams.append((said.attempt, said.stream, said.streams))
        assert await conn.recv(1) == b""
        self.ended += 1


def a_dialler(port: int, streams: int) -> Any:
    driver = a_driver(0, [0, port])
    driver.hub.settings = JobSettings(transport="tcp", streams=streams)
    driver.hub.fault = lambda point, step=0: driver.events.append((point, step))
    driver.attempts = iter(range(5, 100))
    return driver


async def test_all_streams_of_an_attempt_are_dialled_and_each_says_which_it_is() -> None:
    far = Accepting()
    async with listening(far.serve) as port:
        driver = a_dialler(port, 6)
        socks = await open_bundle(driver, EPOCH, 1, "data")
        names = [sock.getsockname() for sock in socks]
        for sock in socks:
            sock.close()
        while far.ended < 6:
            await trio.testing.wait_all_tasks_blocked(0.01)
    assert sorted(far.streams) == [(5, stream, 6) for stream in range(6)]
    assert len(set(names)) == 6
    assert driver.events == [("half_linked", there) for there in range(1, 6)]


async def test_one_stream_is_no_attempt_of_several() -> None:
    far = Accepting()
    async with listening(far.serve) as port:
        (sock,) = await open_bundle(a_dialler(port, 1), EPOCH, 1, "data")
        sock.close()
        while far.ended < 1:
            await trio.testing.wait_all_tasks_blocked(0.01)
    assert far.streams == [(0, 0, 1)]


async def test_few_connections_of_an_attempt_are_unproven_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixteen diallers with sixteen streams each would else push each other off the list."""
    under_way = most = 0

    async def slowly(*_: Any, share: Any, **__: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await trio.testing.wait_all_tasks_blocked()
        under_way -= 1
        return SimpleNamespace(close=lambda: None, stream=share.stream)

    monkeypatch.setattr("ftcomm.control.links.multi_stream.open_by_tcp", slowly)
    socks: Any = await open_bundle(a_dialler(0, 16), EPOCH, 1, "data")
    assert [sock.stream for sock in socks] == list(range(16))
    assert most == DIALLED_AT_ONCE


def some_are_there(monkeypatch: pytest.MonkeyPatch, there: int, then: Any) -> list[int]:
    """So many streams are there at once, for others comes `then`; what is closed is in the list."""
    closed: list[int] = []

    async def open_by_tcp(*_: Any, share: Any, **__: Any) -> Any:
        if share.stream >= there:
            await trio.testing.wait_all_tasks_blocked()
            await then()
        return SimpleNamespace(close=lambda: closed.append(share.stream))

    monkeypatch.setattr("ftcomm.control.links.multi_stream.open_by_tcp", open_by_tcp)
    return closed


async def test_one_stream_that_is_refused_takes_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse() -> None:
        raise ConnectionRefusedError("nobody is here")

    closed = some_are_there(monkeypatch, 2, refuse)
    driver = a_dialler(0, 3)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError, match="nobody is here"):
            await open_bundle(driver, EPOCH, 1, "data")
    assert sorted(closed) == [0, 0, 1, 1]
    assert next(driver.attempts) == 7, "each attempt has a number of its own"


async def test_streams_that_do_not_come_in_time_are_an_attempt_that_failed(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    closed = some_are_there(monkeypatch, 1, trio.sleep_forever)
    with pytest.raises(trio.TooSlowError):
        await open_bundle(a_dialler(0, 2), EPOCH, 1, "data")
    assert closed == [0]


async def test_the_end_of_the_epoch_closes_what_was_dialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = some_are_there(monkeypatch, 2, trio.sleep_forever)
    driver = a_dialler(0, DIALLED_AT_ONCE)
    with trio.CancelScope() as epoch:
        driver.hub.fault = lambda _, there: epoch.cancel() if there == 2 else None
        await open_bundle(driver, EPOCH, 1, "data")
    assert (epoch.cancelled_caught, sorted(closed)) == (True, [0, 1])


async def test_a_relayed_link_has_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_peer(_: Driver, epoch: int, rank: int, role: str) -> Any:
        return (epoch, rank, role)

    monkeypatch.setattr(manager, "open_peer", open_peer)
    driver = a_dialler(0, 3)
    driver.hub.core.view.relay_to = lambda _: 2
    assert await manager.open_link(driver, EPOCH, 1) == [(EPOCH, 1, "data")]


# --- links of messages --------------------------------------------------------------------------


async def opened_for_messages(driver: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Open a link of messages; by which function it was dialled, and what that was told."""
    dialled: list[Any] = []

    def dial(name: str, result: Any) -> Any:
        async def opens(_: Driver, *told: Any, **more: Any) -> Any:
            dialled.append((name, *told, *more.values()))
            return result

        return opens

    for name, result in (("open_peer", 0), ("open_by_tcp", 0), ("open_bundle", [0, 1, 2])):
        monkeypatch.setattr(manager, name, dial(name, result))
    monkeypatch.setattr(manager, "as_link", lambda _, conns, __: conns)
    conns: Any = await manager.open_message_link(driver, EPOCH, 1)
    return [*dialled, len(conns)]


async def test_messages_of_another_host_come_by_several_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = await opened_for_messages(a_dialler(0, 3), monkeypatch)
    assert opened == [("open_bundle", EPOCH, 1, "messages"), 3]


@pytest.mark.parametrize("is_found", [True, False])
async def test_messages_within_a_host_come_by_one(
    monkeypatch: pytest.MonkeyPatch, *, is_found: bool
) -> None:
    """Hosts of one name may be two: then nobody answers at the Unix socket."""
    driver = a_dialler(0, 3)
    driver.hub.settings = JobSettings(streams=3)
    closed: list[bool] = []

    async def connect_locally(*_: Any) -> Any:
        return SimpleNamespace(close=lambda: closed.append(True)) if is_found else None

    monkeypatch.setattr("ftcomm.control.links.dial.connect_locally", connect_locally)
    opened = await opened_for_messages(driver, monkeypatch)
    alone, several = ("open_by_tcp", EPOCH, 1, "messages", 1), ("open_bundle", EPOCH, 1, "messages")
    assert opened == ([alone, 1] if is_found else [several, 3])
    assert closed == [True] * is_found


async def test_a_link_of_messages_is_dialled_again_before_anybody_is_suspected(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    dialled = 0

    async def open_bundle(*_: Any) -> Any:
        nonlocal dialled
        dialled += 1
        if dialled < 3:
            raise ConnectionRefusedError("too many are not proven")
        return []

    monkeypatch.setattr(manager, "open_bundle", open_bundle)
    monkeypatch.setattr(manager, "as_link", lambda *_: "link")
    assert await manager.open_message_link(a_dialler(0, 3), EPOCH, 1) == "link"


async def test_relayed_messages_come_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = a_dialler(0, 3)
    driver.hub.core.view.relay_to = lambda _: 2
    opened = await opened_for_messages(driver, monkeypatch)
    assert opened == [("open_peer", EPOCH, 1, "messages"), 1]


async def test_who_brings_the_last_connection_serves_the_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[Link] = []
    said = [("data", context(2, 0)), *(("messages", context(1, stream)) for stream in (2, 0, 1))]
    contexts = iter(said)

    async def authenticate(_: Listener, __: Any) -> tuple[str, DataContext]:
        return next(contexts)

    async def serve(_: Driver, link: Link, __: DataContext) -> None:
        served.append(link)

    monkeypatch.setattr(Listener, "_authenticate", authenticate)
    listener = Listener(a_dialler(0, 3), {}, serve)
    data, *pairs = [trio.socket.socketpair() for _ in said]
    async with trio.open_nursery() as nursery:
        for near, _ in (data, *pairs):
            nursery.start_soon(listener._welcome, near)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    data[1].close()
    (link,) = served
    with pairs[0][1], pairs[1][1], pairs[2][1]:
        assert link.sendmsg((b"x" * (STRIPE_BYTES + 1),), (), 0) == STRIPE_BYTES
        assert link.sendmsg((b"y",), (), 0) == 1
        assert await pairs[1][1].recv(1) == b"x"  # the first of them by its number
        assert await pairs[2][1].recv(1) == b"y"
        link.close()
