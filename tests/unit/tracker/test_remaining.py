"""The rule for what a worker leaves running, and what a tracker says of a start script's worker."""

import math

import pytest

from ftcomm.protocol.operator_messages import WorkerStatusReply
from ftcomm.protocol.position import START
from ftcomm_tracker.core.events import ConnectionLost, Supervised
from ftcomm_tracker.launcher.processes.remaining import remaining_grace_s
from ftcomm_tracker.launcher.remote_tracker import RemoteJob
from tests.unit.tracker.roster_scenario import hello, running


@pytest.mark.parametrize(
    ("status", "closed", "terminated", "expected"),
    [
        (0, True, False, 30.0),
        (0, False, False, 0.0),
        (1, True, False, 0.0),
        (-9, False, False, 0.0),
        (-15, False, True, math.inf),
        (0, True, True, math.inf),
    ],
)
def test_what_remains_may_run_on_after_a_good_end_and_sigterm(
    status: int, *, closed: bool, terminated: bool, expected: float
) -> None:
    found = remaining_grace_s(status, closed=closed, terminated=terminated, grace_s=30.0)
    assert found == expected


def test_the_tracker_names_the_process_that_joined() -> None:
    scenario = running()
    seen = []

    def look() -> None:
        standing = scenario.roster.standing_of("w1", 1)
        seen.append((standing.pid, standing.start))

    scenario.tell(ConnectionLost(2, "connection reset"))
    scenario.tell(Supervised("w1", "h", 71, 0.0))
    look()
    scenario.joined(3, hello("w1", "b", group=71, pid=72, start=5))
    look()
    scenario.tell(Supervised("w1", "h", 81, 0.0))  # said late: its process is connected
    look()
    assert seen == [(0, 0), (72, 5), (72, 5)]


def test_the_tracker_names_the_process_of_a_spare_that_no_launcher_has_named() -> None:
    scenario = running()
    scenario.joined(3, hello("s", spare=True, pid=9, start=7))
    standing = scenario.roster.standing_of("s", 1)
    assert (standing.pid, standing.start) == (9, 7)


@pytest.mark.trio
async def test_a_supervisor_takes_no_process_from_before_its_question() -> None:
    view = RemoteJob([("127.0.0.1", 1)], b"token", "0", patience_s=1)
    view._hear(
        WorkerStatusReply(1, True, False, False, START, "RUNNING", 1, 5000, False, pid=7, start=9)
    )
    before = view.standing_of("0", 0).pid
    view.post(Supervised("0", "h", 3, 0.0))
    view.post(Supervised("0", "h", 4, 0.0))
    assert (before, view.standing_of("0", 0).pid) == (7, 0)
