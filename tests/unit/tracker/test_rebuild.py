"""Scenarios of a tracker without its journal: whom it awaits, what it decides, whom it refuses."""

from dataclasses import replace
from typing import Any

import pytest

from ftcomm.errors import TrackerLostError
from ftcomm.protocol.field_types import MAX_WORLD_SIZE
from ftcomm.protocol.messages import (
    AskRoster,
    Closed,
    FatalDecision,
    Heartbeat,
    HeartbeatAck,
    Hello,
    KnownRoster,
    Refused,
    RosterEntry,
    Welcome,
)
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    ConnectionLost,
    Effect,
    Joined,
    Note,
    RefuseRebuild,
    Said,
    StepDown,
    StopAsked,
    Superseded,
    TakeGeneration,
)
from ftcomm_tracker.core.rebuild.decision import MAX_EPOCH, Rebuild
from ftcomm_tracker.core.reporting.status import summary
from ftcomm_tracker.core.roster import JobState, Roster
from tests.unit.tracker.roster_scenario import SETTINGS, ScenarioRun, hello, names, running, sends

ENTRIES = tuple(RosterEntry(f"w{rank}", 1, f"w{rank}-a".encode(), "h", True) for rank in range(3))


def member(rank: int, **changes: Any) -> Hello:
    fields = {"incarnation": 1, "plan_epoch": 7, "revoke_epoch": 7, "job_id": "old"}
    return hello(f"w{rank}", **{**fields, "generation": 4, "tracker": b"old", **changes})


def known(generation: int = 5, **changes: Any) -> KnownRoster:
    fields: dict[str, Any] = {
        "generation": generation,
        "job_id": "old",
        "world_size": 3,
        "settings": SETTINGS.to_wire(),
        "epoch": 7,
        "grouping": (0, 0, 0),
        "prelude_length": -1,
        "frontier": START,
        "version": 2,
        "lost": ("10.0.0.5:4711",),
        "first": 0,
        "entries": ENTRIES,
    }
    return KnownRoster(**{**fields, **changes})


def rebuilding(**changes: Any) -> ScenarioRun:
    """A tracker that the operator has started with --rebuild."""
    scenario = ScenarioRun(3, Durable.fresh("new", 3))
    rebuild = Rebuild(b"me", is_asked=True, **changes)
    scenario.roster = Roster(
        SETTINGS, scenario.journalled, generation=1, now=0.0, tracker=b"me", rebuild=rebuild
    )
    return scenario


def come(scenario: ScenarioRun, *ranks: int) -> list[tuple[int, Any]]:
    """These members come and say what they know."""
    sent = []
    for rank in ranks:
        scenario.joined(rank + 1, member(rank))
        sent += scenario.said(rank + 1, known())
    return sent


def test_the_number_of_workers_is_not_said_before_a_worker_names_it() -> None:
    """A tracker that was given none stands in with the most that a job can have."""
    scenario = ScenarioRun(3, Durable.fresh("not-known-yet", MAX_WORLD_SIZE))
    scenario.roster = Roster(
        SETTINGS,
        scenario.journalled,
        generation=1,
        now=0.0,
        tracker=b"me",
        rebuild=Rebuild(b"me", is_asked=True),
    )
    said = [summary(scenario.roster.snapshot(0.0))]
    come(scenario, 0)
    said.append(summary(scenario.roster.snapshot(0.0)))
    assert said == ["rebuilding", "rebuilding, epoch 0, 0/3 ranks up, at -1.0"]
    assert summary(rebuilding(world_size=3).roster.snapshot(0.0)) == said[1]


def test_all_members_come_and_nothing_changes_for_them() -> None:
    scenario = rebuilding()
    assert come(scenario, 0, 1) == []
    scenario.joined(3, member(2))
    effects = scenario.tell(Said(3, known()))
    assert [(conn, type(m), m.generation) for conn, m in sends(effects)] == [
        (1, Welcome, 5), (2, Welcome, 5), (3, Welcome, 5),
    ]  # fmt: skip
    assert TakeGeneration(5, ("10.0.0.5:4711",)) in effects
    roster, durable = scenario.roster, scenario.journalled
    assert (roster.state, roster.epochs.in_force) == (JobState.RUNNING, 7)
    assert (durable.job_id, durable.epoch, durable.version) == ("old", 1007, 2)


def test_a_worker_with_a_plan_makes_a_fresh_tracker_rebuild() -> None:
    scenario = ScenarioRun(3, Durable.fresh("new", 3))
    scenario.joined(9, hello("w9"))  # welcomed to a job that does not begin
    sent = scenario.joined(1, member(0))
    assert [(conn, m.generation) for conn, m in sent if isinstance(m, AskRoster)] == [
        (9, 1), (9, 5), (1, 5),
    ]  # fmt: skip
    assert scenario.roster.state is JobState.REBUILDING


def test_a_fresh_tracker_forms_a_group_once_no_worker_with_a_plan_is_left() -> None:
    scenario = ScenarioRun(1, Durable.fresh("new", 1))
    scenario.joined(1, member(0))
    scenario.tell(ConnectionLost(1, "gone"))
    assert scenario.roster.state is JobState.FORMING
    assert names(scenario.joined(2, hello("w0", "b"))) == [(2, "Welcome"), (2, "Revoke")]


def test_a_tracker_for_a_new_job_names_the_workers_of_an_old_one_that_keep_it() -> None:
    scenario = ScenarioRun(3, Durable.fresh("new", 3))
    scenario.joined(9, hello("w9"))
    scenario.joined(1, member(0, host="h1", pid=4711))
    scenario.said(1, known())
    needs = scenario.roster.snapshot(0.0)["rebuild"]["needs"]
    assert needs.partition("; if a")[2] == (
        " new job is meant, end the processes of the old one: worker w0 (pid 4711 on h1)"
    )


def test_with_a_member_missing_it_waits_and_says_what_follows() -> None:
    scenario = rebuilding()
    come(scenario, 0, 1)
    notes = [effect.text for effect in scenario.tick(30.0) if isinstance(effect, Note)]
    assert notes[-1] == (
        "the job's journal is not here, and worker w2 of job old has not come; in the end this"
        " tracker gives the job up, and tells those that wait"
    )
    row = scenario.roster.snapshot(30.0)["rebuild"]
    assert (row["missing"], row["ends_s"]) == (["w2"], 30.0)
    assert scenario.journalled == Durable.fresh("new", 3)


def given_up(effects: list[Effect]) -> tuple[dict[int, Any], TrackerLostError]:
    """The answer by connection, and the error by which this tracker ends."""
    [error] = [effect.error for effect in effects if isinstance(effect, RefuseRebuild)]
    assert isinstance(error, TrackerLostError)
    return dict(sends(effects)), error


def test_without_a_member_it_answers_all_that_wait_and_ends() -> None:
    """It decides nothing: another tracker may lead the third one."""
    scenario = rebuilding()
    scenario.tick(10.0)
    come(scenario, 0, 1)
    scenario.joined(9, hello("w2", "b"))  # the next process of the one that is missing
    scenario.said(9, known(epoch=0, entries=(), grouping=()))
    scenario.tick(50.0)
    assert scenario.roster.next_deadline() == 70.0
    told, error = given_up(scenario.tick(70.0))
    assert scenario.roster.snapshot(50.0)["rebuild"]["here"] == ["w0", "w1", "w2 (a new process)"]
    why = (
        "this tracker has no journal of the job: worker w2 (its earlier process) of job old has not"
        " come, after 60 s"
    )
    assert told == dict.fromkeys((1, 2, 9), Refused("TrackerLostError", why))
    assert str(error) == f"{why} - start the tracker without --rebuild, and all workers anew"
    assert (scenario.roster.state, scenario.roster.next_deadline()) == (JobState.OVER, None)
    assert scenario.journalled == Durable.fresh("new", 3)


def test_a_tracker_for_a_new_job_gives_the_old_one_up_too() -> None:
    """Its own workers may have been restarted for the old job: no group is formed with them."""
    scenario = ScenarioRun(3, Durable.fresh("new", 3))
    scenario.joined(9, hello("w9"))
    scenario.joined(1, member(0))
    scenario.said(1, known())
    told, _ = given_up(scenario.tick(60.0))
    assert {conn: message.error for conn, message in told.items()} == {
        9: "TrackerLostError", 1: "TrackerLostError",
    }  # fmt: skip


def test_a_member_that_comes_in_time_ends_the_wait() -> None:
    scenario = rebuilding()
    come(scenario, 0, 1)
    scenario.tick(59.0)
    come(scenario, 2)
    scenario.tick(60.0)
    assert scenario.roster.state is JobState.RUNNING


def test_the_wait_goes_on_where_it_stood_after_a_stall() -> None:
    scenario = rebuilding()
    come(scenario, 0, 1)
    scenario.tick(20.0)
    scenario.stall(30.0)
    scenario.tick(90.0)
    assert scenario.roster.next_deadline() == 60.0 + 30.0 + SETTINGS.detect_within


def test_members_that_are_away_for_a_moment_find_the_same_wait() -> None:
    """Their connections were lost, or they asked another tracker; the wait still has an end."""
    scenario = rebuilding()
    come(scenario, 0, 1)
    for conn in (1, 2):
        scenario.tell(ConnectionLost(conn, "gone"))
    scenario.tick(SETTINGS.reattach_within - 1.0)
    come(scenario, 0)
    told, _ = given_up(scenario.tick(60.0))
    assert list(told) == [1]


def test_the_wait_ends_once_all_members_have_been_away_for_long() -> None:
    scenario = rebuilding()
    come(scenario, 0, 1)
    scenario.tick(30.0)
    for conn in (1, 2):
        scenario.tell(ConnectionLost(conn, "gone"))
    back_by = 30.0 + SETTINGS.reattach_within
    due = [scenario.roster.next_deadline()]
    scenario.tick(back_by)
    due.append(scenario.roster.snapshot(back_by)["rebuild"]["ends_s"])
    come(scenario, 0)
    due.append(scenario.roster.snapshot(back_by)["rebuild"]["ends_s"])
    assert due == [back_by, None, 60.0]


def test_how_long_members_are_awaited_is_a_setting_of_the_job() -> None:
    """The tracker has its own one before a worker has named the job's."""
    scenario = rebuilding()
    scenario.joined(1, member(0))
    ends = [scenario.roster.snapshot(0.0)["rebuild"]["ends_s"]]
    for replace_within in (90.0, 0.0):  # never less than a tracker with its journal waits
        said = replace(SETTINGS, replace_within=replace_within, reattach_within=7.0)
        scenario.said(1, known(settings=said.to_wire()))
        ends.append(scenario.roster.snapshot(0.0)["rebuild"]["ends_s"])
    assert ends == [60.0, 90.0, 7.0]


def test_new_workers_alone_are_told_that_the_job_is_not_known() -> None:
    scenario = rebuilding()
    scenario.joined(1, hello("w0"))
    scenario.said(1, known(epoch=0, entries=(), grouping=()))
    told, error = given_up(scenario.tick(60.0))
    assert list(told) == [1]
    assert "no worker has come that knows the job's plan, after 60 s" in error.cause


def test_another_process_of_a_member_is_not_that_member() -> None:
    scenario = rebuilding()
    come(scenario, 0, 1)
    scenario.joined(3, hello("w2", "b", incarnation=2, revoke_epoch=8, job_id="old"))
    sent = scenario.said(3, known(epoch=0, entries=(), grouping=()))
    assert (sent, scenario.roster.state) == ([], JobState.REBUILDING)
    assert scenario.roster.snapshot(0.0)["rebuild"]["missing"] == ["w2"]


def test_a_member_that_was_absent_in_the_plan_is_not_awaited() -> None:
    entries = (*ENTRIES[:2], RosterEntry("w2", 1, b"w2-a", "h", False))
    scenario = rebuilding()
    for rank in range(2):
        scenario.joined(rank + 1, member(rank))
        scenario.said(rank + 1, known(entries=entries))
    assert scenario.journalled.closed_ranks == (2,)


def test_a_member_whose_connection_is_gone_has_not_come() -> None:
    scenario = rebuilding()
    come(scenario, 0)
    scenario.tell(ConnectionLost(1, "gone"))
    assert come(scenario, 1, 2) == []
    assert sorted(names(come(scenario, 0))) == [(1, "Welcome"), (2, "Welcome"), (3, "Welcome")]


def test_a_worker_that_follows_another_tracker_makes_all_be_asked_again() -> None:
    scenario = rebuilding()
    come(scenario, 0, 1)
    sent = scenario.joined(3, member(2, generation=5, tracker=b"other"))
    assert sent == [(conn, AskRoster(6, b"me")) for conn in (1, 2, 3)]
    assert [scenario.said(conn, known(5)) for conn in (1, 2, 3)] == [[], [], []]
    sent = [message for conn in (1, 2, 3) for message in scenario.said(conn, known(6))]
    assert [m.generation for _, m in sent if isinstance(m, Welcome)] == [6, 6, 6]


def test_the_roster_of_the_newest_plan_counts() -> None:
    """Rank 2 has another owner since epoch 8, which one member alone has heard of."""
    newest = (*ENTRIES[:2], RosterEntry("s", 1, b"s-a", "h", True))
    scenario = rebuilding()
    come(scenario, 0, 2)
    scenario.joined(2, member(1, plan_epoch=8, revoke_epoch=8))
    assert scenario.said(2, known(epoch=8, entries=newest)) == []
    fields = {"incarnation": 1, "plan_epoch": 8, "revoke_epoch": 8, "job_id": "old"}
    scenario.joined(4, hello("s", **fields))
    sent = names(scenario.said(4, known(epoch=8, entries=newest)))
    assert (3, "Fenced") in sent
    assert {conn for conn, kind in sent if kind == "Revoke"} == {1, 2, 4}


@pytest.mark.parametrize(("frontier", "is_known"), [(START, True), (Position(0, 0, 1), False)])
def test_a_member_of_the_roster_need_not_have_what_was_completed(
    frontier: Position, *, is_known: bool
) -> None:
    """It may have come for one that has died: to it alone, results are lost like to a new one."""
    scenario = rebuilding()
    for rank in range(3):
        scenario.joined(rank + 1, member(rank))
        scenario.said(rank + 1, known(frontier=frontier))
    nonces = tuple(entry.nonce if is_known else b"" for entry in ENTRIES)
    assert scenario.journalled.first_nonces == nonces


def test_a_heartbeat_is_answered_and_confirms_nothing() -> None:
    scenario = rebuilding()
    come(scenario, 0)
    assert scenario.said(1, Heartbeat(3, 7, START)) == [(1, HeartbeatAck(0))]


def test_the_job_is_stopped_for_workers_that_wait() -> None:
    scenario = rebuilding()
    come(scenario, 0)
    told = sends(scenario.tell(StopAsked("enough")))
    assert [(c, m.error) for c, m in told if isinstance(m, FatalDecision)] == [
        (1, "JobStoppedError")
    ]


def test_workers_that_contradict_each_other_are_named() -> None:
    scenario = rebuilding()
    come(scenario, 0, 1)
    scenario.joined(3, member(2))
    other = known(settings=replace(SETTINGS, detect_within=9.0).to_wire())
    assert scenario.said(3, other) == []
    assert scenario.roster.state is JobState.REBUILDING
    words = "workers w0 and w2 contradict each other about the job, its size, its settings or"
    assert scenario.roster.snapshot(0.0)["rebuild"]["needs"].startswith(words)
    told, error = given_up(scenario.tick(60.0))
    assert (len(told), words in error.cause) == (3, True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"epoch": 6}, "it is in epoch 7, and knows the plan of epoch 6"),
        ({"grouping": (0, 0)}, "its grouping is none of a job of that size"),
        ({"entries": (*ENTRIES, ENTRIES[0])}, "its roster has not the size of its job"),
        ({"entries": (ENTRIES[0],) * 3}, "its roster names a worker twice"),
        ({"entries": tuple(reversed(ENTRIES[1:])), "first": 1}, None),
        ({"settings": (("detect_within", "never"),)}, "the settings of its job are impossible"),
        ({"world_size": 2, "grouping": (0, 0), "entries": ENTRIES[1:]}, "not name it"),
    ],
)
def test_what_cannot_be_known_is_refused(changes: dict[str, Any], why: str | None) -> None:
    scenario = rebuilding()
    scenario.joined(1, member(0))
    sent = scenario.said(1, known(**changes))
    refused = [message.reason for _, message in sent if isinstance(message, Refused)]
    assert len(refused) == (why is not None)
    assert why is None or why in refused[0]


def test_an_impossible_epoch_is_refused() -> None:
    scenario = rebuilding()
    assert names(scenario.joined(1, member(0, revoke_epoch=MAX_EPOCH + 1))) == [(1, "Refused")]


@pytest.mark.parametrize(
    ("generation", "tracker", "ends"),
    [(1, b"", False), (2, b"new", True), (1, b"new", True), (2_000_000, b"new", False)],
)
def test_a_tracker_whose_workers_follow_a_newer_one_ends(
    generation: int, tracker: bytes, ends: bool
) -> None:
    scenario = running(2)
    back = {"incarnation": 1, "plan_epoch": 1, "revoke_epoch": 1, "job_id": "job"}
    who = hello("w0", generation=generation, tracker=tracker, **back)
    effects = scenario.roster.handle(Joined(9, who), now=0.0)
    reason = "the workers of job job follow a newer tracker"
    assert (StepDown(reason) in effects, effects == [StepDown(reason)]) == (ends, ends)


@pytest.mark.parametrize("generation", [3, 1])
def test_a_process_that_no_plan_has_named_proves_no_newer_tracker(generation: int) -> None:
    """The one that has welcomed it may be gone: it is admitted like a new process."""
    scenario = running(2)
    scenario.tell(ConnectionLost(1, "gone"))
    who = hello("w0", generation=generation, tracker=b"gone", job_id="job", revoke_epoch=5)
    effects = scenario.tell(Joined(9, who))
    assert (9, "Welcome") in names(sends(effects))
    assert not [effect for effect in effects if isinstance(effect, StepDown)]


@pytest.mark.parametrize(("job", "generation", "ends"), [("job", 2, 1), ("job", 1, 0), ("x", 2, 0)])
def test_a_notice_of_a_newer_tracker_ends_an_older_one(
    job: str, generation: int, ends: int
) -> None:
    effects = running(2).roster.handle(Superseded(job, generation), now=0.0)
    assert sum(isinstance(effect, StepDown) for effect in effects) == ends


@pytest.mark.parametrize(("job", "generation", "ends"), [("old", 6, 1), ("old", 5, 0), ("x", 6, 0)])
def test_of_two_trackers_without_a_journal_the_other_one_ends(
    job: str, generation: int, ends: int
) -> None:
    """A member that has answered it goes to the other tracker, which leads."""
    scenario = rebuilding()
    come(scenario, 0)
    scenario.tell(ConnectionLost(1, "gone"))
    effects = scenario.roster.handle(Superseded(job, generation), now=0.0)
    told = StepDown("the workers of job old follow a newer tracker")
    assert [effect for effect in effects if isinstance(effect, StepDown)] == [told] * ends


def test_closes_that_members_know_count() -> None:
    scenario = rebuilding()
    come(scenario, 0, 1, 2)
    for conn in (1, 2):
        scenario.said(conn, Closed(2))
    assert names(scenario.said(3, Closed(2))) == [
        (1, "AllClosed"), (2, "AllClosed"), (3, "AllClosed"),
    ]  # fmt: skip
