"""A script may run for days: the checks of its history take work that grows with its length."""

import sys
from types import FrameType

from ftcomm_chaos.checkers import check
from ftcomm_chaos.history import History
from tests.unit.checkers.scenarios import LOAD, PRELUDE, ScenarioRun

MEMBERS = ["w0-1", "w1-1", "w2-1"]


def a_history(versions: int) -> History:
    scenario = ScenarioRun()
    for incarnation in MEMBERS:
        scenario.begin(incarnation)
    scenario.plan(1, dict.fromkeys(MEMBERS, PRELUDE), PRELUDE)
    scenario.call(MEMBERS, PRELUDE, "allreduce", 1)
    scenario.load(MEMBERS, LOAD, 1, 0)
    for version in range(versions):
        scenario.call(MEMBERS, [0, version, 0], "allreduce", 1)
        scenario.call(MEMBERS, [0, version, 1], "checkpoint", 1)
    scenario.call(MEMBERS, [0, versions, 0], "close", 1)
    for incarnation in MEMBERS:
        scenario.end(incarnation)
    return scenario.history()


def calls_to_check(history: History) -> int:
    """Functions called on the way, which is the same number each time."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found = check(history)
    finally:
        sys.setprofile(before)
    assert found == []
    return count


def test_a_history_of_four_times_the_length_takes_about_four_times_the_work() -> None:
    assert calls_to_check(a_history(400)) < 5 * calls_to_check(a_history(100))
