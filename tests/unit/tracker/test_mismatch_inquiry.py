"""Mismatch inquiry: the ranks that are asked, and the limit on waiting for answers."""

from ftcomm.protocol.messages import AskCalls, CallMade, Calls, Leaf, Leaves, Mismatch
from ftcomm.protocol.signature import Kind, Signature
from ftcomm_tracker.core.events import ConnectionLost as ConnLost
from ftcomm_tracker.core.events import Said, StopAsked
from ftcomm_tracker.core.mismatch_inquiry import (
    ANSWER_WITHIN_S,
    LEAVES_WITHIN_S,
    Evidence,
    Side,
    ranks_to_ask,
)
from ftcomm_tracker.core.roster import JobState
from tests.unit.tracker.roster_scenario import (
    SETTINGS,
    ScenarioRun,
    at,
    decisions,
    hello,
    report,
    running,
)

ONE, TWO = (Signature(kind).encode() for kind in (Kind.BARRIER, Kind.CLOSE))
SAVE = Signature(Kind.CHECKPOINT).encode()
SEEN = Mismatch(1, at(0, 5), ONE, "a.py:1", 1, at(0, 5), TWO, "b.py:2")
UNEQUAL = Mismatch(1, at(0, 5), SAVE, "a.py:1", 1, at(0, 5), SAVE, "a.py:1", states=True)


def called(*signatures: bytes, digest: bytes = b"") -> Calls:
    calls = tuple(CallMade(at(0, n), s, "t.py:1") for n, s in enumerate(signatures, 4))
    return Calls(at(0, 3 + len(calls)), calls, 0, digest)


def test_all_are_asked_and_the_last_answer_brings_the_decision() -> None:
    scenario = running(3)
    asked = scenario.said(1, SEEN)
    assert asked == [(conn, AskCalls(-1)) for conn in (1, 2, 3)]
    assert scenario.said(2, SEEN) == []  # one inquiry is enough
    assert scenario.said(1, called(ONE, ONE)) == []
    assert scenario.said(2, called(TWO, TWO)) == []
    told = decisions(scenario.tell(Said(3, called(ONE, ONE))))
    assert list(told) == [1, 2, 3]
    assert told[1].position == at(0, 4)
    assert told[1].cause == (
        "ranks disagree about collective 0.4: ranks 0, 2 called barrier() at t.py:1"
        " but rank 1 called close() at t.py:1"
    )
    assert scenario.journalled.fatal_decision == told[1]


def test_a_rank_that_does_not_answer_is_not_waited_for_long() -> None:
    scenario = running(3)
    scenario.said(1, SEEN)
    scenario.said(1, called(ONE, ONE))
    assert scenario.roster.next_deadline() == ANSWER_WITHIN_S
    assert decisions(scenario.tick(ANSWER_WITHIN_S * 0.9)) == {}
    told = decisions(scenario.tick(ANSWER_WITHIN_S))
    assert list(told) == [1, 2, 3]
    assert told[1].cause == (
        "ranks disagree about collective 0.5: rank 0 called barrier() at t.py:1"
        " but rank 1 called close() at b.py:2"
    )


def test_a_death_during_the_inquiry_begins_no_epoch() -> None:
    scenario = running(3)
    scenario.said(1, SEEN)
    told = decisions(scenario.tell(ConnLost(1, "killed")))
    assert {conn: fatal_decision.error for conn, fatal_decision in told.items()} == {
        2: "CollectiveMismatchError",
        3: "CollectiveMismatchError",
    }
    assert scenario.roster.state is JobState.OVER
    assert scenario.roster.durable.epoch == 1


def test_no_plan_is_made_during_the_inquiry() -> None:
    scenario = running(3)
    scenario.tell(ConnLost(3, "killed"))
    scenario.said(1, SEEN)  # of the epoch that has just ended
    scenario.joined(4, hello("w2", "b"))
    for conn in (1, 2, 4):
        assert scenario.said(conn, report(2, at(0, 5))) == []
    assert [v.error for v in decisions(scenario.tick(ANSWER_WITHIN_S)).values()] == [
        "CollectiveMismatchError"
    ] * 3


def test_after_a_stop_of_the_tracker_the_answers_are_awaited_on() -> None:
    scenario = running(2)
    scenario.said(1, SEEN)
    assert decisions(scenario.stall(60.0)) == {}
    hears_at = 60.0 + SETTINGS.detect_within
    assert scenario.roster.next_deadline() == hears_at + ANSWER_WITHIN_S


def test_what_differs_in_states_is_awaited_longer() -> None:
    scenario = running(2)
    asked = scenario.said(1, UNEQUAL)
    assert asked == [(1, AskCalls(1)), (2, AskCalls(1))]
    scenario.said(1, called(ONE, SAVE, digest=b"d"))
    scenario.said(2, called(ONE, SAVE, digest=b"e"))
    scenario.said(1, Leaves(1, (Leaf("state", "int 1", b"1"),)))
    assert scenario.roster.next_deadline() is not None
    assert decisions(scenario.tick(LEAVES_WITHIN_S * 0.9)) == {}
    told = decisions(scenario.tell(Said(2, Leaves(1, (Leaf("state", "int 2", b"2"),)))))
    assert told[2].cause == (
        "ranks disagree about collective 0.5: rank 0 and rank 1 passed different states to"
        " checkpoint() at a.py:1; state is int 1 on rank 0 and int 2 on rank 1; what each"
        " rank has of its own is passed apart: checkpoint(state, local)"
    )


def test_states_are_told_apart_without_their_parts_when_time_is_over() -> None:
    scenario = running(3)
    scenario.said(1, UNEQUAL)
    for conn, digest in ((1, b"d"), (2, b"e"), (3, b"e")):
        scenario.said(conn, called(ONE, SAVE, digest=digest))
    told = decisions(scenario.tick(LEAVES_WITHIN_S))
    assert told[2].cause == (
        "ranks disagree about collective 0.5: ranks 1, 2 and rank 0 passed different states to"
        " checkpoint() at a.py:1"
    )
    assert told[2].rank == 0


def test_answers_that_nobody_asked_for_change_nothing() -> None:
    scenario = running(2)
    assert scenario.said(1, called(ONE)) == []
    assert scenario.said(1, Leaves(1, ())) == []
    scenario.tell(StopAsked("enough"))
    assert scenario.said(1, called(ONE)) == []


def test_what_was_seen_of_an_older_epoch_opens_no_inquiry() -> None:
    scenario = ScenarioRun(durable=running(2).roster.durable)
    assert scenario.said(1, SEEN) == []
    assert running(2).said(1, Mismatch(0, at(0, 5), ONE, "", 1, at(0, 5), TWO, "")) == []


def test_of_many_those_are_asked_that_the_report_names() -> None:
    evidence = Evidence(at(0, 1), (Side(1900, at(0, 1), ONE, "a"), Side(40, at(0, 1), TWO, "b")))
    assert ranks_to_ask(evidence, list(range(2000))) == [*range(14), 40, 1900]
    assert ranks_to_ask(evidence, [3, 40]) == [3, 40]


def test_the_answer_of_a_rank_that_is_lost_is_not_awaited() -> None:
    scenario = running(3)
    scenario.tell(ConnLost(3, "killed"))
    scenario.said(1, SEEN)  # of the epoch that has just ended
    scenario.said(1, called(ONE, ONE))
    told = decisions(scenario.tell(ConnLost(2, "killed")))
    assert [fatal_decision.error for fatal_decision in told.values()] == ["CollectiveMismatchError"]


def test_a_difference_that_the_plan_finds_is_asked_about() -> None:
    scenario = running(3)
    scenario.tell(ConnLost(3, "killed"))
    scenario.joined(4, hello("w2", "b"))
    said = {"tentative": 1, "signature": SAVE, "site": "a.py:1"}
    for conn, digest in ((1, b"d"), (2, b"e")):
        scenario.said(conn, report(2, at(0, 5), digest=digest, **said))
    asked = scenario.said(4, report(2, caught_up=0))
    assert asked == [(conn, AskCalls(1)) for conn in (1, 2, 4)]
    for conn, digest in ((1, b"d"), (2, b"e"), (4, b"")):
        scenario.said(conn, called(ONE, SAVE, digest=digest))
        scenario.said(conn, Leaves(1, (Leaf("state", "int", digest),)))
    told = scenario.journalled.fatal_decision
    assert told is not None
    assert told.cause == (
        "ranks disagree about collective 0.5: rank 0 and rank 1 passed different states to"
        " checkpoint() at a.py:1; state (int) has other values on rank 1 than on rank 0; what"
        " each rank has of its own is passed apart: checkpoint(state, local)"
    )
