"""A closed member that has lost its connection alone, and holds what nobody else does."""

from ftcomm.protocol.messages import Closed, FatalDecision, Plan
from ftcomm.protocol.position import PositionRange
from ftcomm_tracker.core.events import ConnectionLost, Joined
from ftcomm_tracker.core.reporting.explain import explain
from ftcomm_tracker.core.roster import JobState
from tests.unit.tracker.roster_scenario import (
    SETTINGS,
    ScenarioRun,
    at,
    hello,
    report,
    running,
    sends,
)

HELD = (PositionRange(-1, 0, 2, 1),)  # the only collective of the job, and its close


def lost_without_the_closed_one() -> ScenarioRun:
    """Worker w0 has closed and is away; w1 died before it closed; its next process has nothing."""
    scenario = running()
    scenario.said(1, Closed(0))
    scenario.tell(ConnectionLost(2, "connection reset"))
    scenario.tell(ConnectionLost(1, "connection reset"))
    scenario.now = 1.0
    scenario.joined(3, hello("w1", "b"))
    scenario.said(3, report(2, caught_up=0))
    return scenario


def fatal_decision_of(scenario: ScenarioRun) -> FatalDecision | None:
    return scenario.roster.durable.fatal_decision


def test_the_job_is_not_lost_while_it_may_come_back() -> None:
    scenario = lost_without_the_closed_one()
    assert (scenario.roster.state, fatal_decision_of(scenario)) == (JobState.COLLECTING, None)
    assert scenario.roster.next_deadline() is not None
    waiting = scenario.roster.snapshot(1.0)["waiting_for"]
    assert waiting == ["worker w0 to come back, though it has closed"]

    scenario.now = 2.0
    scenario.tell(Joined(4, hello("w0", plan_epoch=1, revoke_epoch=1, closed=True)))
    sent = sends(scenario.tell_said(4, report(2, at(-1, 2), committed=-1, runs=HELD, closed=True)))
    plans = {conn: message for conn, message in sent if isinstance(message, Plan)}
    assert (scenario.roster.state, fatal_decision_of(scenario), sorted(plans)) == (
        JobState.RUNNING,
        None,
        [3, 4],
    )
    assert [fetch.source for fetch in plans[3].fetches] == [0]


def test_it_is_explained_with_the_time_that_is_left() -> None:
    scenario = lost_without_the_closed_one()
    server = {"address": "10.0.0.5:4711", "uptime_s": 20.0, "pid": 7, "state_dir": "/s"}
    document = {**scenario.roster.snapshot(scenario.now), **server}
    (found,) = [diagnosis for diagnosis in explain(document) if diagnosis.kind == "grace_period"]
    left = f"the job is lost if none of them is back in {SETTINGS.reattach_within:.0f} s"
    assert (found.waiting, found.evidence[-1]) == (True, left)


def test_it_is_awaited_no_longer_than_a_worker_of_a_restarted_tracker() -> None:
    scenario = lost_without_the_closed_one()
    for beat in range(1, 8):  # w1 lives on
        scenario.now = 1.0 + 4.0 * beat
        scenario.tell_said(3, report(2, caught_up=0))
    assert fatal_decision_of(scenario) is None
    scenario.tick(1.0 + SETTINGS.reattach_within)
    fatal_decision = fatal_decision_of(scenario)
    assert fatal_decision is not None
    assert fatal_decision.error == "JobLostError"


def test_a_tracker_that_was_stopped_waits_on() -> None:
    scenario = lost_without_the_closed_one()
    scenario.stall(100.0)
    assert fatal_decision_of(scenario) is None
    hears_at = 101.0 + SETTINGS.detect_within
    for beat in range(1, 8):
        scenario.now = hears_at + 4.0 * beat
        scenario.tell_said(3, report(2, caught_up=0))
    assert fatal_decision_of(scenario) is None
    scenario.tick(hears_at + SETTINGS.reattach_within)
    assert fatal_decision_of(scenario) is not None


def test_when_nobody_has_closed_the_job_is_lost_at_once() -> None:
    scenario = running()
    for conn in (1, 2):
        scenario.tell(ConnectionLost(conn, "connection reset"))
    for rank in (0, 1):
        scenario.joined(3 + rank, hello(f"w{rank}", "b"))
        scenario.said(3 + rank, report(2, caught_up=0))
    fatal_decision = fatal_decision_of(scenario)
    assert fatal_decision is not None
    assert fatal_decision.error == "JobLostError"
