"""The record of each recovery: all its phases, and what is said of one that was cut short."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcomm.protocol.messages import Closed, Resumed
from ftcomm_tracker.core.events import (
    ConnectionLost,
    Died,
    Effect,
    Event,
    Incident,
    IncidentClosed,
    Note,
    StopAsked,
)
from ftcomm_tracker.core.reporting.explain import explain
from ftcomm_tracker.core.reporting.incident_words import incident_words
from ftcomm_tracker.core.reporting.status import incident_line
from ftcomm_tracker.server.recovery_log import record_incident
from tests.unit.tracker.roster_scenario import ScenarioRun, hello, report, running


def closed(effects: list[Effect]) -> list[Incident]:
    return [effect.incident for effect in effects if isinstance(effect, IncidentClosed)]


def record(effects: list[Effect]) -> dict[str, Any]:
    (incident,) = closed(effects)
    return incident.to_dict()


def lose_and_replace(scenario: ScenarioRun) -> None:
    """Worker w1 is silent for 5 s; survivors report 0.1 s later, its next incarnation 2 s later."""
    scenario.now = 4.0
    scenario.said(1, report(1))  # a sign of activity
    scenario.tick(5.0)
    scenario.now = 5.1
    scenario.said(1, report(2))
    scenario.now = 7.0
    scenario.joined(3, hello("w1", "b"))
    scenario.said(3, report(2))
    scenario.roster.plan_sent(7.25)


def test_every_phase_of_a_recovery_is_in_its_record() -> None:
    scenario = running(2)
    lose_and_replace(scenario)
    scenario.now = 7.5
    scenario.said(1, Resumed(2, 10, 20, 0, 0))
    scenario.now = 8.0
    effects = scenario.tell_said(3, Resumed(2, 150, 250, 3, 4))
    assert record(effects) == {
        "epoch": 2,
        "reason": "no heartbeat of worker w1 for 5.0 s (rank 1)",
        "victims": ["w1"],
        "suspects": [],
        "causes": [],
        "completed": True,
        "frontier": "-1.0",
        "routes": [],
        "fetched": 3,
        "replayed": 4,
        "ms": {
            "detect": 5000.0,
            "stop": 100.0,
            "replace": 2000.0,
            "decide": 250.0,
            "fetch": 150,
            "link": 250,
            "total": 3000.0,
        },
    }


def test_a_recovery_that_another_change_cuts_short_says_so() -> None:
    scenario = running(3)
    scenario.tell(ConnectionLost(2, "gone"))
    for conn in (1, 3):
        scenario.said(conn, report(2))
    scenario.joined(4, hello("w1", "b"))
    scenario.said(4, report(2))
    scenario.now = 1.5
    found = record(scenario.tell(ConnectionLost(3, "gone too")))
    assert (found["epoch"], found["completed"], found["ms"]["total"]) == (2, False, 1500.0)
    assert "1500.0 ms until it was cut short (detect 0.0, stop 0.0," in incident_line(found)


def test_a_recovery_that_ends_with_the_job_leaves_its_record_too() -> None:
    scenario = running(2)
    scenario.tell(ConnectionLost(2, "gone"))
    scenario.now = 2.0
    found = record(scenario.tell(StopAsked("enough")))
    assert (found["victims"], found["completed"], found["ms"]["replace"]) == (["w1"], False, 0.0)


def test_the_log_calls_recovered_only_what_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scenario = running(2)
    scenario.tell(ConnectionLost(2, "gone"))
    (cut_short,) = closed(scenario.tell(StopAsked("enough")))
    with caplog.at_level(logging.INFO, "ftcomm_tracker"):
        for completed in (False, True):
            incident = replace(cut_short, completed=completed)
            record_incident(tmp_path, incident, scenario.roster.durable, now=0.0)
    assert [line.partition(", epoch 2: ")[0] for line in caplog.messages] == [
        "not recovered",
        "worker w1 lost (gone): not recovered after 0.0 s",
        "recovered",
        "worker w1 lost (gone) at the start: restarted, all go on after 0.0 s",
    ]
    assert {record.levelname for record in caplog.records} == {"INFO", "WARNING"}


def test_a_job_that_closes_during_a_recovery_completes_it() -> None:
    scenario = running(2)
    scenario.said(1, Closed(3))
    scenario.tell(ConnectionLost(2, "gone"))
    scenario.said(1, report(2, closed=True))
    scenario.joined(3, hello("w1", "b"))
    scenario.said(3, report(2))
    assert record(scenario.tell_said(3, Closed(3)))["completed"]


def test_every_field_is_in_the_operators_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "watching.md").read_text(encoding="utf-8")
    scenario = running(2)
    scenario.tell(ConnectionLost(2, "gone"))
    found = record(scenario.tell(StopAsked("enough")))
    names = [*found, *(f"ms.{name}" for name in found["ms"])]
    assert [name for name in names if f"`{name}`" not in text and name != "ms"] == []


def killed_and_back(*events: Event) -> dict[str, Any]:
    """The record of a recovery in which worker w1's process, number 4711, was lost and replaced.

    Args:
        events: what the tracker hears before the new incarnation joins, in this order.
    """
    scenario = ScenarioRun()
    scenario.joined(1, hello("w0"))
    scenario.joined(2, hello("w1", group=4711))
    for conn in (1, 2):
        scenario.said(conn, report(1))
    for event in events:
        scenario.tell(event)
    scenario.joined(3, hello("w1", "b", group=4712))
    for conn in (1, 3):
        scenario.said(conn, report(2))
    effects = [e for conn in (1, 3) for e in scenario.tell_said(conn, Resumed(2, 0, 0, 0, 0))]
    (incident,) = [e.incident for e in effects if isinstance(e, IncidentClosed)]
    return incident.to_dict()


DIED = Died("w1", 4711, "was killed by SIGKILL")
LOST = ConnectionLost(2, "its connection ended")
CAUSE = {"worker": "w1", "pid": 4711, "host": "h", "how": "was killed by SIGKILL"}


@pytest.mark.parametrize("events", [(LOST, DIED), (DIED, LOST)], ids=["lost first", "died first"])
def test_a_recovery_says_how_its_victims_process_ended(events: tuple[Event, ...]) -> None:
    record = killed_and_back(*events)
    assert (record["victims"], record["causes"]) == (["w1"], [CAUSE])
    line = incident_line(record)
    assert "(rank 1); worker w1 (pid 4711 on h) was killed by SIGKILL;" in line


def test_a_recovery_of_which_nobody_says_why_names_no_cause() -> None:
    assert killed_and_back(LOST)["causes"] == []


def test_status_and_explain_say_why_a_worker_is_gone() -> None:
    scenario = running()
    for event in (LOST, Died("w1", 4711, "exited with status 1: KeyError: 'x'")):
        scenario.tell(event)
    document = {**scenario.roster.snapshot(0.0), "uptime_s": 1.0, "address": "h:1"}
    (row,) = [row for row in document["members"] if row["worker_id"] == "w1"]
    assert row["death"]["how"] == "exited with status 1: KeyError: 'x'"
    (finding,) = [found for found in explain(document) if found.kind == "empty_place"]
    assert finding.evidence[0] == "worker w1 (pid 4711 on h) exited with status 1: KeyError: 'x'"


def test_a_death_of_who_has_closed_or_was_never_there_is_nobodys_loss() -> None:
    scenario = running()
    scenario.said(2, Closed(0))
    for worker in ("w1", "w9"):
        scenario.tell(Died(worker, 4711, "exited with status 3"))
    scenario.tell(LOST)
    assert [row["death"] for row in scenario.roster.snapshot(0.0)["members"]] == [None, None]


@pytest.mark.parametrize("when", ["before the recovery's end", "after it"])
def test_how_a_worker_ended_is_told_though_a_spare_was_faster(when: str) -> None:
    """On a busy machine a launcher sees the end of a process behind that of its connection."""
    scenario = ScenarioRun()
    scenario.joined(1, hello("w0"))
    scenario.joined(2, hello("w1", group=4711))
    scenario.joined(3, hello("s", spare=True, group=4712))
    for conn in (1, 2):
        scenario.said(conn, report(1))
    scenario.tell(LOST)
    effects = scenario.tell(DIED) if when.startswith("before") else []
    for conn in (1, 3):
        scenario.said(conn, report(2))
    effects += [e for conn in (1, 3) for e in scenario.tell_said(conn, Resumed(2, 0, 0, 0, 0))]
    (incident,) = [e.incident for e in effects if isinstance(e, IncidentClosed)]
    if not incident.causes:
        effects += scenario.tell(DIED)
    words = incident_words(incident.to_dict(), ["w0", "s"])
    told = [e.text for e in effects if isinstance(e, Note) and e.level == "warning"]
    assert [text for text in [words, *told] if "killed (SIGKILL)" in text] == (
        [words] if when.startswith("before") else ["worker w1 killed (SIGKILL)"]
    )
