"""A closed member that has lost its connection alone, and holds what nobody else does."""

from ftcomm.protocol.messages import Bye, Plan, Run, Verdict
from ftcomm_tracker.core.events import Joined, Lost, Stalled
from ftcomm_tracker.core.roster import State
from tests.unit.tracker.roster_scenario import SETTINGS, Story, at, hello, report, running, sends

HELD = (Run(-1, 0, 2, 1),)  # the only collective of the job, and its close


def lost_without_the_closed_one() -> Story:
    """Worker w0 has closed and is away; w1 died before it closed, and its next life has nothing."""
    story = running()
    story.said(1, Bye(0))
    story.tell(Lost(2, "connection reset"))
    story.tell(Lost(1, "connection reset"))
    story.now = 1.0
    story.joined(3, hello("w1", "b"))
    story.said(3, report(2, caught_up=0))
    return story


def verdict_of(story: Story) -> Verdict | None:
    return story.roster.durable.verdict


def test_the_job_is_not_lost_while_it_may_come_back() -> None:
    story = lost_without_the_closed_one()
    assert (story.roster.state, verdict_of(story)) == (State.COLLECTING, None)
    assert story.roster.next_deadline() is not None
    waiting = story.roster.snapshot(1.0)["waiting_for"]
    assert waiting == ["worker w0 to come back, though it has closed"]

    story.now = 2.0
    story.tell(Joined(4, hello("w0", plan_epoch=1, revoke_epoch=1, closed=True)))
    sent = sends(story.tell_said(4, report(2, at(-1, 2), committed=-1, runs=HELD, closed=True)))
    plans = {conn: message for conn, message in sent if isinstance(message, Plan)}
    assert (story.roster.state, verdict_of(story), sorted(plans)) == (State.RUNNING, None, [3, 4])
    assert [fetch.source for fetch in plans[3].fetches] == [0]


def test_it_is_awaited_no_longer_than_a_worker_of_a_restarted_tracker() -> None:
    story = lost_without_the_closed_one()
    for beat in range(1, 8):  # w1 lives on
        story.now = 1.0 + 4.0 * beat
        story.tell_said(3, report(2, caught_up=0))
    assert verdict_of(story) is None
    story.tick(1.0 + SETTINGS.reattach_within)
    verdict = verdict_of(story)
    assert verdict is not None
    assert verdict.error == "JobLostError"


def test_a_tracker_that_was_stopped_waits_anew() -> None:
    story = lost_without_the_closed_one()
    story.now = 100.0
    story.tell(Stalled())
    assert verdict_of(story) is None
    for beat in range(1, 8):
        story.now = 100.0 + 4.0 * beat
        story.tell_said(3, report(2, caught_up=0))
    story.tick(100.0 + SETTINGS.reattach_within)
    assert verdict_of(story) is not None


def test_when_nobody_has_closed_the_job_is_lost_at_once() -> None:
    story = running()
    for conn in (1, 2):
        story.tell(Lost(conn, "connection reset"))
    for rank in (0, 1):
        story.joined(3 + rank, hello(f"w{rank}", "b"))
        story.said(3 + rank, report(2, caught_up=0))
    verdict = verdict_of(story)
    assert verdict is not None
    assert verdict.error == "JobLostError"
