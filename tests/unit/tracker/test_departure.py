"""The rule by which a process that is out of its job and does not end is killed."""

import pytest

from ftcomm.protocol.messages import Leave
from ftcomm.protocol.position import START
from ftcomm_tracker.core.events import ConnectionLost, Supervised
from ftcomm_tracker.launcher.processes.departure import Departure, leave_grace_s
from tests.unit.tracker.roster_scenario import hello, running

Look = tuple[str, bool, bool, bool]
HERE: Look = ("joined", True, False, False)
LEFT: Look = ("left", False, True, False)
FORGOTTEN: Look = ("", False, False, False)
FORGOTTEN_AND_BUSY: Look = ("starting", False, True, False)
STARTING: Look = ("starting", False, False, False)
CUT_OFF: Look = ("joined", False, False, False)
FAILED_BY_OUR_ERROR: Look = ("starting", False, False, True)
ABOUT_TO_LEAVE: Look = ("joined", True, False, True)


@pytest.mark.parametrize(
    ("looks", "since"),
    [
        ((HERE, LEFT, LEFT), 1.0),
        ((HERE, LEFT, HERE), None),  # it has opened another communicator
        ((HERE, FORGOTTEN), 1.0),
        ((HERE, FORGOTTEN_AND_BUSY), None),
        ((STARTING, FORGOTTEN), None),  # a slow start, over the beginning of an attempt
        ((HERE, CUT_OFF), None),
        ((STARTING, FAILED_BY_OUR_ERROR), 1.0),
        ((HERE, ABOUT_TO_LEAVE), None),
    ],
)
def test_a_process_is_out_from_the_first_look_that_says_so(
    looks: tuple[Look, ...], since: float | None
) -> None:
    departure = Departure()
    for now, (process, connected, computing, failed) in enumerate(looks):
        departure.look(
            process, connected=connected, computing=computing, failed=failed, now=float(now)
        )
    assert departure.since == since
    assert departure.is_overdue(5.0, 5.9) is False
    assert departure.is_overdue(5.0, 6.0) is (since is not None)


def test_the_next_process_has_time_to_start_before_its_place_is_given_up() -> None:
    assert [leave_grace_s(600.0), leave_grace_s(15.0)] == [30.0, 5.0]


@pytest.mark.parametrize(("group", "at_the_end"), [(71, "left"), (99, "joined")])
def test_the_tracker_tells_a_launcher_that_its_process_has_left(
    group: int, at_the_end: str
) -> None:
    """A process of another group is none that the launcher could kill."""
    scenario = running()
    seen = []

    def look() -> None:
        seen.append(scenario.roster.standing_of("w1", 1).process)

    look()
    scenario.tell(ConnectionLost(2, "connection reset"))
    scenario.tell(Supervised("w1", "h", 71, 0.0))
    look()
    scenario.joined(3, hello("w1", "b", group=group))
    look()
    scenario.tell_said(3, Leave("TimeoutError: no data", START))
    look()
    scenario.tell(Supervised("w1", "h", 0, 0.0))
    look()
    assert seen == ["", "starting", "joined", at_the_end, ""]
