"""Messages from rank to rank: what is logged, asked for, compared, and balanced at a cut (R21)."""

from typing import Any

import pytest

from ftcomm.errors import ProtocolError
from ftcomm.protocol.field_types import MAX_TAGS
from ftcomm.protocol.messages import FatalReport, Report, Revoke
from ftcomm.protocol.position import PRELUDE
from ftcomm.recovery.events import (
    AskForMessages,
    Beat,
    MessagesClaimed,
    MessagesLost,
    MessagesWanted,
    SendControl,
)
from ftcomm.recovery.machine import Completion, MachineLimits, WorkerMachine
from ftcomm.recovery.messages.message_exchange import Cursor, MessageArrived
from ftcomm.recovery.messages.names import MODULUS, START, Mark, Stream, behind, total_of
from ftcomm.recovery.messages.sent_log import SentLog
from tests.unit.recovery.worker_scenario import a_member, at, execute, hear, members, plan

SITE, TAG = "t.py:7", b"grad"
START_TOTAL = total_of(())
HERE = Stream(1, 0, TAG)  # from rank 1 to the member, which is rank 0


def digest(content: str) -> bytes:
    return content.encode().ljust(16)


def loaded(**changes: Any) -> WorkerMachine:
    core = a_member(**changes)
    core.progress.begin_load(b"", SITE)
    assert core.progress.complete_load(1, "zero", b"", now=0.0) is Completion.DONE
    return core


def arrive(core: WorkerMachine, number: int, content: str, **changes: Any) -> bool:
    fields = {"epoch": core.view.epoch, "source": 1, "version": 0, "tag": TAG}
    message = MessageArrived(
        **{**fields, "number": number, "digest": digest(content), "value": content, **changes}
    )
    return core.messages.arrive(message)


def wanted(core: WorkerMachine) -> list[Any]:
    return core.handle(MessagesWanted(1), now=0.0)


def received(core: WorkerMachine) -> Any:
    outcome, content = core.messages.receive(1, TAG, 0.0)
    assert outcome is (None if content is None else Completion.DONE)
    return content


def send(core: WorkerMachine, content: str, destination: int = 1, tag: bytes = TAG) -> Any:
    return core.messages.send(destination, tag, digest(content), content, SITE)


def checkpoint(core: WorkerMachine, version: int) -> None:
    core.progress.offer_checkpoint("state", b"d")
    core.progress.begin(b"", SITE)
    assert core.progress.complete_checkpoint(1, now=0.0)[0] is Completion.DONE
    assert core.progress.position.version == version


def mark_of(*contents: str) -> Mark:
    mark = START
    for content in contents:
        mark = behind(mark, digest(content))
    return mark


def said(effects: list[Any]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, SendControl)]


# --- receiving ----------------------------------------------------------------------------------


def test_a_source_is_asked_once_in_an_epoch_and_again_in_the_next() -> None:
    core = loaded()
    assert wanted(core) == [AskForMessages(1, 1, 0, ())]
    assert wanted(core) == []
    assert arrive(core, 1, "a")
    hear(core, Revoke(2, "a link was lost"))
    again = AskForMessages(2, 1, 0, ((TAG, mark_of("a")),))
    assert again in hear(core, plan(2, at(0, 0)))  # a restarted source hears what it must send
    assert wanted(core) == []


def test_messages_come_in_order_and_each_once() -> None:
    core = loaded()
    wanted(core)
    assert received(core) is None
    assert not arrive(core, 2, "b")
    assert arrive(core, 1, "a")
    assert not arrive(core, 1, "a")
    arrive(core, 2, "b")
    assert [received(core) for _ in range(3)] == ["a", "b", None]


def test_what_comes_of_the_next_version_is_held_until_this_rank_is_there() -> None:
    core = loaded()
    wanted(core)
    assert not arrive(core, 1, "b", version=1, nbytes=5)
    assert not arrive(core, 2, "c", version=2)
    assert (received(core), core.messages.held(1)) == (None, 5)
    checkpoint(core, 1)
    assert core.messages.next_number(1, TAG) == 0
    assert [received(core), received(core), core.messages.held(1)] == ["b", None, 0]
    assert not arrive(core, 2, "old", version=0)


@pytest.mark.parametrize("commits", [False, True])
def test_what_came_ahead_in_an_older_epoch_comes_again(commits: bool) -> None:
    """Its source may have died since: what it sends now is compared with what was taken alone."""
    core = loaded()
    wanted(core)
    core.progress.offer_checkpoint("state", b"d")
    arrive(core, 1, "b", version=1)
    hear(core, Revoke(2, "lost worker 1"))
    hear(core, plan(2, at(int(commits), 0), commit=1 if commits else -1))
    assert (core.progress.position.version, core.messages.held(1)) == (int(commits), 0)
    assert arrive(core, 1, "b again", version=1) == commits
    if not commits:
        core.progress.begin(b"", SITE)
        assert core.progress.complete_checkpoint(2, now=0.0)[0] is Completion.DONE
    assert received(core) == "b again"


def test_a_source_of_which_nothing_has_come_in_this_version_is_not_asked_by_a_plan() -> None:
    core = loaded()
    wanted(core)
    checkpoint(core, 1)
    hear(core, Revoke(2, "a link was lost"))
    orders = hear(core, plan(2, at(1, 0)))
    assert [order for order in orders if isinstance(order, AskForMessages)] == []
    assert wanted(core) == [AskForMessages(2, 1, 1, ())]


class Taker:
    has_taken = False


def pass_on(core: WorkerMachine, number: int, content: str, **changes: Any) -> bool:
    taker, now = Taker(), changes.pop("now", 0.0)
    fields = {"epoch": core.view.epoch, "source": 1, "version": 0, "tag": TAG}
    fields |= {"number": number, "digest": digest(content), "value": content, **changes}
    is_taken = core.messages.pass_on(MessageArrived(**fields), taker, now)
    assert taker.has_taken == is_taken
    return is_taken


def test_a_message_that_is_passed_on_counts_like_one_that_was_held() -> None:
    held, passed = loaded(), loaded()
    for core in (held, passed):
        wanted(core)
        assert arrive(core, 1, "a")
        assert received(core) == "a"
    assert arrive(held, 2, "b")
    assert received(held) == "b"
    assert pass_on(passed, 2, "b")
    assert passed.messages.balance == held.messages.balance != 0
    assert passed.messages.totals(1) == held.messages.totals(1)
    for core in (held, passed):
        assert core.messages.next_number(1, TAG) == 3


def test_a_taker_takes_one_message() -> None:
    core, taker = loaded(), Taker()
    wanted(core)
    arrive(core, 1, "a")
    received(core)
    messages = [
        MessageArrived(core.view.epoch, 1, 0, TAG, number, digest(content), content)
        for number, content in ((2, "b"), (3, "c"))
    ]
    assert core.messages.pass_on(messages[0], taker, 0.0)
    assert not core.messages.pass_on(messages[1], taker, 0.0)
    assert core.messages.arrive(messages[1])
    assert received(core) == "c"


def test_a_message_is_held_where_it_may_not_be_taken_or_is_not_the_next() -> None:
    core = loaded()
    wanted(core)
    assert not pass_on(core, 1, "a")  # the first of a stream: it may be one too many
    arrive(core, 1, "a")
    assert not pass_on(core, 2, "b")  # behind one that waits
    assert received(core) == "a"
    assert not pass_on(core, 3, "c")
    assert not pass_on(core, 2, "b", epoch=2)
    assert not pass_on(core, 2, "b", version=1)
    assert not pass_on(core, 2, "b", now=core.contact.confirm_after + 1.0)
    core.messages.hold.begin_cut()
    assert not pass_on(core, 2, "b")
    core.messages.hold.end_cut()
    assert pass_on(core, 2, "b")


def test_what_is_of_another_epoch_or_version_is_dropped() -> None:
    core = loaded()
    assert not arrive(core, 1, "a", epoch=2)
    assert not arrive(core, 1, "a", version=1)
    assert received(core) is None


def test_tags_keep_their_own_order() -> None:
    core = loaded()
    arrive(core, 1, "a")
    arrive(core, 1, "x", tag=b"other")
    assert core.messages.receive(1, b"other", 0.0) == (Completion.DONE, "x")
    assert received(core) == "a"


def test_a_process_that_may_be_fenced_takes_nothing() -> None:
    core = loaded()
    arrive(core, 1, "a")
    assert core.messages.receive(1, TAG, 1e9) == (Completion.CONFIRM_FIRST, None)
    hear(core, Revoke(2, "a link was lost"))
    assert core.messages.receive(1, TAG, 0.0) == (None, None)


def test_a_lost_link_is_suspected_if_it_was_asked_for() -> None:
    core = loaded()
    assert core.handle(MessagesLost(1, 1, "it broke"), now=0.0) == []
    wanted(core)
    [suspect] = said(core.handle(MessagesLost(1, 1, "it broke"), now=0.0))
    assert suspect.ranks == (1,)


def test_a_source_that_has_closed_and_stays_away_ends_the_job() -> None:
    core = loaded()
    hear(core, Revoke(2, "lost worker 1"))
    hear(core, plan(2, at(0, 0), members=members(1)))
    assert wanted(core) == []
    within = MachineLimits().reattach_within

    def found_at(now: float) -> list[Any]:
        return [
            x for x in said(core.handle(Beat((), 0, -1), now=now)) if isinstance(x, FatalReport)
        ]

    assert not found_at(within - 1.0)
    [found] = found_at(within)
    assert found.error == "JobLostError"
    assert "rank 1 (worker w1) has closed and is gone, and with it its messages" in found.cause


def test_a_closed_source_is_awaited_from_when_it_is_away_and_not_its_message() -> None:
    core = loaded()
    wanted(core)  # of a source that was restarted, and has not come as far
    within = MachineLimits().reattach_within

    def ends_at(now: float) -> bool:
        effects = core.handle(Beat((), 0, -1), now=now)
        return any(isinstance(each, FatalReport) for each in said(effects))

    for epoch, absent in ((2, (1,)), (3, (1,)), (4, ()), (5, (1,))):  # each half as long as it has
        begun = epoch * within / 2
        hear(core, Revoke(epoch, "a link was lost"), now=begun)
        hear(core, plan(epoch, at(0, 0), members=members(*absent)), now=begun)
        assert not ends_at(begun + 0.4 * within)
    assert not ends_at(begun + 0.9 * within)
    assert ends_at(begun + within)


# --- sending ------------------------------------------------------------------------------------


def following(core: WorkerMachine, at: int = 0, **marks: int) -> list[Any]:
    known = {tag.encode(): number for tag, number in marks.items()}
    return [message.value for message in core.messages.following(1, Cursor(0, known, at), 9)[1]]


def test_a_receiver_is_sent_what_it_lacks_in_the_order_of_sending() -> None:
    core = loaded()
    for content, tag in (("a", b"grad"), ("x", b"loss"), ("b", b"grad")):
        assert send(core, content, tag=tag) is None
    send(core, "for another", destination=0)
    assert following(core) == ["a", "x", "b"]
    assert following(core, grad=1) == ["x", "b"]
    assert following(core, at=1, grad=1) == ["x", "b"]
    assert following(core, at=3) == []


def test_a_receiver_is_given_a_few_at_a_time_and_what_it_has_is_looked_at_once() -> None:
    core = loaded()
    for content in "abcde":
        send(core, content)
    behind = core.messages.following
    cursor, found = behind(1, Cursor(0, {TAG: 1}), 2)
    assert (cursor, [message.value for message in found]) == (Cursor(0, {TAG: 1}, 3), ["b", "c"])
    assert behind(1, Cursor(0, {TAG: 5}), 2) == (Cursor(0, {TAG: 5}, 5), [])


def test_a_receiver_in_a_later_version_is_sent_nothing() -> None:
    core = loaded()
    send(core, "a")
    assert core.messages.following(1, Cursor(1, {}), 9) == (Cursor(1, {}), [])


def test_a_receiver_that_has_asked_once_is_sent_the_next_version_too() -> None:
    core = loaded()
    send(core, "a")
    cursor, _ = core.messages.following(1, Cursor(0, {TAG: 1}), 9)
    checkpoint(core, 1)
    assert core.messages.newest_behind(1, cursor) is None
    send(core, "b")
    newest = core.messages.newest_behind(1, cursor)
    cursor, [following] = core.messages.following(1, cursor, 9)
    assert (following.value, cursor) == ("b", Cursor(1, {}, at=1))
    assert newest == (cursor, following)


def test_the_newest_message_is_given_alone_if_all_before_it_were() -> None:
    core = loaded()
    newest = core.messages.newest_behind
    assert newest(1, Cursor(0, {})) is None
    send(core, "x1")
    assert newest(2, Cursor(0, {})) is None
    assert newest(1, Cursor(1, {})) is None  # the receiver is in another version
    assert newest(1, Cursor(0, {TAG: 1})) is None  # it has that one
    first = newest(1, Cursor(0, {}))
    assert first is not None
    assert first[1].value == "x1"
    send(core, "x2")
    assert newest(1, Cursor(0, {})) is None  # one before it was not given
    second = newest(1, Cursor(0, {TAG: 1}, at=1))
    assert second is not None
    assert second[1].value == "x2"


def test_what_a_restarted_rank_sends_is_compared_when_it_has_come_as_far() -> None:
    core = loaded()
    claim = MessagesClaimed(1, 1, 0, ((TAG, mark_of("a", "b")),))
    assert core.handle(claim, now=0.0) == []
    assert send(core, "a") is None
    assert send(core, "b") is None

    core = loaded()
    core.handle(claim, now=0.0)
    assert send(core, "other") is None  # the digest runs over both
    found = send(core, "b")
    assert found is not None
    assert found.error == "JobLostError"
    place = "(one of the first 2 messages of this tag since checkpoint 0)"
    wanted = f"rank 0 sent other bytes to rank 1 at t.py:7 than before its restart {place}"
    assert wanted in found.cause


def test_what_was_sent_before_its_receiver_asks_is_compared_at_once() -> None:
    core = loaded()
    send(core, "a")
    send(core, "b")
    assert core.handle(MessagesClaimed(1, 1, 0, ((TAG, mark_of("a")),)), now=0.0) == []
    wrong = MessagesClaimed(1, 1, 0, ((TAG, mark_of("other")),))
    [report] = said(core.handle(wrong, now=0.0))
    assert report.error == "JobLostError"
    assert "(one of the first 2 messages of this tag" in report.cause
    assert core.handle(MessagesClaimed(0, 1, 0, ((TAG, mark_of("x")),)), now=0.0) == []


# --- the cut ------------------------------------------------------------------------------------


def test_claims_of_each_tag_are_compared_at_their_own_place() -> None:
    def claimed(*marks: tuple[bytes, Mark]) -> list[str]:
        core = loaded()
        for content, tag in (("a", TAG), ("x", b"loss"), ("b", TAG), ("y", b"loss")):
            send(core, content, tag=tag)
        reports = said(core.handle(MessagesClaimed(1, 1, 0, marks), now=0.0))
        return [report.error for report in reports]

    assert claimed((TAG, mark_of("a")), (b"loss", mark_of("x", "y"))) == []
    assert claimed((TAG, mark_of())) == []
    assert claimed((b"loss", mark_of("a"))) == ["JobLostError"]
    assert claimed((TAG, mark_of("a", "x"))) == ["JobLostError"]


def test_the_balance_is_zero_over_all_ranks_where_all_was_taken() -> None:
    receiver, sender = loaded(), SentLog()
    for number, content in enumerate("abc", 1):
        sender.add(HERE, digest(content), content, SITE)
        arrive(receiver, number, content)
        assert (sender.weight + receiver.messages.balance) % MODULUS != 0
        assert received(receiver) == content
        assert (sender.weight + receiver.messages.balance) % MODULUS == 0


def test_what_was_taken_must_be_what_was_sent() -> None:
    receiver, sender = loaded(), SentLog()
    sender.add(HERE, digest("a"), "a", SITE)
    arrive(receiver, 1, "other")
    received(receiver)
    assert (sender.weight + receiver.messages.balance) % MODULUS != 0


def test_a_report_has_the_balance_and_messages_move_no_position() -> None:
    core = loaded()
    before = core.progress.position
    send(core, "a")
    [report] = [x for x in said(hear(core, Revoke(2, "lost worker 1"))) if isinstance(x, Report)]
    assert report.messages == core.messages.balance != 0
    assert (report.position, core.progress.position) == (before, before)


def test_a_message_stays_for_its_version_whatever_is_called_meanwhile() -> None:
    core = loaded()
    send(core, "a")
    execute(core, "a result")
    assert following(core) == ["a"]
    send(core, "b")
    assert following(core) == ["a", "b"]


def test_a_version_that_commits_drops_its_messages() -> None:
    core = loaded()
    send(core, "a")
    arrive(core, 1, "b")
    wanted(core)
    core.progress.offer_checkpoint("one", b"d")
    core.progress.begin(b"", SITE)
    assert core.progress.complete_checkpoint(1, now=0.0)[0] is Completion.DONE
    assert core.messages.balance == 0
    assert received(core) is None
    assert core.messages.following(1, Cursor(0, {}), 9) == (Cursor(1, {}), [])
    assert wanted(core) == []  # the source was asked in this epoch


def test_nothing_moves_between_a_report_and_the_plan_that_may_commit() -> None:
    core = loaded()
    arrive(core, 1, "a")
    core.progress.offer_checkpoint("one", b"d")
    assert not core.messages.hold.is_on
    hear(core, Revoke(2, "lost worker 1"))
    assert core.messages.hold.is_on
    assert core.messages.receive(1, TAG, 0.0)[0] is not Completion.DONE
    hear(core, plan(2, at(0, 0)))
    assert not core.messages.hold.is_on


def test_a_plan_commits_nothing_while_threads_may_still_send_and_receive() -> None:
    """A message on its way between them would be lost with the version, and shift those behind."""
    core = loaded()
    core.messages.hold.note_threads(others=True)
    core.progress.offer_checkpoint("one", b"d")
    [report] = said(hear(core, Revoke(2, "lost worker 1")))
    assert report.tentative == PRELUDE
    assert not core.messages.hold.is_on
    hear(core, plan(2, at(0, 0)))

    core.messages.hold.begin_cut()  # from here on others may commit by this rank's balance
    [report] = said(hear(core, Revoke(3, "lost worker 1")))
    assert report.tentative == 1
    hear(core, plan(3, at(0, 0)))

    [report] = said(hear(core, Revoke(4, "lost worker 1")))
    assert report.tentative == PRELUDE
    hear(core, plan(4, at(0, 0)))
    core.messages.hold.note_threads(others=False)
    [report] = said(hear(core, Revoke(5, "lost worker 1")))
    assert report.tentative == 1


def test_a_rank_without_a_tentative_version_holds_nothing_up() -> None:
    core = loaded()
    hear(core, Revoke(2, "lost worker 1"))
    assert not core.messages.hold.is_on


def test_messages_are_held_while_a_cut_is_taken() -> None:
    core = loaded()
    arrive(core, 1, "a")
    core.messages.hold.begin_cut()
    assert core.messages.receive(1, TAG, 0.0) == (Completion.CONFIRM_FIRST, None)
    core.messages.hold.end_cut()
    assert received(core) == "a"


def test_a_cut_that_others_have_completed_holds_messages_up_until_it_is_replayed() -> None:
    core = loaded()
    core.messages.hold.begin_cut()
    hear(core, Revoke(2, "lost worker 1"))
    hear(core, plan(2, frontier=at(0, 1)))
    assert core.messages.hold.is_on


# --- what the drivers need ----------------------------------------------------------------------


def test_a_claim_that_comes_before_the_load_is_compared_behind_it() -> None:
    """The source was restarted, and its receiver knows the version before it does."""
    core = a_member()
    core.handle(MessagesClaimed(1, 1, 0, ((TAG, mark_of("a")),)), now=0.0)
    core.progress.begin_load(b"", SITE)
    assert core.progress.complete_load(1, "zero", b"", now=0.0) is Completion.DONE
    found = send(core, "b")
    assert found is not None
    assert found.error == "JobLostError"


@pytest.mark.parametrize("has_loaded", [False, True])
def test_a_claim_of_a_receiver_that_has_died_is_compared(has_loaded: bool) -> None:
    """Others have results that it made of the message, and this rank knows what that was."""
    core = loaded() if has_loaded else a_member()
    core.handle(MessagesClaimed(1, 1, 0, ((TAG, mark_of("a")),)), now=0.0)
    hear(core, Revoke(2, "lost worker 1"))
    hear(core, plan(2))
    if not has_loaded:
        core.progress.begin_load(b"", SITE)
        assert core.progress.complete_load(2, "zero", b"", now=0.0) is Completion.DONE
    found = send(core, "b")
    assert found is not None
    assert found.error == "JobLostError"


def test_a_claim_of_a_version_that_is_over_is_forgotten() -> None:
    core = loaded()
    core.handle(MessagesClaimed(1, 1, 2, ((TAG, mark_of("a")),)), now=0.0)
    for version in (1, 2, 3):
        checkpoint(core, version)
    assert send(core, "b") is None


def test_a_plan_has_all_asked_again_of_whom_something_has_come() -> None:
    core = loaded()
    wanted(core)
    arrive(core, 1, "a")
    assert received(core) == "a"
    hear(core, Revoke(2, "lost worker 1"))
    orders = [e for e in hear(core, plan(2, at(0, 0))) if isinstance(e, AskForMessages)]
    assert orders == [AskForMessages(2, 1, 0, ((TAG, mark_of("a")),))]
    assert not core.messages.must_ask(1)


def test_a_look_leaves_a_message_where_it_is() -> None:
    core = loaded()
    assert core.messages.waiting(1, TAG) is None
    arrive(core, 1, "a", nbytes=7)
    assert core.messages.waiting(1, TAG) == "a"
    assert core.messages.held(1) == 7
    assert received(core) == "a"
    assert core.messages.held(1) == 0


def test_the_values_of_a_committed_version_are_released_once() -> None:
    core = loaded()
    core.messages.send(1, TAG, digest("a"), "a", SITE, 9)
    assert (core.messages.nbytes, core.messages.take_released()) == (9, [])
    checkpoint(core, 1)
    assert core.messages.take_released() == ["a"]
    assert (core.messages.nbytes, core.messages.take_released()) == (0, [])


def test_one_rank_gets_no_more_tags_than_a_request_can_name() -> None:
    core = loaded()
    for tag in range(MAX_TAGS):
        assert core.messages.nbytes_with(1, b"%d" % tag, 9) == core.messages.nbytes + 9
        send(core, "a", tag=b"%d" % tag)
    assert core.messages.nbytes_with(1, b"another", 9) is None
    assert core.messages.nbytes_with(1, b"0", 9) is not None
    assert core.messages.nbytes_with(2, b"another", 9) is not None


def test_a_source_may_not_send_more_tags_than_a_request_can_name() -> None:
    core = loaded()
    for number in range(MAX_TAGS):
        arrive(core, 1, "a", tag=b"%d" % number)
    arrive(core, 2, "b", tag=b"0")
    arrive(core, 1, "a", source=2, tag=b"another")
    with pytest.raises(ProtocolError, match=f"rank 1 sends messages of more than {MAX_TAGS} tags"):
        arrive(core, 1, "a", tag=b"another")
    [order] = wanted(core)
    assert len(order.marks) == MAX_TAGS


def test_totals_are_equal_where_all_that_was_sent_was_taken() -> None:
    sender, core = SentLog(), loaded()
    for content in ("a", "b"):
        sender.add(HERE, digest(content), content, SITE)
    arrive(core, 1, "a")
    received(core)
    assert core.messages.totals(1)[1].number == 1
    assert core.messages.totals(1)[1] != sender.total(0)
    arrive(core, 2, "b")
    received(core)
    assert core.messages.totals(1)[1] == sender.total(0)
    assert core.messages.totals(2) == (START_TOTAL, START_TOTAL)


def test_the_line_of_a_message_is_known_by_its_place() -> None:
    core = loaded()
    for line in ("t.py:1", "t.py:2"):
        core.messages.send(1, TAG, digest("a"), "a", line)
    assert [core.messages.site_of(1, at) for at in (0, 1, 5)] == ["t.py:1", "t.py:2", "t.py:2"]
    assert core.messages.site_of(2, 0) == ""
