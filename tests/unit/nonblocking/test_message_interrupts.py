"""Ctrl-C at every place of a send and a receive: nothing has happened, or this process leaves."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from ftcomm.api import message_forms, messages, session
from ftcomm.api.messages import MessageCalls
from ftcomm.control import changes
from ftcomm.control.changes import Changes
from ftcomm.control.messages import awaited_message, direct_receive, posted_receives
from ftcomm.control.messages.direct_receive import DirectReceive
from ftcomm.control.messages.posted_receives import PostedReceives
from ftcomm.engine import message_port
from ftcomm.engine.message_port import MessagePort
from ftcomm.memory.message_value import MessageValue
from ftcomm.memory.pool import LoggedResult, Pool
from ftcomm.nonblocking import handle, message_handles
from ftcomm.nonblocking import message_forms as nonblocking_forms
from ftcomm.nonblocking.callbacks import Callbacks
from ftcomm.nonblocking.message_handles import MessageHandles
from ftcomm.protocol.link_messages import Content
from ftcomm.recovery.events import MessagesWanted
from ftcomm.recovery.messages import inbox, message_exchange, sent_log
from ftcomm.recovery.messages.message_exchange import MessageArrived
from ftcomm.requests.message_request import packed_tag
from tests.helpers.interrupts import BY_SIGNAL, interrupted, places
from tests.unit.recovery.test_messages import loaded

PATH = (messages, message_forms, nonblocking_forms, message_handles, handle, message_port)
PATH += (
    changes,
    posted_receives,
    direct_receive,
    awaited_message,
    inbox,
    message_exchange,
    sent_log,
    session,
)
Call = Callable[["Rank"], Any]
WITHIN_S = 60.0  # a hang is a failure; nothing here takes a second


class Rank:
    """Rank 0, without links: what it sends stays in its log, and messages of rank 1 arrive."""

    def __init__(self) -> None:
        self.core = core = loaded()
        core.contact.confirm_after = float("inf")
        lock = threading.Lock()
        self.left_by: list[BaseException] = []
        hub: Any = SimpleNamespace(
            core=core,
            lock=lock,
            messages_move=Changes(lock),
            receives=PostedReceives(core, lock),
            settings=SimpleNamespace(log_limit=1 << 30),
            pool=Pool(),
            feeds={},
            intakes={},
            faults=None,
        )
        driver = SimpleNamespace(
            act=lambda event: core.handle(event, now=0.0),
            message_news=SimpleNamespace(note=lambda: None),
        )
        self.hub = hub
        self.receives: PostedReceives = hub.receives
        self.intakes: dict[int, Any] = hub.intakes
        control: Any = SimpleNamespace(driver=driver)
        engine = SimpleNamespace(
            position=core.progress.position,
            rank=0,
            world_size=2,
            messages=MessagePort(hub, control),
        )
        owner: Any = SimpleNamespace(
            engine=engine,
            guard=SimpleNamespace(is_inherited=False, is_closed=False, heed=self.heed),
            call_stats=session.CallStats(core.log.unasked),
            limit_of=lambda _: None,
            give_up=self.left_by.append,
        )
        self._messages = MessageCalls(owner)
        self._message_handles = MessageHandles(self._messages, Callbacks(()))
        self.numbers = itertools.count(1)

    def heed(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            self.left_by.append(error)

    def next_message(self, *content: float) -> MessageArrived:
        flat = np.array(content)
        value = MessageValue(LoggedResult(flat, flat.shape), Content.ARRAY)
        place = self.core.view.epoch, 1, 0, packed_tag(0), next(self.numbers)
        return MessageArrived(*place, bytes(16), value)

    def arrive(self, *content: float) -> None:
        assert self.core.messages.arrive(self.next_message(*content))
        self.receives.arrived(1, packed_tag(0))

    @property
    def sent(self) -> int:
        return self.core.messages.totals(1)[0].number


def send(rank: Rank) -> None:
    message_forms.send(rank, np.ones(3), 1)


def isend(rank: Rank) -> None:
    nonblocking_forms.isend(rank, np.ones(3), 1)


def sendrecv(rank: Rank) -> None:
    message_forms.sendrecv(rank, np.ones(3), 1, 1)


def recv(rank: Rank) -> list[float]:
    assert rank.core.messages.waiting(1, packed_tag(0)) is not None, "or it would wait for ever"
    got: Any = message_forms.recv(rank, 1)
    return list(got)


def begin(rank: Rank) -> Any:
    return nonblocking_forms.irecv(rank, 1)


@pytest.mark.parametrize("call", [send, isend, sendrecv])
def test_a_send_that_is_cut_short_has_sent_nothing_or_this_process_leaves(call: Call) -> None:
    """The script would send it again, and its receiver would take the copy for the next one."""
    seen: set[tuple[int, bool]] = set()
    for number in places():
        rank = Rank()
        rank.arrive(1.0)
        if not interrupted(lambda r=rank: call(r), number, *PATH, where=BY_SIGNAL):
            break
        seen.add((rank.sent, bool(rank.left_by)))
    assert seen >= {(0, False), (0, True), (1, True)}
    assert (1, False) not in seen


class Cut:
    """A cut of a rank for which messages are held up until one of them is."""

    def __init__(self, rank: Rank) -> None:
        self._hub, self._hold = rank.hub, rank.core.messages.hold
        self._held_up = threading.Lock()
        self._held_up.acquire()
        next_one = self._hub.messages_move.next_one

        def held_up() -> threading.Lock:
            self.release()
            lock: threading.Lock = next_one()
            return lock

        self._hub.messages_move = SimpleNamespace(
            next_one=held_up, notify_all=self._hub.messages_move.notify_all
        )
        self._hold.begin_cut()

    def release(self) -> None:
        """Let `end` go on."""
        if self._held_up.locked():
            self._held_up.release()

    def end(self) -> None:
        """Return when a message was held up, and may go on now."""
        assert self._held_up.acquire(timeout=WITHIN_S)
        with self._hub.lock:
            self._hold.end_cut()
            self._hub.messages_move.notify_all()


def test_a_send_that_is_held_up_and_cut_short_keeps_no_lock() -> None:
    seen: set[tuple[int, bool]] = set()
    with ThreadPoolExecutor(1) as other:
        for number in places():
            rank = Rank()
            cut = Cut(rank)
            ending = other.submit(cut.end)
            try:
                has_come = interrupted(lambda r=rank: send(r), number, *PATH, where=BY_SIGNAL)
            finally:
                cut.release()
                ending.result(WITHIN_S)
            assert not rank.hub.lock.locked()
            if not has_come:
                break
            seen.add((rank.sent, bool(rank.left_by)))
    assert seen >= {(0, True), (1, True)}
    assert (1, False) not in seen


def time_out() -> NoReturn:
    """As a script's handler of SIGALRM does."""
    raise TimeoutError


def raised_at(number: int, call: Callable[[], object], act: Callable[[], NoReturn] | None) -> bool:
    """As `interrupted`, whatever is raised."""
    if act is None:
        return interrupted(call, number, *PATH, where=BY_SIGNAL)
    try:
        return interrupted(call, number, *PATH, where=BY_SIGNAL, act=act)
    except TimeoutError:
        return True


@pytest.mark.parametrize("call", [recv, begin])
def test_a_receive_that_is_cut_short_has_taken_nothing_or_this_process_leaves(call: Call) -> None:
    """A script that goes on would else get the next message for this one."""
    gone_on = left = 0
    for number in places():
        rank = Rank()
        rank.arrive(1.0)
        if not interrupted(lambda r=rank: call(r), number, *PATH, where=BY_SIGNAL):
            break
        rank.arrive(2.0)
        if rank.left_by:
            left += 1
        else:
            gone_on += 1
            assert (recv(rank), recv(rank)) == ([1.0], [2.0])
    assert min(gone_on, left) > 0


def test_callbacks_of_a_receive_whose_end_is_cut_short_are_run_when_it_ends_again() -> None:
    ends: list[Any] = []
    put: list[Any] = []

    def cut_short(callbacks: Any) -> None:
        if not put:
            put.append(None)
            raise KeyboardInterrupt
        put.extend(callbacks)

    calls: Any = SimpleNamespace(posted=lambda _, done: done, post=ends.append)
    line: Any = SimpleNamespace(prepare=lambda: None, put=cut_short)
    asked: Any = SimpleNamespace(form=SimpleNamespace(what="irecv"))
    handle = MessageHandles(calls, line).receive(asked)
    handle.add_done_callback(print)
    with pytest.raises(KeyboardInterrupt):
        ends[0](None, ValueError())
    for _ in range(2):
        ends[0](None, ValueError())
    assert len(put) == 2


class Reader:
    """A link of rank 1 that has one message, for a thread that reads it for itself."""

    def __init__(self, rank: Rank, *content: float) -> None:
        self._receives, self._next = rank.receives, rank.next_message(*content)

    def read_for(self, direct: DirectReceive) -> None:
        assert self._receives.hand_over(self._next, direct)

    def read_until(self, awaiting: object) -> None:
        raise AssertionError("its message is what comes next")


@pytest.mark.parametrize("act", [None, time_out])
def test_a_receive_that_reads_for_itself_has_taken_nothing_or_this_process_leaves(
    act: Callable[[], NoReturn] | None,
) -> None:
    gone_on = left = 0
    for number in places():
        rank = Rank()
        rank.arrive(0.0)  # the first of a stream is held
        assert recv(rank) == [0.0]
        rank.core.handle(MessagesWanted(1), now=0.0)
        rank.intakes[1] = Reader(rank, 1.0)
        if not raised_at(number, lambda r=rank: message_forms.recv(r, 1), act):
            break
        if rank.left_by:
            left += 1
        else:
            gone_on += 1
            assert list(message_forms.recv(rank, 1)) == [1.0]  # type: ignore[arg-type]  # a Rank has its messages
    assert min(gone_on, left) > 0
