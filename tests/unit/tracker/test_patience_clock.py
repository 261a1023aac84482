"""The clock that stands still while the tracker cannot hear."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ftcomm.protocol.messages import Heartbeat, Resumed
from ftcomm_tracker.core.events import ConnectionLost, IncidentClosed, Joined, Stalled
from ftcomm_tracker.core.patience_clock import PatienceClock
from tests.unit.tracker.roster_scenario import SETTINGS, at, hello, report, running

SECONDS = st.floats(0.0, 1e7)


def stalled_at_10(stalled_s: float = 60.0, grace_s: float = 5.0) -> PatienceClock:
    """A clock whose tracker stops at 10 s."""
    clock = PatienceClock(0.0)
    clock.advance(10.0)
    clock.skip(10.0 + stalled_s, stalled_s, grace_s)
    return clock


@pytest.mark.parametrize(
    ("real", "time"), [(70.0, 10.0), (74.9, 10.0), (75.0, 10.0), (76.0, 11.0), (100.0, 35.0)]
)
def test_it_stands_still_in_a_stall_and_a_grace_period(real: float, time: float) -> None:
    assert stalled_at_10().now(real) == time


def test_a_look_at_it_tells_no_time() -> None:
    clock = stalled_at_10()
    clock.now(1000.0)
    assert clock.now(76.0) == 11.0


def test_a_stall_that_began_before_the_last_event_turns_nothing_back() -> None:
    clock = PatienceClock(0.0)
    clock.advance(50.0)
    clock.skip(60.0, 30.0, 5.0)
    assert [clock.now(real) for real in (60.0, 65.0, 66.0)] == [50.0, 50.0, 51.0]


def test_a_stall_in_the_grace_period_begins_it_again() -> None:
    clock = stalled_at_10()
    clock.skip(100.0, 28.0, 5.0)
    assert [clock.now(real) for real in (105.0, 106.0)] == [10.0, 11.0]


@given(SECONDS, st.lists(st.tuples(SECONDS, SECONDS, SECONDS), max_size=5))
def test_it_never_goes_back(start: float, events: list[tuple[float, float, float]]) -> None:
    clock, real, told = PatienceClock(start), start, [start]
    for passed_s, stalled_s, grace_s in events:
        real += passed_s
        told.append(clock.advance(real))
        real += stalled_s / 2  # the driver says more than has passed since the event
        clock.skip(real, stalled_s, grace_s)
        told.append(clock.now(real))
        real += grace_s
        told.append(clock.now(real))
    assert told == sorted(told)


@example(22.9, 94.5, 90.1, 3.1)  # the sum is too small
@given(SECONDS, SECONDS, SECONDS, st.floats(1e-6, 1e7))
def test_a_deadline_is_over_when_the_driver_comes_to_it(
    start: float, stalled_s: float, grace_s: float, left_s: float
) -> None:
    clock = PatienceClock(start)
    clock.skip(start + stalled_s, stalled_s, grace_s)
    deadline = clock.now(start + stalled_s) + left_s
    assert clock.now(clock.real(deadline)) >= deadline


def test_a_wait_that_begins_after_a_stall_is_as_long_as_any_other() -> None:
    scenario = running(2)
    scenario.stall(1000.0)
    scenario.now += 2 * SETTINGS.detect_within
    scenario.tell(ConnectionLost(2, "killed"))
    until = scenario.now + SETTINGS.replace_within
    scenario.now = until - 1.0
    scenario.tell(Joined(3, hello("w0", "b")))  # who is there hears how the job ends
    fatal = [scenario.tick(time) for time in (until - 0.1, until)]
    assert ["RankLostError" in str(effects) for effects in fatal] == [False, True]


def test_who_was_silent_before_a_stall_has_the_rest_of_its_time() -> None:
    """It has been silent for 4 s of 5 when the tracker stops; what it says is read late."""
    scenario = running(2)
    scenario.now = 4.0
    scenario.said(1, Heartbeat(1, 1, at(0, 1)))
    scenario.stall(60.0)
    scenario.said(1, Heartbeat(2, 1, at(0, 1)))
    hears_at = 64.0 + SETTINGS.detect_within
    late = [scenario.tick(time) for time in (hears_at + 0.9, hears_at + 1.0)]
    assert [any("w1" in str(each) for each in effects) for effects in late] == [False, True]
    assert sorted(scenario.roster.members.slots) == [0]


def test_a_place_that_was_empty_before_a_stall_is_awaited_on() -> None:
    scenario = running(2)
    scenario.tell(ConnectionLost(2, "killed"))
    scenario.tick(1.0)
    scenario.stall(1000.0)
    until = 1000.0 + SETTINGS.detect_within + SETTINGS.replace_within
    scenario.now = until - 1.0
    scenario.tell(Joined(3, hello("w0", "b")))  # who is there hears how the job ends
    fatal = [scenario.tick(time) for time in (until - 0.1, until)]
    assert ["RankLostError" in str(effects) for effects in fatal] == [False, True]


def test_an_incident_counts_the_time_of_a_stall() -> None:
    scenario = running(2)
    scenario.tell(ConnectionLost(2, "killed"))
    scenario.stall(60.0)
    row = scenario.roster.snapshot(61.0)["recovery"]
    scenario.joined(3, hello("w1", "b"))
    for conn in (1, 3):
        scenario.said(conn, report(2, caught_up=1))
    scenario.now = 62.0
    closed = [scenario.tell_said(conn, Resumed(2, 0, 0, 0, 0)) for conn in (1, 3)][-1]
    (incident,) = [each.incident for each in closed if isinstance(each, IncidentClosed)]
    assert (incident.started_at, incident.replace_ms, incident.total_ms) == (0.0, 6e4, 6.2e4)
    assert row["since_s"] == 60.0, "while the clock stands still, as of the last event"


def test_a_tracker_that_stops_again_and_again_gives_nobody_up() -> None:
    scenario = running(2)
    for _ in range(10):
        scenario.stall(60.0)
        scenario.tick(scenario.now + SETTINGS.detect_within)
    assert sorted(scenario.roster.members.slots) == [0, 1]
    assert scenario.tell(Stalled(0.0)) == []
