"""Durable checkpoints in `status`, `explain` and `doctor`."""

from typing import Any

import pytest

from ftcomm.protocol.durable.store_messages import Marked, WriteFailed
from ftcomm.protocol.messages import FatalDecision, Heartbeat
from ftcomm_tracker.core.events import ConnectionLost, GivenUp, VersionPut
from ftcomm_tracker.core.reporting.explain import explain
from ftcomm_tracker.core.reporting.status import table
from ftcomm_tracker.operator.doctor import check_store
from tests.unit.tracker.roster_scenario import ScenarioRun, at, running, running_with_store
from tests.unit.tracker.test_explain import document, kinds


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
