"""A group that does not become complete: who is missing is said, and it does not last for ever."""

from dataclasses import replace
from typing import Any

from ftcomm.protocol.messages import FatalDecision
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import ConnectionLost, Note, Supervised
from ftcomm_tracker.core.group_formation import MAX_ROWS, missing_workers
from ftcomm_tracker.core.reporting.explain import explain
from ftcomm_tracker.core.roster import JobState, Roster
from tests.unit.tracker.roster_scenario import (
    SETTINGS,
    ScenarioRun,
    decisions,
    hello,
    running,
    sends,
)
from tests.unit.tracker.test_explain import document, sentences


def forming(size: int, durable: Durable | None = None, *, within: float = 600.0) -> ScenarioRun:
    scenario = ScenarioRun(size, durable)
    settings = replace(SETTINGS, form_within=within, detect_within=3600.0)
    scenario.roster = Roster(settings, scenario.journalled, generation=1, now=0.0)
    return scenario


def notes(effects: list[Any]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Note)]


def test_a_job_whose_last_worker_never_comes_fails_and_names_it() -> None:
    scenario = forming(3)
    scenario.now = 50.0  # nobody was there so long
    for conn, name in enumerate("02", start=1):
        scenario.joined(conn, hello(name))
    assert sends(scenario.tick(649.9)) == []
    sent = sends(scenario.tick(650.0))
    cause = (
        "the group was not complete 600 s after its first worker came: 2 of 3 workers are here;"
        " missing: worker 1"
    )
    assert [(conn, message.error, message.cause) for conn, message in sent] == [
        (1, "RankLostError", cause),
        (2, "RankLostError", cause),
    ]


def test_a_tracker_to_which_nobody_has_come_waits_in_silence() -> None:
    scenario = forming(3)
    assert (scenario.roster.next_deadline(), scenario.tick(1e6)) == (None, [])


def test_who_is_missing_is_said_every_thirty_seconds() -> None:
    scenario = forming(4)
    scenario.joined(1, hello("0"))
    scenario.tell(Supervised("2", "node7", 4711, 5.0))
    said = [(now, notes(scenario.tick(now))) for now in (29.0, 30.0, 31.0, 59.0, 60.0)]
    assert said == [
        (29.0, []),
        (30.0, [still_missing(age_s=35, left_s=570)]),
        (31.0, []),
        (59.0, []),
        (60.0, [still_missing(age_s=65, left_s=540)]),
    ]


def still_missing(*, age_s: int, left_s: int) -> str:
    return (
        "the group is not complete: 1 of 4 workers are here; missing: worker 1,"
        f" worker 2 (pid 4711 on node7, started {age_s} s ago, has not called init()), worker 3;"
        f" the job fails in {left_s} s"
    )


def test_processes_of_which_none_calls_init_are_named_though_no_time_runs() -> None:
    scenario = forming(2)
    for number in (0, 1):
        scenario.tell(Supervised(str(number), "node7", 100 + number, 0.0))
    assert notes(scenario.tick(30.0)) == [
        (
            "the group is not complete: 0 of 2 workers are here; missing: worker 0 (pid 100 on"
            " node7, started 30 s ago, has not called init()), worker 1 (pid 101 on node7, started"
            " 30 s ago, has not called init())"
        )
    ]
    assert scenario.roster.state is JobState.FORMING
    assert notes(scenario.tick(10_000.0)) != []
    assert scenario.roster.state is JobState.FORMING


def test_one_that_joined_and_went_is_told_from_one_that_never_came() -> None:
    scenario = forming(3)
    scenario.joined(1, hello("a"))
    scenario.joined(2, hello("b"))
    scenario.tell(ConnectionLost(2, "its connection ended"))
    assert scenario.roster.snapshot(1.0)["waiting_for"] == [
        "worker b (it joined and has gone) to join",
        "1 more worker to join",
    ]


def test_a_restarted_tracker_counts_from_its_start_if_somebody_had_come() -> None:
    scenario = forming(2)
    scenario.joined(1, hello("0"))
    scenario.now = 500.0
    again = forming(2, scenario.journalled)
    again.tick(599.9)
    assert again.roster.state is JobState.FORMING
    assert notes(again.tick(600.0)) == [
        (
            "RankLostError: the group was not complete 600 s after its first worker came: 0 of 2"
            " workers are here; missing: worker 0 (it joined and has gone), worker 1"
        )
    ]
    late = again.joined(1, hello("0", incarnation=1))
    assert [message.error for _, message in late if isinstance(message, FatalDecision)] == [
        "RankLostError"
    ]


def test_time_in_which_the_tracker_did_not_run_does_not_count() -> None:
    scenario = forming(2)
    scenario.joined(1, hello("0"))
    scenario.tick(100.0)
    scenario.stall(4900.0)
    until = 600.0 + 4900.0 + scenario.roster.settings.detect_within
    scenario.tick(until - 0.1)
    assert scenario.roster.state is JobState.FORMING
    scenario.tick(until)
    assert scenario.roster.state is JobState.OVER


def test_a_group_that_is_complete_is_not_bounded_any_more() -> None:
    scenario = running(2)
    assert scenario.roster.state is JobState.RUNNING
    missing = scenario.roster.snapshot(0.0)["missing"]
    assert missing is None
    scenario.tick(0.0)
    assert scenario.roster.next_deadline() == 2.5  # when a silent worker is late


def test_explain_names_a_child_that_has_not_called_init() -> None:
    scenario = forming(2)
    scenario.joined(1, hello("0"))
    scenario.tell(Supervised("0", "node7", 70, 4.0))
    scenario.tell(Supervised("1", "node7", 71, 4.0))
    scenario.now = 8.0
    assert sentences(scenario) == [
        "the group is waiting to form: 1 of 2 workers are here.",
        "  - joined: worker 0",
        "  - missing: worker 1 (pid 71 on node7, started 12 s ago, has not called init())",
        "  - the job fails if they do not come within 592 s",
        "  - the tracker has been up for 20 s",
        (
            "  To do: `py-spy dump --pid 71` on node7 shows where a process that has not"
            " called init() is: importing, reading, or in a script that never calls it."
        ),
    ]


def test_explain_names_a_restarted_child_that_has_not_called_init() -> None:
    scenario = running(3)
    scenario.tell(Supervised("w2", "h", 70, 0.0))
    scenario.tell(ConnectionLost(3, "its connection ended"))
    scenario.tell(Supervised("w2", "h", 90, 0.0))
    scenario.now = 2.5
    empty = next(found for found in explain(document(scenario)) if found.kind == "empty_place")
    assert empty.evidence[1] == (
        "its next process (pid 90 on h) was started 2.5 s ago and has not called init()"
    )
    scenario.joined(4, hello("w2", process="b"))
    assert document(scenario)["members"][2]["starting"] is None


def test_spares_are_not_counted_among_those_who_are_here() -> None:
    scenario = forming(2)
    scenario.joined(1, hello("0"))
    for conn, name in enumerate(("1", "spare-0"), start=2):
        scenario.joined(conn, hello(name, spare=True))
    scenario.tell(Supervised("1", "node7", 71, 4.0))
    assert notes(scenario.tick(30.0)) == [
        (
            "the group is not complete: 1 of 2 workers are here; missing: 1 worker; spares take the"
            " places in 570 s"
        )
    ]


def test_spares_get_the_ranks_of_those_who_do_not_come_in_time() -> None:
    """As in a later attempt, when the host of a worker whose rank a spare had is gone for good."""
    scenario = forming(2)
    scenario.joined(1, hello("1"))
    scenario.joined(2, hello("b", spare=True))
    scenario.joined(3, hello("a", spare=True))
    scenario.tick(599.9)
    before = scenario.roster.state
    said = notes(scenario.tick(600.0))
    assert said[0] == (
        "the group was not complete 600 s after its first worker came: 1 of 2 workers are here;"
        " missing: worker 0: spares take the places"
    )
    assert [place.worker_id for place in scenario.roster.durable.places] == ["1", "b"]
    assert (before, scenario.roster.state) == (JobState.FORMING, JobState.COLLECTING)


def test_too_few_spares_leave_the_group_incomplete() -> None:
    scenario = forming(3)
    scenario.joined(1, hello("1"))
    scenario.joined(2, hello("a", spare=True))
    assert {told.error for told in decisions(scenario.tick(600.0)).values()} == {"RankLostError"}


def test_ids_that_nobody_has_named_are_counted() -> None:
    assert [
        missing_workers(4, {"0", "3"}, [], []),
        missing_workers(4, {"alpha"}, ["beta"], ["gamma"]),
        missing_workers(2, {"0"}, ["1", "spare"], []),
        missing_workers(2, set(), [], []),
    ] == [
        (["1", "2"], 0),
        (["beta", "gamma"], 1),
        (["1", "spare"], 0),
        (["0", "1"], 0),
    ]
    names, unnamed = missing_workers(2000, {"7"}, [], [])
    assert (len(names), unnamed) == (MAX_ROWS, 1999 - MAX_ROWS)
