"""Durable checkpoints in `status`, `explain` and `doctor`."""

from collections.abc import Callable
from typing import Any

import pytest

from ftcomm.protocol.durable.store_messages import Marked, WriteFailed
from ftcomm.protocol.messages import Blocked, Closed, FatalDecision, Heartbeat
from ftcomm.protocol.signature import DURABLE, Kind, Signature
from ftcomm_tracker.core.events import (
    ConnectionLost,
    Effect,
    FinishedPut,
    GivenUp,
    Note,
    StopAsked,
    VersionPut,
)
from ftcomm_tracker.core.reporting.explain import explain
from ftcomm_tracker.core.reporting.status import table
from ftcomm_tracker.operator.doctor import check_store
from tests.unit.tracker.roster_scenario import (
    ScenarioRun,
    at,
    names,
    running,
    running_with_store,
)
from tests.unit.tracker.test_explain import SUM, document, kinds, sentences

DURABLY = Signature(Kind.CHECKPOINT, count=DURABLE).encode()


def line_of(scenario: ScenarioRun) -> str:
    lines = table(document(scenario)).splitlines()
    return next(line for line in lines if "/shared/run7" in line)


def test_the_newest_checkpoint_and_its_age() -> None:
    scenario = running_with_store()
    assert line_of(scenario) == "attempt 1, no durable checkpoint yet in /shared/run7"
    scenario.now = 3.0
    scenario.tell(VersionPut(4))
    scenario.now = 15.0
    assert line_of(scenario) == "attempt 1, durable checkpoint 4, 12 s old in /shared/run7"


def test_the_age_counts_from_before_the_attempt() -> None:
    scenario = running_with_store(durable_version=8, age_s=100.0)
    scenario.now = 20.0
    assert line_of(scenario) == "attempt 1, durable checkpoint 8, 120 s old in /shared/run7"


def in_trouble() -> ScenarioRun:
    scenario = running_with_store()
    for rank in range(2):
        scenario.said(rank + 1, Marked(5, b"d", 9, None, (), 0))
    scenario.said(1, WriteFailed(5, True, "No space left on device"))
    return scenario


@pytest.mark.parametrize(
    ("facts", "ends"), [({}, True), ({"durable_version": 4, "age_s": 1.0}, False)]
)
def test_a_host_without_the_store_ends_a_job_that_has_nothing_durable(
    facts: dict[str, Any], ends: bool
) -> None:
    """Later on, other holders write for a host that came since."""
    scenario = running_with_store(**facts)
    for rank in range(2):
        scenario.said(rank + 1, Marked(5, b"d", 9, None, (), 0))
    sent = scenario.said(1, WriteFailed(5, True, "not the store", unusable=True))
    told = {decision.error for _, decision in sent if isinstance(decision, FatalDecision)}
    assert told == ({"ConfigError"} if ends else set())
    assert ends or line_of(scenario).endswith("; rank 0: not the store")


TROUBLE = "rank 0: No space left on device"


def test_the_log_names_trouble_once_and_at_the_end() -> None:
    """Both ends of a job: all ranks close, and a fatal decision."""
    ends: list[Callable[[ScenarioRun], list[Effect]]] = [
        lambda scenario: [
            *scenario.tell_said(1, Closed(5)),
            *scenario.tell_said(2, Closed(5)),
            *scenario.tell(FinishedPut()),
        ],
        lambda scenario: scenario.tell(StopAsked("enough")),
    ]
    for end in ends:
        scenario = in_trouble()
        failed = WriteFailed(5, True, "No space left on device")
        effects = [*scenario.tell_said(1, failed), *end(scenario)]
        said = [e.text for e in effects if isinstance(e, Note) and TROUBLE in e.text]
        assert said == [
            f"the job ends, and not all could be written: {TROUBLE}; no checkpoint is durable"
        ]


def test_the_first_failure_is_in_the_log() -> None:
    scenario = running_with_store()
    scenario.said(1, Marked(5, b"d", 9, None, (), 0))
    said = scenario.tell_said(1, WriteFailed(5, True, "No space left on device"))
    assert said == [Note("warning", f"checkpoint 5 waits, the job goes on: {TROUBLE}")]


def test_a_store_that_takes_nothing_is_told() -> None:
    scenario = in_trouble()
    assert line_of(scenario).endswith("in /shared/run7; rank 0: No space left on device")
    assert document(scenario)["store"] == {
        "url": "/shared/run7",
        "attempt": 1,
        "every": "10s",
        "newest": -1,
        "age_s": None,
        "writing": [5],
        "trouble": "rank 0: No space left on device",
        "last_will": None,
    }
    found = {finding.kind: finding for finding in explain(document(scenario))}["store"]
    assert (found.waiting, found.evidence) == (
        False,
        ("rank 0: No space left on device", "no durable checkpoint yet"),
    )


def waiting_for_a_record(scenario: ScenarioRun, *waiting: int) -> ScenarioRun:
    for rank in waiting:
        beat = Heartbeat(1, 1, at(5, 0), Blocked(DURABLY, "train.py:12", (), 9000))
        scenario.said(rank + 1, beat)
    return scenario


def test_ranks_that_wait_for_a_record_are_said_to_wait_and_why() -> None:
    """Nothing goes on meanwhile, whatever the store's trouble."""
    scenario = waiting_for_a_record(in_trouble(), 0, 1)
    assert sentences(scenario) == [
        (
            "ranks 0 and 1 wait in checkpoint(durable=True) for the record of that checkpoint in"
            " /shared/run7."
        ),
        "  - rank 0 has been waiting for 9.0 s in checkpoint(durable) at train.py:12",
        "  - rank 0: No space left on device",
        "  - no durable checkpoint yet",
        (
            "  To do: make room in the store, or make it reachable; the job tries again by itself,"
            " and goes on when the record is there."
        ),
    ]
    assert (
        table(document(scenario))
        .splitlines()[-1]
        .endswith("blocked  5.0       0    on the record of its checkpoint for 9.0 s, train.py:12")
    )


def test_a_record_on_its_way_is_no_trouble() -> None:
    scenario = running_with_store()
    assert sentences(waiting_for_a_record(scenario, 1))[:3] == [
        (
            "rank 1 waits in checkpoint(durable=True) for the record of that checkpoint in"
            " /shared/run7."
        ),
        "  - rank 1 has been waiting for 9.0 s in checkpoint(durable) at train.py:12",
        "  - no member has packed it",
    ]
    for rank in range(2):
        scenario.said(rank + 1, Marked(5, b"d", 9, None, (), 0))
    assert sentences(scenario)[2] == "  - checkpoint 5 is being written"


def test_who_waits_for_a_record_has_called_nothing_that_others_disagree_with() -> None:
    """Another one has heard of the record, goes on to the next call, and waits for this one."""
    scenario = waiting_for_a_record(running_with_store(), 0)
    for step in (-1, 0):
        ahead = Heartbeat(1, 1, at(5, 0), Blocked(SUM, "train.py:13", (0,), 9000, step))
        assert names(scenario.said(2, ahead)) == [(2, "HeartbeatAck")]
    assert kinds(scenario) == [("checkpoint_record", True)]


def checked(scenario: ScenarioRun) -> list[tuple[str, Any]]:
    return [(check.name, check.level) for check in check_store(document(scenario))]


def test_doctor_warns_of_it() -> None:
    assert checked(in_trouble()) == [("store", "warn")]
    assert checked(running_with_store()) == [("store", "ok")]
    assert checked(running()) == []


def test_a_lost_job_that_writes_its_last_checkpoint_says_so() -> None:
    scenario = running_with_store()
    scenario.said(1, Heartbeat(1, 1, at(3, 2)))
    scenario.tell(ConnectionLost(2, "its connection ended"))
    scenario.tell(GivenUp("w1", "it was restarted too often"))
    assert kinds(scenario)[0] == ("last_will", True)
