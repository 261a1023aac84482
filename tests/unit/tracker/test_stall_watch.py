"""Warnings of a job that stands still."""

from ftcomm.protocol.messages import Heartbeat
from ftcomm_tracker.core.events import ConnectionLost
from ftcomm_tracker.server.stall_watch import StallWatch
from tests.unit.tracker.roster_scenario import ScenarioRun, at, running
from tests.unit.tracker.test_explain import blocked, in_a_receive

CYCLE = "rank 0 waits for rank 1, which waits for rank 0: none of them will go on"


def said(watch: StallWatch, scenario: ScenarioRun, *times: float) -> list[str]:
    return [watch.look(scenario.roster, now) for now in times]


def test_a_proven_cycle_is_said_at_once_and_once() -> None:
    scenario = running(2)
    in_a_receive(scenario, 0, 1)
    in_a_receive(scenario, 1, 0)
    watch = StallWatch(0.0)
    found = said(watch, scenario, 1.0, 5.0, 7.0, 8.0, 60.0)
    assert [text != "" for text in found] == [False, False, True, False, False]
    assert found[2].startswith(f"no progress for 6 s: {CYCLE} - send before receiving on one")


def test_any_other_wait_is_said_after_half_a_minute() -> None:
    scenario = running(2)
    blocked(scenario, 0, 1)
    found = said(StallWatch(0.0), scenario, 0.0, 29.0, 30.0, 31.0)
    words = "no progress for 30 s: rank 0 waits for worker w1 (rank 1, h), which is not in a"
    assert [found[0], found[1], found[3]] == ["", "", ""]
    assert found[2].startswith(words), found
    assert "PID" not in found[2]


def test_of_a_job_with_long_steps_more_patience_is_had() -> None:
    scenario = running(2)
    watch = StallWatch(0.0)
    for seqno, now in ((4, 0.0), (5, 60.0)):
        scenario.said(1, Heartbeat(1, 1, at(0, seqno)))
        assert said(watch, scenario, now) == [""]
    blocked(scenario, 0, 1, seqno=5)
    found = said(watch, scenario, 100.0, 179.0, 180.0, 181.0)
    assert [text != "" for text in found] == [False, False, True, False]


def test_a_job_in_which_all_compute_is_left_alone() -> None:
    scenario = running(2)
    assert said(StallWatch(0.0), scenario, 0.0, 100.0, 1000.0) == [""] * 3


def test_an_empty_place_is_said() -> None:
    scenario = running(2)
    scenario.tell(ConnectionLost(2, "gone"))
    found = said(StallWatch(0.0), scenario, 0.0, 31.0)
    assert "worker w1 (rank 1, h) is gone, and its place has been empty" in found[1]
