"""Stories of a tracker that was started again: what it takes up, and whom it awaits how long."""

from dataclasses import replace

from ftcomm.protocol.messages import Closed, Fetched, Heartbeat, Leave, Revoke, Settled
from ftcomm.protocol.position import START
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.ending import FAREWELL_S
from ftcomm_tracker.core.events import JobEnded, Persist, Said, Supervised, Tick
from ftcomm_tracker.core.roster import JobState, Roster
from tests.unit.tracker.roster_scenario import SETTINGS, ScenarioRun, hello, names, running, sends


def test_a_restarted_tracker_goes_on_in_the_old_epoch_if_all_agree() -> None:
    before = running()
    scenario = ScenarioRun(durable=before.roster.durable)
    back = {"incarnation": 1, "plan_epoch": 1, "revoke_epoch": 1}
    scenario.joined(1, hello("w0", **back))
    assert names(scenario.joined(2, hello("w1", **back))) == [(2, "Welcome")]
    assert (scenario.roster.state, scenario.roster.epochs.in_force) == (JobState.RUNNING, 1)
    assert scenario.said(1, Fetched(1)) == []
    assert scenario.said(2, Fetched(1)) == [(1, Settled(1)), (2, Settled(1))]


def test_a_restarted_tracker_waits_for_who_has_closed_and_may_alone_hold_what_is_needed() -> None:
    before = running()
    before.said(2, Closed(0))
    scenario = ScenarioRun(durable=before.roster.durable)
    assert names(scenario.joined(1, hello("w0", "b"))) == [(1, "Welcome")]
    back = {"incarnation": 1, "plan_epoch": 1, "revoke_epoch": 1, "closed": True}
    sent = names(scenario.joined(2, hello("w1", **back)))
    assert sent == [(2, "Welcome"), (1, "Revoke"), (2, "Revoke")]


def test_a_restarted_tracker_goes_on_without_a_closed_worker_that_is_gone() -> None:
    before = running()
    before.said(2, Closed(0))
    scenario = ScenarioRun(durable=before.roster.durable)
    scenario.joined(1, hello("w0", incarnation=1, plan_epoch=1, revoke_epoch=1))
    scenario.said(1, Heartbeat(1, 1, START))
    scenario.now = 29.0
    scenario.said(1, Heartbeat(2, 1, START))
    assert (1, "Revoke") in names(sends(scenario.tick(30.0)))


def test_nor_does_that_one_hold_the_end() -> None:
    before = running()
    before.said(2, Closed(0))
    scenario = ScenarioRun(durable=before.roster.durable)
    scenario.joined(1, hello("w0", incarnation=1, plan_epoch=1, revoke_epoch=1))
    scenario.said(1, Closed(0))
    assert JobEnded(True) not in scenario.tell(Said(1, Leave("the job has finished", START)))
    assert JobEnded(True) in scenario.tick(FAREWELL_S + SETTINGS.detect_within)


def test_a_restarted_tracker_keeps_a_suspicion() -> None:
    scenario = ScenarioRun(durable=running().roster.durable)
    back = {"incarnation": 1, "plan_epoch": 1, "revoke_epoch": 1}
    scenario.joined(1, hello("w0", suspects=(1,), **back))
    sent = scenario.joined(2, hello("w1", **back))
    assert [(c, m.epoch) for c, m in sent if isinstance(m, Revoke)] == [(1, 2), (2, 2)]


def test_a_restarted_tracker_gives_up_waiting_and_takes_a_spare() -> None:
    scenario = ScenarioRun(durable=running().roster.durable)
    back = {"incarnation": 1, "plan_epoch": 1, "revoke_epoch": 1}
    scenario.joined(1, hello("w0", **back))
    scenario.joined(2, hello("spare"))
    scenario.said(1, Heartbeat(1, 1, START))
    for second in range(1, 30):
        scenario.now = float(second)
        for conn in (1, 2):
            scenario.said(conn, Heartbeat(second, 1, START))
    scenario.tick(30.0)
    assert scenario.roster.durable.places[1].worker_id == "spare"


def test_a_tracker_that_awaits_its_workers_sleeps_until_it_stops_awaiting_them() -> None:
    """It may await them for longer than a place may be empty: that is no deadline then."""
    settings = replace(SETTINGS, replace_within=4.0, reattach_within=8.0)
    durable = running(2).roster.durable
    roster = Roster(settings, durable, generation=2, now=100.0)
    assert roster.state is JobState.REATTACHING
    assert roster.next_deadline() == 108.0
    assert roster.handle(Tick(), now=104.0) == []
    assert roster.next_deadline() == 108.0


def closing_after_a_restart() -> ScenarioRun:
    """A restarted tracker whose predecessor knew a supervisor of each worker; all have closed."""
    before = running()
    for worker_id in ("w0", "w1"):
        before.tell(Supervised(worker_id, "node7", 70, 1.0))
    assert before.journalled.supervised == ("w0", "w1")
    scenario = ScenarioRun(durable=before.journalled)
    back = {"incarnation": 1, "plan_epoch": 1, "revoke_epoch": 1}
    for rank in range(2):
        scenario.joined(rank + 1, hello(f"w{rank}", **back))
    scenario.tell(Supervised("w0", "node7", 70, 1.0))
    for conn in (1, 2):
        scenario.said(conn, Closed(0))
    heard = Leave("the job has finished", START)
    scenario.said(1, heard)
    assert JobEnded(True) not in scenario.tell(Said(2, heard))
    return scenario


def test_a_restarted_tracker_leaves_when_each_supervisor_has_found_it_and_been_told() -> None:
    scenario = closing_after_a_restart()
    assert JobEnded(True) in scenario.tell(Supervised("w1", "node7", 70, 1.0))


def test_a_restarted_tracker_awaits_no_supervisor_for_ever() -> None:
    scenario = closing_after_a_restart()
    due = scenario.roster.next_deadline()
    assert due is not None
    assert JobEnded(True) in scenario.tick(due)


def test_a_supervisor_that_asks_before_its_worker_joins_is_journalled_then() -> None:
    scenario = ScenarioRun(2)
    assert scenario.tell(Supervised("w0", "node7", 70, 1.0)) == []
    scenario.joined(1, hello("w0"))
    assert scenario.journalled.supervised == ("w0",)


def test_a_supervisor_is_journalled_once_and_only_of_a_worker_of_the_job() -> None:
    scenario = running()
    asked = Supervised("w0", "node7", 70, 1.0)
    assert [type(effect) for effect in scenario.tell(asked)] == [Persist]
    assert scenario.tell(asked) == []
    assert scenario.tell(Supervised("unknown", "node7", 71, 1.0)) == []
    assert Durable.from_wire(scenario.journalled.to_wire()) == scenario.journalled
