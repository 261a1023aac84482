"""The last will: a lost job writes its newest checkpoint before it ends (rule R16)."""

from ftcomm.protocol.durable.store_messages import (
    Marked,
    MarkVersion,
    ObjectOrder,
    ObjectWritten,
    WriteFailed,
    WriteObjects,
)
from ftcomm.protocol.messages import Heartbeat
from ftcomm_tracker.core.events import (
    ConnectionLost,
    Effect,
    GivenUp,
    PutVersion,
    StopAsked,
    VersionPut,
)
from ftcomm_tracker.core.roster import JobState
from tests.unit.tracker.roster_scenario import (
    ScenarioRun,
    at,
    decisions,
    running_with_store,
    sends,
)

STATE = ObjectOrder("state", -1, 0, 9)


def lost_job() -> tuple[ScenarioRun, list[Effect]]:
    """Two workers of a job with a store stand at 3.2; the launcher gives up w1."""
    scenario = running_with_store()
    for rank in range(2):
        scenario.said(rank + 1, Heartbeat(1, 1, at(3, 2)))
    scenario.tell(ConnectionLost(2, "its connection ended"))
    return scenario, scenario.tell(GivenUp("w1", "it was restarted too often"))


def test_the_newest_checkpoint_is_written_before_the_end() -> None:
    scenario, effects = lost_job()
    assert (sends(effects), decisions(effects)) == ([(1, MarkVersion(3))], {})
    ordered = scenario.said(1, Marked(3, b"d", 9, None, (), 0))
    assert ordered == [(1, WriteObjects(1, 3, 2, (STATE,)))]
    effects = scenario.tell_said(1, ObjectWritten(3, STATE, "name", 9, b"x", b"d"))
    assert [each.version for each in effects if isinstance(each, PutVersion)] == [3]
    told = decisions(scenario.tell(VersionPut(3)))
    assert (told[1].error, told[1].cause) == ("RankLostError", "it was restarted too often")


def test_the_end_is_told_when_nobody_can_write() -> None:
    scenario, _ = lost_job()
    scenario.said(1, WriteFailed(3, False, "not committed here"))
    assert scenario.roster.state is JobState.OVER


def test_the_end_is_told_when_something_is_missing() -> None:
    scenario, _ = lost_job()
    scenario.said(1, Marked(3, b"d", 9, (0,), (), 0))  # the local state of rank 1 is nowhere
    assert scenario.roster.state is JobState.OVER


def test_the_end_is_told_when_the_last_holder_is_gone() -> None:
    scenario, _ = lost_job()
    scenario.tell(ConnectionLost(1, "its connection ended"))
    assert scenario.roster.state is JobState.OVER


def test_the_end_waits_so_long_and_no_longer() -> None:
    scenario, _ = lost_job()
    assert scenario.roster.next_deadline() is not None
    scenario.tick(2.0)
    scenario.said(1, Heartbeat(2, 1, at(3, 2)))  # else it is silent for too long
    scenario.said(1, Marked(3, b"d", 9, None, (), 0))
    for second in range(4, 60, 4):
        scenario.tick(second)
        scenario.said(1, Heartbeat(second, 1, at(3, 2)))
    assert scenario.roster.state is not JobState.OVER
    assert decisions(scenario.tick(60.0))[1].error == "RankLostError"


def test_after_a_stop_of_the_tracker_the_last_will_goes_on_where_it_stood() -> None:
    """The messages that have come meanwhile are read only then."""
    scenario, _ = lost_job()
    scenario.said(1, Marked(3, b"d", 9, None, (), 0))
    assert decisions(scenario.stall(61.0)) == {}
    assert scenario.roster.state is not JobState.OVER
    effects = scenario.tell_said(1, ObjectWritten(3, STATE, "name", 9, b"x", b"d"))
    assert [each.version for each in effects if isinstance(each, PutVersion)] == [3]


def test_the_operator_need_not_wait() -> None:
    scenario, _ = lost_job()
    assert decisions(scenario.tell(StopAsked("lunch")))[1].error == "JobStoppedError"
