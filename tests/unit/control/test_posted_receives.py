"""Receives that wait: served in order, one message each, and told of the end."""

import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ftcomm.config.deadline import Limit
from ftcomm.control.messages import awaited_message, posted_receives
from ftcomm.control.messages.awaited_message import AwaitedMessage
from ftcomm.control.messages.direct_receive import DirectReceive
from ftcomm.control.messages.posted_receives import PostedReceive, PostedReceives
from ftcomm.errors import ClosedError, JobLostError
from ftcomm.memory.message_value import MessageValue
from ftcomm.memory.pool import LoggedResult
from ftcomm.protocol.link_messages import Content
from ftcomm.protocol.message_head import HeadFields, MessageHead
from ftcomm.protocol.messages import FatalDecision, Revoke
from ftcomm.recovery.events import MessagesWanted
from ftcomm.recovery.machine import WorkerMachine
from ftcomm.recovery.messages import inbox, message_exchange
from ftcomm.recovery.messages.message_exchange import MessageArrived
from tests.helpers.interrupts import BY_SIGNAL, interrupted, places
from tests.unit.recovery.test_messages import checkpoint, loaded
from tests.unit.recovery.worker_scenario import at, hear, plan

TAG = b"t"


class Receives:
    """Receives of rank 0, and what they have been told."""

    def __init__(self) -> None:
        self.core: WorkerMachine = loaded()
        self.core.contact.confirm_after = float("inf")
        self.posted = PostedReceives(self.core, threading.Lock())
        self.asked: list[int] = []
        self.numbers = 0

    def posted_by(self, told: list[Any], **changes: Any) -> PostedReceive:
        def done(value: MessageValue | None, error: BaseException | None) -> None:
            told.append(error if value is None else value.stored.flat.tolist())

        fields: dict[str, Any] = {"source": 1, "tag": TAG, "limit": None, "check": lambda _: None}
        return PostedReceive(what="recv()", site="t.py:3", done=done, **{**fields, **changes})

    def post(self, told: list[Any], **changes: Any) -> PostedReceive:
        receive = self.posted_by(told, **changes)
        if self.posted.post(receive):
            self.want(receive.source)
        return receive

    def want(self, source: int) -> None:
        self.asked.append(source)
        self.core.handle(MessagesWanted(source), now=0.0)

    def arrive(self, *content: float, tag: bytes = TAG) -> None:
        self.numbers += 1
        assert self.core.messages.arrive(self.next_message(*content, tag=tag))

    def next_message(self, *content: float, tag: bytes = TAG, version: int = 0) -> MessageArrived:
        flat = np.array(content)
        value = MessageValue(LoggedResult(flat, flat.shape), Content.ARRAY)
        return MessageArrived(
            self.core.view.epoch, 1, version, tag, self.numbers, bytes(16), value, flat.nbytes
        )

    def look(self) -> None:
        self.posted.look(self.want)


@pytest.fixture
def receives() -> Receives:
    return Receives()


def test_receives_of_one_stream_get_messages_in_their_own_order(receives: Receives) -> None:
    first: list[Any] = []
    second: list[Any] = []
    receives.post(first)
    receives.post(second)
    assert receives.asked == [1]
    receives.arrive(1.0)
    receives.look()
    assert (first, second) == ([[1.0]], [])
    receives.arrive(2.0)
    receives.look()
    assert (first, second) == ([[1.0]], [[2.0]])
    assert receives.posted.first_pending() is None


def test_a_receive_that_waits_over_a_checkpoint_gets_what_has_come_ahead(
    receives: Receives,
) -> None:
    """Of another thread: the message ends no receive as it comes, so the checkpoint's end looks."""
    told: list[Any] = []
    receives.post(told)
    receives.numbers = 1
    assert not receives.core.messages.arrive(receives.next_message(1.0, version=1))
    receives.look()
    assert told == []
    checkpoint(receives.core, 1)
    receives.look()
    assert (told, receives.asked) == ([[1.0]], [1])


def test_a_receive_is_pending_where_no_thread_waits_for_it(receives: Receives) -> None:
    receives.post([], since=1.0)
    receives.post([], since=2.0, tag=b"other")
    assert receives.posted.first_pending() is None
    pending = receives.post([])
    assert receives.posted.first_pending() is pending


def test_a_message_that_is_here_is_taken_by_who_posts(receives: Receives) -> None:
    told: list[Any] = []
    receives.arrive(1.0)
    receives.post(told)
    assert (told, receives.asked) == ([[1.0]], [])


def test_a_message_that_comes_is_taken_by_the_first_of_its_own_stream(receives: Receives) -> None:
    told: dict[str, list[Any]] = {"t": [], "next t": [], "u": []}
    for name, heard in told.items():
        receives.post(heard, tag=name[-1].encode())
    receives.arrive(1.0)
    receives.posted.arrived(1, b"x")
    assert told == {"t": [], "next t": [], "u": []}
    receives.posted.arrived(1, TAG)
    assert told == {"t": [[1.0]], "next t": [], "u": []}


def test_who_reads_a_message_gets_it_unless_somebody_waits_for_it(receives: Receives) -> None:
    told: list[Any] = []
    assert not receives.posted.may_bypass(1, TAG), "the source must be asked"
    receives.post(told)
    assert not receives.posted.may_bypass(1, TAG), "it would overtake the other"
    receives.arrive(1.0)
    assert not receives.posted.may_bypass(1, TAG), "it is here"
    receives.look()
    assert receives.posted.may_bypass(1, TAG)
    assert not receives.posted.may_bypass(1, b"new"), "the first one of a stream has to be held"

    direct = DirectReceive(1, TAG, (1,), np.dtype(np.float64))
    receives.numbers += 1
    assert receives.posted.hand_over(receives.next_message(2.0), direct)
    assert direct.value is not None
    assert (told, direct.value.stored.flat.tolist()) == ([[1.0]], [2.0])
    receives.post(told)
    receives.numbers += 1
    behind = DirectReceive(1, TAG, (1,), np.dtype(np.float64))
    assert not receives.posted.hand_over(receives.next_message(3.0), behind)


@pytest.mark.parametrize(
    ("other", "is_over"),
    [
        (DirectReceive(2, TAG, None, None), False),
        (DirectReceive(1, b"other", None, None), False),
        (DirectReceive(1, TAG, (2,), np.dtype(np.float64)), True),
        (DirectReceive(1, TAG, (1,), np.dtype(np.float32)), True),
    ],
)
def test_who_reads_gets_no_other_message_and_leaves_if_its_own_is_held(
    receives: Receives, other: DirectReceive, *, is_over: bool
) -> None:
    receives.arrive(1.0)
    receives.post([])
    receives.numbers += 1
    assert not receives.posted.hand_over(receives.next_message(2.0), other)
    assert (other.has_taken, other.is_over) == (False, is_over)


def test_who_reads_gets_one_message_of_those_that_come_at_once(receives: Receives) -> None:
    receives.arrive(1.0)
    receives.post([])
    direct = DirectReceive(1, TAG, None, None)
    for content, is_taken in ((2.0, True), (3.0, False)):
        receives.numbers += 1
        message = receives.next_message(content)
        assert receives.posted.hand_over(message, direct) == is_taken
    assert receives.core.messages.arrive(message)
    assert direct.value is not None
    assert direct.value.stored.flat.tolist() == [2.0]
    told: list[Any] = []
    receives.post(told)
    assert told == [[3.0]]


def test_a_message_that_does_not_fit_stays_for_the_next(receives: Receives) -> None:
    mistaken: list[Any] = []
    told: list[Any] = []

    def refuse(_: MessageValue) -> None:
        raise ValueError("it does not fit")

    receives.arrive(1.0)
    receives.post(mistaken, check=refuse)
    receives.post(told)
    assert [str(error) for error in mistaken] == ["it does not fit"]
    assert told == [[1.0]]


def test_a_probe_leaves_the_message(receives: Receives) -> None:
    told: list[Any] = []
    receives.arrive(1.0)
    receives.post(told, is_probe=True)
    receives.post(told)
    assert told == [[1.0], [1.0]]


def test_nothing_is_taken_before_the_tracker_has_been_heard(receives: Receives) -> None:
    told: list[Any] = []
    receives.core.contact.confirm_after = float("-inf")
    receives.arrive(1.0)
    receives.post(told)
    assert told == []
    receives.core.contact.confirm_after = float("inf")
    receives.look()
    assert told == [[1.0]]


def test_a_receive_that_waits_asks_its_source_once_after_each_plan(receives: Receives) -> None:
    receives.post([])
    hear(receives.core, Revoke(2, "a link was lost"))
    receives.look()
    assert receives.asked == [1]
    hear(receives.core, plan(2, at(0, 0)))
    for _ in range(2):
        receives.look()
    assert receives.asked == [1, 1]


def test_the_end_of_the_job_is_told_to_all(receives: Receives) -> None:
    told: list[Any] = []
    receives.post(told)
    receives.post(told, tag=b"other")
    lost = FatalDecision("JobLostError", "it is lost", 0, at(0, 0), 1)
    hear(receives.core, lost)
    receives.look()
    assert [type(error) for error in told] == [JobLostError, JobLostError]


def test_a_communicator_that_has_ended_receives_nothing(receives: Receives) -> None:
    told: list[Any] = []
    receives.post(told)
    receives.posted.end(ClosedError("it ended"))
    receives.post(told)
    assert [type(error) for error in told] == [ClosedError, ClosedError]


def test_a_communicator_that_is_left_by_the_error_of_the_job_tells_that_one(
    receives: Receives,
) -> None:
    told: list[Any] = []
    receives.post(told)
    hear(receives.core, FatalDecision("JobLostError", "it is lost", 0, at(0, 0), 1))
    receives.posted.end(ClosedError("it ended"))
    assert [type(error) for error in told] == [JobLostError]


def awaiting(posted: PostedReceives) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []
    thread = threading.Thread(target=lambda: errors.append(posted.await_end()))
    thread.start()
    return thread, errors


def leave(receives: Receives) -> None:
    receives.posted.end(ClosedError("it ended"))


def hear_the_end(receives: Receives) -> None:
    hear(receives.core, FatalDecision("JobLostError", "lost", 0, at(0, 0), 1))
    receives.look()


@pytest.mark.parametrize("end", [leave, hear_the_end])
@pytest.mark.parametrize("is_early", [True, False])
def test_who_has_ended_the_job_waits_until_it_is_told(
    receives: Receives, end: Callable[[Receives], object], is_early: bool
) -> None:
    if is_early:
        end(receives)
    thread, errors = awaiting(receives.posted)
    if not is_early:
        while not receives.posted._ends.is_awaited:
            os.sched_yield()
        end(receives)
    thread.join(10.0)
    assert len(errors) == 1


def test_a_receive_is_overdue_when_its_time_is_over(receives: Receives) -> None:
    receives.post([], limit=Limit(60.0, time.monotonic() + 60.0))
    assert receives.posted.overdue() is None
    receives.post([], tag=b"other", limit=Limit(0.0, time.monotonic()))
    words = receives.posted.overdue()
    assert words is not None
    assert "rank 0 gave recv() at t.py:3 a deadline of 0 s" in words
    assert "it was waiting for a message of rank 1" in words


def test_a_source_is_read_ahead_so_far_and_on_where_somebody_waits(receives: Receives) -> None:
    told = threading.Event()
    receives.posted.on_taken = told.set
    receives.arrive(1.0, 2.0, tag=b"other")
    assert receives.posted.may_read(1, 17)
    assert not receives.posted.may_read(1, 16)
    receives.post([])
    assert told.is_set()
    assert receives.posted.may_read(1, 16)


def test_a_place_that_was_made_read_only_meanwhile_is_not_read_into(receives: Receives) -> None:
    """The thread that reads the link would fail, which may be the control thread."""
    out = np.empty(3)
    receives.post([], out=out)
    fields = HeadFields(0, TAG, Content.ARRAY, 0, out.shape, out.nbytes)
    head = MessageHead(fields, 1, bytes(16))
    place_for = functools.partial(receives.posted.place_for, 1, head, out.dtype)
    assert place_for() is not None
    out.flags.writeable = False
    assert place_for() is None


def test_what_was_read_ahead_is_forgotten_with_its_version(receives: Receives) -> None:
    receives.arrive(1.0, 2.0)
    checkpoint(receives.core, 1)
    assert receives.posted.may_read(1, 1)


def test_a_receive_that_ctrl_c_finds_being_served_is_told_its_end() -> None:
    """The main thread reads for others, who would wait for ever."""
    modules = posted_receives, awaited_message, inbox, message_exchange
    for number in places():
        receives, awaited = Receives(), AwaitedMessage()
        receives.posted.post(replace(receives.posted_by([]), done=awaited.take))
        receives.arrive(1.0)
        serve = functools.partial(receives.posted.arrived, 1, TAG)
        if not interrupted(serve, number, *modules, where=BY_SIGNAL):
            break
        receives.posted.end(ClosedError("the communicator was left"))
        assert awaited.is_over
        assert receives.posted.first_pending() is None
    assert number > 20


def test_all_are_told_though_one_cannot_be(receives: Receives) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("there is no thread for it")

    told: list[Any] = []
    for _ in range(2):
        receives.posted.post(replace(receives.posted_by([]), done=refuse))
    receives.post(told)
    with pytest.raises(RuntimeError, match="no thread for it"):
        receives.posted.end(ClosedError("it ended"))
    assert [type(error) for error in told] == [ClosedError]
