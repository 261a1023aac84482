"""Messages over a link: sent as they are asked for and made, taken as they were sent."""

import errno
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from ftcomm.config.job_settings import JobSettings
from ftcomm.control.driver import EpochScopes, UserNews
from ftcomm.control.links.link_stream import LinkStream
from ftcomm.control.message_stream import (
    PeerClosed,
    receive_exactly,
    receive_message,
    send_all,
    send_message,
)
from ftcomm.control.messages import asking
from ftcomm.control.messages import feed as feed_module
from ftcomm.control.messages.direct_receive import DirectReceive
from ftcomm.control.messages.feed import JOINED_BYTES, Feed
from ftcomm.control.messages.posted_receives import PostedReceive, PostedReceives
from ftcomm.control.messages.serving import serve_messages
from ftcomm.memory.late_copy import LateCopy
from ftcomm.memory.message_value import ENTRY_BYTES, MessageValue, digest_of, text_of
from ftcomm.memory.pool import LoggedResult, Pool
from ftcomm.protocol.link_messages import (
    Content,
    FetchEnd,
    MessageRequest,
    StreamMark,
)
from ftcomm.protocol.message_head import (
    MIN_HEAD,
    NOTHING,
    HeadDecoder,
    HeadEncoder,
    HeadFields,
    MessageHead,
    head_bytes,
)
from ftcomm.protocol.messages import FatalReport, Suspect
from ftcomm.recovery.events import AskForMessages, MessagesWanted, SendControl
from ftcomm.recovery.machine import WorkerMachine
from ftcomm.recovery.messages.message_exchange import Cursor
from ftcomm.recovery.messages.names import START, behind
from tests.unit.recovery.test_messages import checkpoint, loaded
from tests.unit.transport.linked import linked

pytestmark = pytest.mark.trio
KINDS = ["socket", "striped", "checked"]
TAG = b"t"
QUICK = pytest.mark.parametrize("detect_within", [0.4])


@pytest.fixture
def detect_within() -> float:
    """A link is silent after so long, and says that it waits four times as often."""
    return 600.0


def value_of(*numbers: float) -> MessageValue:
    flat = np.array(numbers, np.float64)
    return MessageValue(LoggedResult(flat, flat.shape), Content.ARRAY)


def _digest(value: MessageValue) -> bytes:
    flat, shape = value.stored.flat, value.stored.shape
    return digest_of(flat, text_of(value.content, flat.dtype, shape))


def log(core: WorkerMachine, value: MessageValue, tag: bytes = TAG) -> None:
    digest = _digest(value)
    assert core.messages.send(1, tag, digest, value, "t.py:7") is None


def a_driver(core: WorkerMachine, nursery: trio.Nursery, detect_within: float) -> Any:
    said: list[Any] = []
    orders: list[Any] = []
    token = trio.lowlevel.current_trio_token()
    lock = threading.Lock()
    hub = SimpleNamespace(
        core=core,
        lock=lock,
        settings=JobSettings(detect_within=detect_within),
        fault=lambda _: None,
        faults=None,
        log=logging.getLogger("t"),
        pool=Pool(),
        receives=PostedReceives(core, lock),
        intakes={},
        feeds={},
        message_links=set(),
    )

    def apply(event: Any) -> None:
        for effect in core.handle(event, now=0.0):
            if isinstance(effect, SendControl):
                said.append(effect.message)
            elif isinstance(effect, AskForMessages):
                orders.append(effect)

    def run_soon(function: Callable[[], object]) -> None:
        token.run_sync_soon(function)

    return SimpleNamespace(
        hub=hub, nursery=nursery, epoch_scopes=EpochScopes(), apply=apply,
        arrived=lambda message, _: core.messages.arrive(message), said=said, orders=orders,
        message_news=UserNews(run_soon), taken_news=UserNews(run_soon),
    )  # fmt: skip


# --- the rank that sends ------------------------------------------------------------------------


class Link:
    """A receiver of rank 0's messages, at rank 1."""

    def __init__(
        self, core: WorkerMachine, nursery: trio.Nursery, kind: str, detect_within: float
    ) -> None:
        self.core = core
        self.driver = a_driver(core, nursery, detect_within)
        self.end, far = linked(kind)
        self.near = LinkStream(self.end)
        context: Any = SimpleNamespace(epoch=core.view.epoch, from_rank=1)
        self.ended = trio.Event()

        async def serve() -> None:
            await serve_messages(self.driver, far, context)
            self.ended.set()

        nursery.start_soon(serve)

    async def ask(self, version: int = 0, *marks: StreamMark) -> None:
        await send_message(self.near, MessageRequest(self.core.view.epoch, version, marks))

    async def next_request(self) -> None:
        with trio.fail_after(10.0):
            while not self.driver.hub.feeds:
                await trio.lowlevel.checkpoint()

    def made(self, *values: MessageValue) -> None:
        with self.driver.hub.lock:
            for value in values:
                log(self.core, value)
        self.driver.message_news.note()

    async def next(self) -> tuple[int, list[float]]:
        while (head := await self.next_head()) is None:
            pass
        raw = await receive_exactly(self.near, head.fields.nbytes)
        return head.number, np.frombuffer(raw).tolist()

    async def next_head(self) -> MessageHead | None:
        raw = await receive_exactly(self.near, MIN_HEAD)
        rest = await receive_exactly(self.near, head_bytes(memoryview(raw), 0) - MIN_HEAD)
        return HeadDecoder().decode(raw + rest)


@pytest.fixture(params=KINDS)
async def link(
    nursery: trio.Nursery, request: pytest.FixtureRequest, detect_within: float
) -> AsyncIterator[Link]:
    link = Link(loaded(), nursery, request.param, detect_within)
    yield link
    link.end.close()


async def test_what_was_sent_and_what_is_sent_later_comes_in_order(link: Link) -> None:
    link.made(value_of(1.0), value_of(2.0, 3.0))
    await link.ask()
    assert [await link.next(), await link.next()] == [(1, [1.0]), (2, [2.0, 3.0])]
    link.made(value_of(4.0))
    assert await link.next() == (3, [4.0])


async def test_a_link_of_an_epoch_that_has_just_ended_serves_nobody(link: Link) -> None:
    """It would take the place of the link of the present epoch."""
    request = MessageRequest(link.core.view.epoch, 0, ())
    link.core.view.revoke_epoch = link.core.view.epoch = request.epoch + 1
    await send_message(link.near, request)
    with trio.fail_after(10.0):
        await link.ended.wait()
    assert link.driver.hub.feeds == {}


async def test_a_receiver_gets_what_follows_its_marks(link: Link) -> None:
    first, second = value_of(1.0), value_of(2.0)
    link.made(first, second)
    mark = behind(START, _digest(first))
    await link.ask(0, StreamMark(TAG, *mark))
    assert await link.next() == (2, [2.0])


async def test_large_messages_and_small_ones_keep_their_order(link: Link) -> None:
    large = value_of(*range(JOINED_BYTES))
    link.made(value_of(1.0), large, value_of(2.0), large, value_of(3.0))
    await link.ask()
    lengths = [len((await link.next())[1]) for _ in range(5)]
    assert lengths == [1, JOINED_BYTES, 1, JOINED_BYTES, 1]


async def test_many_messages_take_several_looks(link: Link) -> None:
    link.made(*(value_of(float(number)) for number in range(200)))
    await link.ask()
    assert [await link.next() for _ in range(200)] == [(n + 1, [float(n)]) for n in range(200)]


@QUICK
async def test_a_link_without_messages_is_not_silent(link: Link) -> None:
    await link.ask()
    assert await link.next_head() is None


@QUICK
async def test_a_receiver_in_a_later_version_waits_until_the_sender_has_come_so_far(
    link: Link,
) -> None:
    link.made(value_of(1.0))
    await link.ask(1)
    assert await link.next_head() is None
    checkpoint(link.core, 1)
    link.made(value_of(5.0))
    assert await link.next() == (1, [5.0])


async def test_other_bytes_than_the_receiver_has_end_the_job(link: Link) -> None:
    link.made(value_of(1.0))
    await link.ask(0, StreamMark(TAG, 1, b"x" * 16))
    while not link.driver.said:
        await trio.lowlevel.checkpoint()
    [report] = link.driver.said
    assert isinstance(report, FatalReport)
    assert report.error == "JobLostError"


async def test_who_asks_a_second_time_is_cut_off(link: Link) -> None:
    await link.ask()
    await link.ask()
    await link.ended.wait()


@pytest.mark.parametrize("message", [MessageRequest(7, 0), FetchEnd()])
async def test_who_asks_for_something_else_is_cut_off(link: Link, message: Any) -> None:
    await send_message(link.near, message)
    await link.ended.wait()


async def test_a_receiver_that_goes_ends_the_link(link: Link) -> None:
    await link.ask()
    link.end.shutdown()
    await link.ended.wait()


async def test_a_message_behind_all_others_may_be_written_by_its_own_thread(link: Link) -> None:
    await link.ask()
    await link.next_request()
    [first, second] = [value_of(float(number)) for number in (1, 2)]
    feed = link.driver.hub.feeds[1]
    with link.driver.hub.lock:
        log(link.core, first)
        claim = feed.claim()
        assert claim is not None
        log(link.core, second)
        assert feed.claim() is None  # one thread at a time
    feed.write(claim, link.driver.hub.lock)
    link.driver.message_news.note()  # as its sender does, who has no claim
    assert [await link.next(), await link.next()] == [(1, [1.0]), (2, [2.0])]


async def test_what_does_not_fit_the_kernel_is_written_by_the_control_thread(link: Link) -> None:
    await link.ask()
    await link.next_request()
    large = value_of(*range(500_000))
    feed = link.driver.hub.feeds[1]
    with link.driver.hub.lock:
        log(link.core, large)
        claim = feed.claim()
    assert claim is not None
    feed.write(claim, link.driver.hub.lock)
    with link.driver.hub.lock:
        log(link.core, value_of(1.0))
        assert feed.claim() is None  # it would come in the middle of the one before
    assert (await link.next())[1] == [*map(float, range(500_000))]
    assert await link.next() == (2, [1.0])


def late_copy_of(value: MessageValue) -> LateCopy:
    return LateCopy(value, np.empty_like(value.stored.flat))


def log_without_a_value(core: WorkerMachine, value: MessageValue) -> None:
    assert core.messages.send(1, TAG, _digest(value), None, "t.py:7") is None


@pytest.mark.parametrize("count", [10, 500_000])  # the kernel takes all at once, or a part
async def test_a_message_may_be_copied_for_the_log_when_it_is_on_its_way(
    link: Link, count: int
) -> None:
    await link.ask()
    await link.next_request()
    value, numbers = value_of(*range(count)), [*map(float, range(count))]
    feed = link.driver.hub.feeds[1]
    with link.driver.hub.lock:
        log_without_a_value(link.core, value)
        claim = feed.claim()
    assert claim is not None
    feed.write(claim, link.driver.hub.lock, late_copy_of(value))
    value.stored.flat[:] = -1.0  # the user may, as the call is over
    assert await link.next() == (1, numbers)
    _, [logged] = link.core.messages.following(1, Cursor(0, {}), 9)
    assert logged.value.stored.flat.tolist() == numbers


async def test_a_link_that_was_asked_before_a_message_was_copied_is_looked_at_again() -> None:
    core, lock, notes = loaded(), threading.Lock(), list[str]()
    ends = [linked("socket") for _ in range(2)]
    older, newer = (Feed(core.messages, 1, far, lambda: notes.append("look")) for _, far in ends)
    older.ask(MessageRequest(core.view.epoch, 0, ()))
    value = value_of(1.0)
    log_without_a_value(core, value)
    claim = older.claim()
    assert claim is not None
    newer.ask(MessageRequest(core.view.epoch, 0, ()))
    assert newer.next_pieces() == []
    older.write(claim, lock, late_copy_of(value))
    assert notes == ["look"]
    assert newer.next_pieces() != []
    for near, far in ends:
        near.close()
        far.close()


async def test_a_link_on_which_writing_was_interrupted_is_given_up(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes behind a call of the kernel's: nobody knows how much of the message has left."""
    await link.ask()
    await link.next_request()
    feed = link.driver.hub.feeds[1]
    with link.driver.hub.lock:
        log(link.core, value_of(*range(500_000)))  # more than the kernel takes at once
        claim = feed.claim()
    assert claim is not None

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(feed_module, "_behind", interrupted)
        with pytest.raises(KeyboardInterrupt):
            feed.write(claim, link.driver.hub.lock)
    with link.driver.hub.lock:
        log(link.core, value_of(2.0))
        assert feed.claim() is None
    await link.ended.wait()


async def test_nobody_writes_on_a_link_that_is_over(link: Link) -> None:
    await link.ask()
    await link.next_request()
    feed = link.driver.hub.feeds[1]
    with link.driver.hub.lock:
        log(link.core, value_of(1.0))
        claim = feed.claim()
    link.end.shutdown()
    await link.ended.wait()
    assert link.driver.hub.feeds == {}
    assert claim is not None
    feed.write(claim, link.driver.hub.lock)


# --- the rank that receives ---------------------------------------------------------------------


def item_of(number: int, value: MessageValue, **changes: Any) -> bytes:
    stored = value.stored
    fields = HeadFields(
        0, TAG, value.content, stored.dtype, stored.shape, stored.flat.nbytes
    )._replace(**changes)
    return HeadEncoder().encode(fields, number, _digest(value)) + bytes(stored.raw())


class Source:
    """Rank 1, of which rank 0 asks for messages."""

    def __init__(
        self,
        nursery: trio.Nursery,
        monkeypatch: pytest.MonkeyPatch,
        kind: str,
        detect_within: float,
    ) -> None:
        self.core = loaded()
        self.driver = a_driver(self.core, nursery, detect_within)
        self.end, far = linked(kind)
        self.near = LinkStream(self.end)

        async def open_message_link(*_: Any) -> Any:
            return far

        monkeypatch.setattr(asking, "open_message_link", open_message_link)
        self.want()

    def want(self) -> None:
        self.driver.apply(MessagesWanted(1))
        for order in self.driver.orders:
            self.driver.nursery.start_soon(asking.ask_for_messages, self.driver, order)
        self.driver.orders.clear()

    async def until(self, condition: Callable[[], object]) -> None:
        with trio.fail_after(10.0):
            while not condition():
                await trio.lowlevel.checkpoint()

    def waiting(self) -> Any:
        return self.core.messages.waiting(1, TAG)


@pytest.fixture(params=KINDS)
async def source(
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    detect_within: float,
) -> AsyncIterator[Source]:
    source = Source(nursery, monkeypatch, request.param, detect_within)
    yield source
    source.end.close()


async def test_messages_of_other_types_that_come_at_once_keep_their_own(source: Source) -> None:
    """The head of the next one is read before the first is given on."""
    whole = MessageValue(LoggedResult(np.arange(4), (2, 2)), Content.ARRAY)
    data = item_of(1, value_of(1.0)) + item_of(2, whole) + item_of(3, value_of(2.0, 3.0))
    await send_all(source.near, data)
    for wanted in ([1.0], [0, 1, 2, 3], [2.0, 3.0]):
        await source.until(source.waiting)
        found = source.waiting().stored.flat
        assert (found.tolist(), found.dtype.kind) == (wanted, "i" if len(wanted) == 4 else "f")
        source.core.messages.receive(1, TAG, 0.0)


async def test_the_ranks_of_this_host_decide_how_long_is_tried(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, detect_within: float
) -> None:
    made: list[int] = []

    def tries(ranks: int, *_: int) -> int:
        made.append(ranks)
        return 1

    monkeypatch.setattr(asking, "spins_before_sleep", tries)
    source = Source(nursery, monkeypatch, "socket", detect_within)
    await source.until(lambda: source.driver.hub.intakes)
    assert made == [source.core.view.grouping.count(0)]
    source.end.close()


async def test_a_source_is_suspected_where_no_descriptor_is_left(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, detect_within: float
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asking, "Intake", full)
    source = Source(nursery, monkeypatch, "socket", detect_within)
    await source.until(lambda: source.driver.said)
    assert "as many files and sockets open as it may" in source.driver.said[0].reason
    assert not source.driver.hub.message_links
    with pytest.raises(PeerClosed):
        await receive_message(source.near)
    source.end.close()


async def test_messages_are_taken_as_they_were_sent(source: Source) -> None:
    assert await receive_message(source.near) == MessageRequest(1, 0)
    sent = NOTHING + item_of(1, value_of(1.0, 2.0)) + item_of(2, value_of(3.0))
    await send_all(source.near, sent)
    await source.until(lambda: source.core.messages.held(1) == 24 + 2 * ENTRY_BYTES)
    value: MessageValue = source.waiting()
    assert value.stored.flat.tolist() == [1.0, 2.0]
    assert (value.content, value.text) == (Content.ARRAY, "float64[2]")


async def test_messages_of_the_next_version_follow_those_of_this_one(source: Source) -> None:
    assert await receive_message(source.near) == MessageRequest(1, 0)
    await send_all(source.near, item_of(1, value_of(1.0), version=1))
    await source.until(lambda: source.core.messages.held(1))
    checkpoint(source.core, 1)
    source.want()
    assert source.waiting().stored.flat.tolist() == [1.0]


async def test_a_source_is_not_read_far_ahead_of_its_user(
    source: Source, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In steps of a message that is larger than what one read brings."""
    large = value_of(*range(20_000))
    counted = large.stored.flat.nbytes + ENTRY_BYTES
    monkeypatch.setattr(asking, "READ_AHEAD_BYTES", counted)
    sent = b"".join(item_of(n, large) for n in (1, 2, 3))
    nursery.start_soon(send_all, source.near, sent)
    held = source.core.messages.held
    for _ in range(2):
        await source.until(lambda: held(1) == counted)
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        assert held(1) == counted
        source.core.messages.receive(1, TAG, 0.0)
        source.driver.taken_news.tell()
    await source.until(lambda: held(1) == counted)


async def test_a_large_message_is_received_where_its_user_wants_it(
    source: Source, nursery: trio.Nursery
) -> None:
    out, told = np.zeros(20_000), trio.Event()
    source.driver.hub.receives.post(
        PostedReceive(
            1, TAG, "recv()", "t.py:1", None, lambda _: None, lambda *_: told.set(), out=out
        )
    )
    source.core.contact.confirm_after = float("inf")
    nursery.start_soon(send_all, source.near, item_of(1, value_of(*range(20_000))))
    await source.until(lambda: source.waiting() is not None)
    assert np.may_share_memory(source.waiting().stored.flat, out)
    assert out.tolist() == [*map(float, range(20_000))]


@pytest.mark.parametrize("what", ["next", "shape", "object"])
async def test_a_message_is_received_in_the_array_of_who_reads_for_itself(
    source: Source, nursery: trio.Nursery, what: str
) -> None:
    given: list[tuple[MessageValue, DirectReceive | None]] = []
    source.driver.arrived = lambda message, direct: given.append((message.value, direct))
    await source.until(lambda: source.driver.hub.intakes)
    out = np.zeros((100, 200) if what == "shape" else 20_000)
    source.driver.hub.intakes[1].direct = direct = DirectReceive(1, TAG, None, None, out)
    value = value_of(*range(20_000))
    value.content = Content.OBJECT if what == "object" else Content.ARRAY
    nbytes, raw = value.stored.flat.nbytes, {"dtype": 6, "shape": (value.stored.flat.nbytes,)}
    item = item_of(1, value, **(raw if what == "object" else {}))
    nursery.start_soon(send_all, source.near, item)
    await source.until(lambda: given)
    [(found, reader)] = given
    assert reader is direct
    assert found.stored.flat.nbytes == nbytes
    assert np.may_share_memory(found.stored.flat, out) == (what == "next") == direct.is_filling
    assert (out.reshape(-1).tolist() == [*map(float, range(20_000))]) == (what == "next")


async def test_a_small_message_is_copied_to_who_reads_for_itself(source: Source) -> None:
    given: list[Any] = []
    source.driver.arrived = lambda message, _: given.append(message.value)
    await source.until(lambda: source.driver.hub.intakes)
    out = np.zeros(1)
    source.driver.hub.intakes[1].direct = DirectReceive(1, TAG, None, None, out)
    await send_all(source.near, item_of(1, value_of(3.0)))
    await source.until(lambda: given)
    assert (out.tolist(), given[0].stored.flat.tolist()) == ([0.0], [3.0])


ITEM = item_of(1, value_of(1.0))


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (b"", "the other end closed the connection"),
        (ITEM[:-1], "the other end closed the connection"),
        (item_of(1, value_of(1.0), nbytes=9), r"announced as float64\[1\]"),
        (item_of(1, value_of(1.0), nbytes=8 << 36, shape=(1 << 36,)), "of 549755813888 bytes"),
        (b"\xff" * MIN_HEAD, "claims 255 dimensions"),
    ],
    ids=["nothing", "cut", "sizes", "too large", "no head"],
)
async def test_a_source_that_sends_something_else_is_suspected(
    source: Source, sent: bytes, cause: str
) -> None:
    await send_all(source.near, sent)
    source.end.shutdown()
    await source.until(lambda: source.driver.said)
    [suspicion] = source.driver.said
    assert isinstance(suspicion, Suspect)
    assert suspicion.ranks == (1,)
    assert re.search(cause, suspicion.reason), suspicion.reason


@QUICK
async def test_a_source_from_which_nothing_comes_is_suspected(source: Source) -> None:
    await source.until(lambda: source.driver.said)
    assert "nothing came for 0.4 s" in source.driver.said[0].reason
