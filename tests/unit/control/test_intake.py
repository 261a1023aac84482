"""A link that the control thread reads, or a thread that waits for a message of it."""

import select
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from ftcomm.control.message_stream import PeerClosed
from ftcomm.control.messages import intake
from ftcomm.control.messages.awaited_message import AwaitedMessage
from ftcomm.control.messages.direct_receive import DirectReceive
from ftcomm.control.messages.intake import BROKEN, LOOK_S, Intake
from ftcomm.control.messages.message_parser import MessageParser, ParsedMessage
from ftcomm.protocol.checksum_records import record_head, xxh3_digest
from ftcomm.protocol.message_head import MIN_HEAD, NOTHING, HeadEncoder
from ftcomm.transport import striped_link
from ftcomm.transport.checksum_link import CheckedLink
from ftcomm.transport.link import Link as AnyLink
from ftcomm.transport.socket_link import SocketLink
from ftcomm.transport.waker import Waker
from tests.helpers.interrupts import BY_SIGNAL, interrupted, places
from tests.unit.transport.linked import linked

pytestmark = pytest.mark.trio
LIMIT_S = 600.0


def message(number: int) -> bytes:
    return HeadEncoder().encode((0, b"t", 0, 6, (2,), 2), number, bytes(16)) + b"ab"


class Link:
    """An intake, and the messages that it has given on, with their threads.

    Attributes:
        far: the other end.
    """

    far: socket.socket

    def __init__(self, near: AnyLink) -> None:
        self.taken: list[tuple[int, threading.Thread]] = []
        self.awaited = AwaitedMessage()
        self.waits_for = 0
        parser = MessageParser(lambda head: np.empty(head.fields.nbytes, np.uint8))
        self.intake = Intake(near, parser, self.take, spins=20)
        self.error: BaseException | None = None
        self.is_over = trio.Event()

    def take(self, found: ParsedMessage) -> None:
        self.taken.append((found.head.number, threading.current_thread()))
        if found.head.number == self.waits_for:
            self.awaited.take(found.head.number, None)

    def be_hot(
        self,
        poll_for: Callable[..., Sequence[tuple[int, int]]],
        take: Callable[[ParsedMessage], None],
    ) -> None:
        """As if a thread had just read; `poll_for` is asked before it sleeps."""
        real = self.intake._link
        link: Any = SimpleNamespace(recv_into=real.recv_into, poll_for=poll_for, close=real.close)
        self.intake._link, self.intake._take = link, take
        self.intake._read_at = float("inf")

    async def keep_reading(self) -> None:
        try:
            await self.intake.keep_reading(LIMIT_S, trio.lowlevel.checkpoint)
        except BROKEN as error:
            self.error = error
        self.is_over.set()

    async def until(self, count: int) -> None:
        with trio.fail_after(60.0):
            while len(self.taken) < count:
                await trio.lowlevel.checkpoint()


class CountingWaker(Waker):
    """A waker that is not written, and says how often it would be."""

    def __init__(self) -> None:
        super().__init__()
        self.times_set = 0

    def set(self) -> None:
        self.times_set += 1


@pytest.fixture
async def link(nursery: trio.Nursery) -> AsyncIterator[Link]:
    near, far = socket.socketpair()
    link = Link(SocketLink(near, 1))
    link.far = far
    with far:
        yield link
        link.intake.end()


async def test_the_control_thread_reads_what_comes(link: Link, nursery: trio.Nursery) -> None:
    nursery.start_soon(link.keep_reading)
    link.far.sendall(message(1) + NOTHING + message(2))
    await link.until(2)
    assert link.taken == [(number, threading.current_thread()) for number in (1, 2)]


async def test_a_thread_that_waits_reads_itself(link: Link) -> None:
    link.waits_for = 2
    link.far.sendall(message(1))

    def read() -> threading.Thread:
        link.intake.read_until(link.awaited)
        return threading.current_thread()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.until, 1)
        nursery.start_soon(trio.to_thread.run_sync, link.far.sendall, message(2))
        reader = await trio.to_thread.run_sync(read)
    assert [number for number, _ in link.taken] == [1, 2]
    assert {thread for _, thread in link.taken} == {reader}


async def test_who_reads_for_itself_leaves_when_it_has_its_message_or_nothing_comes(
    link: Link,
) -> None:
    direct = DirectReceive(1, b"t", None, None)

    def take(found: ParsedMessage) -> None:
        assert link.intake.direct is direct
        link.take(found)
        direct.is_over = direct.is_over or found.head.number == 2

    link.intake._take = take
    link.far.sendall(message(1))
    link.intake.read_for(direct)
    assert link.taken == [], "the control thread may be reading"
    link.awaited.take(None, None)
    link.intake.read_until(link.awaited)  # it is expected to do so again
    link.intake.read_for(direct)
    assert [number for number, _ in link.taken] == [1]
    link.far.sendall(message(2) + message(3))
    link.intake.read_for(direct)
    assert [number for number, _ in link.taken] == [1, 2, 3], "they came in one piece"
    assert (link.intake.direct, link.intake._has_reader) == (None, False)


@pytest.mark.parametrize("by", ["message", "another thread", "end", "close"])
async def test_who_reads_for_itself_sleeps_until_something_comes(
    link: Link, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "DIRECT_S", LIMIT_S)
    direct, asleep = DirectReceive(1, b"t", None, None), threading.Event()
    real, (old, other_end) = link.intake._link, socket.socketpair()

    def sleeps(**wanted: bool) -> Sequence[tuple[int, int]]:
        asleep.set()
        if by == "another thread":  # which finds what comes; nothing comes on this connection
            return [(old.fileno(), select.POLLIN)]
        return real.poll_for(**wanted)

    def take(found: ParsedMessage) -> None:
        link.take(found)
        direct.is_over = True

    link.be_hot(sleeps, take)
    with old, other_end, trio.fail_after(10.0):
        async with trio.open_nursery() as nursery:
            read = partial(trio.to_thread.run_sync, link.intake.read_for, abandon_on_cancel=True)
            nursery.start_soon(read, direct)
            assert await trio.to_thread.run_sync(asleep.wait, 10.0), "it tries on, or has left"
            if by == "end":
                link.intake.end()
            elif by == "close":
                link.far.close()
            else:
                link.far.sendall(message(1))
            if by == "another thread":
                link.intake._look(LIMIT_S)
    assert direct.is_over == (by in ("message", "another thread"))
    assert (link.intake.direct, link.intake._has_reader) == (None, False)


@pytest.mark.parametrize("by", ["message", "end"])
async def test_who_reads_for_itself_stays_while_its_array_is_filled(
    link: Link, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of its message would be written into an array that its user may use again."""
    monkeypatch.setattr(intake, "DIRECT_S", 0.0)
    direct, asleep = DirectReceive(1, b"t", None, None), threading.Event()
    direct.is_filling, real = True, link.intake._link

    def sleeps(**wanted: bool) -> Sequence[tuple[int, int]]:
        asleep.set()
        return real.poll_for(**wanted)

    def take(found: ParsedMessage) -> None:
        assert link.intake.direct is direct
        direct.is_over = True

    link.be_hot(sleeps, take)
    with trio.fail_after(10.0):
        async with trio.open_nursery() as nursery:
            read = partial(trio.to_thread.run_sync, link.intake.read_for, abandon_on_cancel=True)
            nursery.start_soon(read, direct)
            assert await trio.to_thread.run_sync(asleep.wait, 10.0), "it has left"
            if by == "end":
                link.intake.end()
            else:
                link.far.sendall(message(1))
    assert direct.is_over == (by == "message")
    assert (link.intake.direct, link.intake._has_reader) == (None, False)


async def test_a_silent_link_ends_though_the_control_thread_waits_for_room(
    link: Link, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader stays, as its array is filled; only the control thread knows the limit."""
    monkeypatch.setattr(intake, "DIRECT_S", 0.0)
    waits_for_room, over = trio.Event(), trio.Event()

    async def no_room() -> None:
        waits_for_room.set()
        await trio.sleep_forever()

    async def read_silence() -> None:
        with pytest.raises(trio.TooSlowError):
            await link.intake.keep_reading(-1.0, no_room)
        over.set()
        link.intake.end()

    direct = DirectReceive(1, b"t", None, None)
    direct.is_filling = True
    nursery.start_soon(read_silence)
    await waits_for_room.wait()
    link.intake._read_at = float("inf")  # it has read just now
    with trio.fail_after(10.0):
        await trio.to_thread.run_sync(link.intake.read_for, direct, abandon_on_cancel=True)
        await over.wait()


async def test_the_control_thread_waits_for_room_again_if_it_is_woken_for_nothing(
    link: Link, nursery: trio.Nursery
) -> None:
    asked = 0

    async def no_room() -> None:
        nonlocal asked
        asked += 1
        await trio.sleep_forever()

    nursery.start_soon(link.intake.keep_reading, LIMIT_S, no_room)
    await trio.testing.wait_all_tasks_blocked()
    link.far.sendall(message(1))
    link.intake._end_pause()
    await trio.testing.wait_all_tasks_blocked()
    assert (asked, link.taken) == (2, [])


async def test_who_leaves_is_not_given_a_place_any_more(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control thread may read at any time: it finds who has decided to leave gone."""
    monkeypatch.setattr(intake, "DIRECT_S", 0.0)
    link.intake._read_at = float("inf")
    direct = DirectReceive(1, b"t", None, None)
    left_behind: list[DirectReceive | None] = []
    lock = link.intake._lock

    class Watched:
        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            left_behind.append(link.intake.direct)
            lock.release()

    watched: Any = Watched()
    link.intake._lock = watched
    link.intake.read_for(direct)
    assert left_behind[0] is direct
    assert left_behind[-2:] == [None, None], "by the decision, and by the end"


async def test_an_answer_that_comes_just_before_the_sleep_is_seen(link: Link) -> None:
    class Answered(AwaitedMessage):
        def wake_by(self, waker: Waker | None) -> None:
            if not self.is_over:
                self.take(None, None)
            super().wake_by(waker)

    with trio.fail_after(10.0):
        read = partial(link.intake.read_until, Answered())
        await trio.to_thread.run_sync(read, abandon_on_cancel=True)


async def test_an_answer_behind_the_end_of_a_link_that_was_slept_on_wakes_nobody(
    link: Link,
) -> None:
    link.intake._waker.close()
    link.intake._waker = waker = CountingWaker()
    link.far.close()
    await trio.to_thread.run_sync(link.intake._sleep, link.awaited)
    link.intake.end()  # and with it the waker's descriptor
    link.awaited.take(None, None)
    assert waker.times_set == 1, "by the end alone: another file may have the descriptor's number"


async def test_the_control_thread_looks_on_while_a_thread_is_about_to_read(
    link: Link, nursery: trio.Nursery
) -> None:
    """It may have been cut short, and never comes back."""
    link.intake._has_reader = True
    nursery.start_soon(link.keep_reading)
    link.far.sendall(message(1))
    await link.until(1)
    link.intake._has_reader = False


async def test_who_waits_without_reading_has_the_control_thread_read_at_once(
    link: Link, nursery: trio.Nursery
) -> None:
    link.awaited.take(None, None)
    link.intake.read_until(link.awaited)
    assert link.intake._is_hot
    nursery.start_soon(link.keep_reading)
    link.intake.cool()
    assert not link.intake._is_hot
    link.far.sendall(message(1))
    await link.until(1)


@pytest.mark.parametrize("by", ["answer", "end", "close", "bytes"])
async def test_a_reader_leaves_when_it_waits_for_nothing_any_more(link: Link, by: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, link.intake.read_until, link.awaited)
        with trio.fail_after(60.0):
            while not link.intake._has_reader:
                await trio.lowlevel.checkpoint()
        if by == "answer":  # of another thread, an error for example
            link.awaited.take(None, ValueError("it ended"))
        elif by == "end":
            link.intake.end()
        elif by == "close":
            link.far.close()
        else:
            link.far.sendall(b"\xff" * MIN_HEAD)
    assert (link.intake.lost is not None) == (by in ("close", "bytes"))


async def test_a_reader_looks_again_for_the_next_connection_when_another_has_read(
    link: Link,
) -> None:
    """Its sleep is on a connection on which nothing will come."""
    old, other_end = socket.socketpair()
    asleep, size, real = threading.Event(), len(message(1)), link.intake._link

    def sleeps(**_: bool) -> list[tuple[int, int]]:
        asleep.set()
        return [(old.fileno(), select.POLLIN)]

    one_message: Any = SimpleNamespace(
        recv_into=lambda buffer: real.recv_into(buffer[:size]), poll_for=sleeps, close=real.close
    )
    link.intake._link, link.waits_for = one_message, 2
    with old, other_end, trio.fail_after(10.0):
        async with trio.open_nursery() as nursery:
            read = partial(trio.to_thread.run_sync, link.intake.read_until, abandon_on_cancel=True)
            nursery.start_soon(read, link.awaited)
            await trio.to_thread.run_sync(asleep.wait)
            link.far.sendall(message(1) + message(2))
            link.intake._look(600.0)
    assert [number for number, _ in link.taken] == [1, 2]


async def test_the_control_thread_looks_again_for_the_next_connection_when_another_has_read(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing will come on the one that it waits for."""
    monkeypatch.setattr(striped_link, "STRIPE_BYTES", len(message(1)))
    near, far = linked("striped")
    link = Link(near)
    link.waits_for = 1
    nursery.start_soon(link.keep_reading)
    await trio.testing.wait_all_tasks_blocked()
    far.sendmsg((message(1),), (), 0)
    link.intake.read_until(link.awaited)  # before the control thread can see that
    await trio.testing.wait_all_tasks_blocked()
    while link.intake._is_hot:
        await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked(LOOK_S)  # it waits for the link again
    far.sendmsg((message(2),), (), 0)
    await link.until(2)
    link.intake.end()
    far.close()


async def test_what_a_reader_finds_is_told_by_the_control_thread(
    link: Link, nursery: trio.Nursery
) -> None:
    link.far.close()
    await trio.to_thread.run_sync(link.intake.read_until, link.awaited)
    nursery.start_soon(link.keep_reading)
    await link.is_over.wait()
    assert isinstance(link.error, PeerClosed)
    link.intake.read_until(link.awaited)  # at once


async def test_a_link_on_which_reading_was_interrupted_is_given_up(link: Link) -> None:
    """Ctrl-C comes behind a call of the kernel's: bytes are gone that nobody has counted."""
    real = link.intake._link

    def interrupted(buffer: memoryview) -> int:
        real.recv_into(buffer)
        raise KeyboardInterrupt

    cut_short: Any = SimpleNamespace(
        recv_into=interrupted, poll_for=real.poll_for, close=real.close
    )
    link.intake._link = cut_short
    link.far.sendall(message(1))
    with pytest.raises(KeyboardInterrupt):
        link.intake.read_until(link.awaited)
    link.intake._link = real
    link.far.sendall(message(2))
    with pytest.raises(OSError, match="reading was interrupted"), trio.fail_after(10.0):
        await link.intake.keep_reading(600.0, trio.lowlevel.checkpoint)
    assert link.taken == []


async def test_a_reader_that_is_cut_short_leaves_the_link_to_others() -> None:
    """Else it is read by looks alone, without a bound, and its descriptors are never closed."""
    for number in places():
        near, far = socket.socketpair()
        with far:
            link = Link(SocketLink(near, 1))
            link.waits_for = 1
            far.sendall(message(1))
            read = partial(link.intake.read_until, link.awaited)
            has_come = interrupted(read, number, intake, where=BY_SIGNAL)
            link.intake.end()
        assert link.intake._waker.fd < 0
        if not has_come:
            break
    assert number > 10


async def test_a_record_that_comes_slowly_is_no_silence(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link under checksums gives nothing before it has all of a record."""
    near, far = socket.socketpair()
    now = [0.0]
    monkeypatch.setattr(intake, "time", SimpleNamespace(monotonic=lambda: now[0]))
    link = Link(CheckedLink(SocketLink(near, 1), xxh3_digest, lambda: None))
    nursery.start_soon(link.keep_reading)
    record = record_head(xxh3_digest, 0, (memoryview(message(1)),)) + message(1)
    with far:
        for byte in record:
            await trio.testing.wait_all_tasks_blocked()
            now[0] += LIMIT_S / 2
            far.sendall(bytes([byte]))
        await link.until(1)
        link.intake.end()
    assert link.error is None


async def test_a_link_of_which_nothing_comes_is_given_up(link: Link) -> None:
    with pytest.raises(trio.TooSlowError, match=r"nothing came for 0\.05 s"):
        await link.intake.keep_reading(0.05, trio.lowlevel.checkpoint)
