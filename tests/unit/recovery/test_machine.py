"""Stories of one worker's recovery machine: events in, effects out."""

from typing import Any

import pytest

from ftcomm import errors
from ftcomm.protocol.messages import (
    AllClosed,
    Closed,
    FatalDecision,
    Fenced,
    Fetch,
    Fetched,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Leave,
    Revoke,
    Settled,
    Suspect,
    Welcome,
)
from ftcomm.protocol.position import START, PositionRange
from ftcomm.recovery.archive.results import ENTRY_BYTES, KEEP_BY_ALL_BYTES, LogEntry
from ftcomm.recovery.events import (
    Attached,
    Beat,
    CheckpointFetched,
    CloseLinks,
    Detached,
    Effect,
    FetchEnded,
    Hangup,
    LinkDown,
    OwnCloseDone,
    Received,
    ResultFetched,
    SendControl,
    StartFetch,
    Wake,
)
from ftcomm.recovery.machine import (
    Checkpoint,
    Completion,
    Identity,
    MachineLimits,
    NextStep,
    WorkerMachine,
    WorkerState,
)
from tests.unit.recovery.worker_scenario import (
    CLOSE,
    LOAD,
    NONCE,
    SIG,
    a_member,
    at,
    execute,
    hear,
    members,
    plan,
)


def test_a_fresh_worker_introduces_itself_reports_nothing_and_runs() -> None:
    identity = Identity("w0", NONCE, "h", "127.0.0.1", 1000)
    core = WorkerMachine(identity, MachineLimits(), now=0.0)
    hello = Hello("w0", NONCE, 0, "h", "127.0.0.1", 1000, 0, 0, (), False, b"")
    assert core.handle(Attached(), now=0.0) == [SendControl(hello)]
    assert hear(core, Welcome("job", 1, 1, 2, 0, ())) == [Wake()]
    assert core.progress.begin(SIG, "t.py:1") is NextStep.WAIT
    close, report, wake = hear(core, Revoke(1, "the group is complete"))
    assert (close, wake) == (CloseLinks(), Wake())
    assert isinstance(report, SendControl)
    assert report.message == core.progress.report()
    assert hear(core, plan(1)) == [Wake()]
    assert core.progress.begin(SIG, "t.py:1") is NextStep.EXECUTE


def test_a_completed_position_is_in_the_log_and_never_executed_again() -> None:
    core = a_member()
    execute(core, "first")
    hear(core, Revoke(2, "someone died"))
    report = core.progress.report()
    assert (report.position, report.runs) == (at(-1, 1), (PositionRange(-1, 0, 1, 1),))


def test_a_result_that_arrives_after_the_report_is_discarded() -> None:
    core = a_member()
    core.progress.begin(SIG, "t.py:1")
    hear(core, Revoke(2, "someone died"))
    late = core.progress.complete(1, LogEntry(SIG, "late"), synchronising=True, now=0.0)
    assert late == (Completion.REVOKED, [])
    hear(core, plan(2))
    stale = core.progress.complete(1, LogEntry(SIG, "late"), synchronising=True, now=0.0)
    assert stale == (Completion.REVOKED, [])
    assert core.progress.begin(SIG, "t.py:1") is NextStep.EXECUTE


def test_a_lagging_rank_fetches_serves_itself_in_order_and_then_executes() -> None:
    core = a_member()
    hear(core, Revoke(2, "rank 1 died"))
    effects = hear(core, plan(2, at(-1, 2), fetches=(Fetch(1, PositionRange(-1, 0, 2)),)))
    assert effects == [StartFetch(2, 1, -1, (PositionRange(-1, 0, 2),)), Wake()]
    assert core.progress.begin(SIG, "t.py:1") is NextStep.WAIT
    assert core.handle(ResultFetched(2, START, SIG, "a"), now=0.0) == [Wake()]
    assert core.progress.begin(SIG, "t.py:1") == LogEntry(SIG, "a")
    assert core.progress.replay(now=0.0) is Completion.DONE
    core.handle(ResultFetched(2, at(-1, 1), SIG, "b"), now=0.0)
    assert core.handle(FetchEnded(2, 1), now=0.0) == [SendControl(Fetched(2)), Wake()]
    assert core.progress.begin(SIG, "t.py:2") == LogEntry(SIG, "b")
    assert core.progress.replay(now=0.0) is Completion.DONE
    assert core.progress.begin(SIG, "t.py:3") is NextStep.EXECUTE


def test_a_broken_fetch_is_a_suspicion_of_its_source() -> None:
    core = a_member()
    hear(core, Revoke(2, "rank 1 died"))
    hear(core, plan(2, at(-1, 2), fetches=(Fetch(1, PositionRange(-1, 0, 2)),)))
    effects = core.handle(FetchEnded(2, 1, "connection reset"), now=0.0)
    suspect = Suspect(2, (1,), "while fetching results: connection reset")
    assert effects == [SendControl(suspect), Wake()]


def test_a_suspicion_stops_execution_and_is_repeated_to_a_new_tracker() -> None:
    core = a_member()
    effects = core.handle(LinkDown(1, 1, "reset"), now=0.0)
    assert effects == [SendControl(Suspect(1, (1,), "reset")), Wake()]
    assert core.progress.begin(SIG, "t.py:1") is NextStep.WAIT
    (hello,) = core.handle(Attached(), now=1.0)
    assert isinstance(hello, SendControl)
    assert isinstance(hello.message, Hello)
    assert (hello.message.suspects, hello.message.plan_epoch) == ((1,), 1)


def test_an_old_plan_and_an_old_revoke_change_nothing() -> None:
    core = a_member()
    hear(core, Revoke(3, "someone died"))
    assert hear(core, plan(2)) == []
    assert hear(core, Revoke(2, "late")) == []
    assert (core.view.state, core.view.epoch, core.view.revoke_epoch) == (WorkerState.STOPPED, 1, 3)


def test_checkpoint_commits_when_all_were_seen_to_hold_it() -> None:
    core = a_member()
    assert core.progress.begin_load(LOAD, "t.py:1") is NextStep.EXECUTE
    assert core.progress.complete_load(1, "w0", b"", now=0.0) is Completion.DONE
    execute(core, "g")
    assert core.progress.offer_checkpoint("w1", b"d") == 1
    assert core.archive.committed is not None
    assert (core.archive.committed.version, core.progress.position) == (0, at(0, 1))
    assert core.progress.complete_checkpoint(1, now=0.0) == (Completion.DONE, ["g"])
    assert (
        core.archive.committed.version,
        core.progress.position,
        core.archive.tentative,
        core.progress.is_quiescent,  # the next call takes the fast path
    ) == (1, at(1, 0), None, True)


def test_a_plan_commits_a_tentative_version_or_leaves_it_tentative() -> None:
    core = a_member()
    core.progress.begin_load(LOAD, "t.py:1")
    core.progress.complete_load(1, "w0", b"", now=0.0)
    core.progress.offer_checkpoint("w1", b"d")
    hear(core, Revoke(2, "rank 1 died"))
    hear(core, plan(2, at(0, 0)))
    assert core.progress.position == at(0, 0)
    hear(core, Revoke(3, "rank 1 died again"))
    hear(core, plan(3, at(1, 0), commit=1))
    assert core.progress.position == at(1, 0)


def test_a_restarted_worker_loads_what_the_plan_gives_it() -> None:
    source = {"load": 4, "load_from": (1,), "prelude_length": 0}
    core = a_member(at(4, 0), **source)
    assert core.progress.begin_load(LOAD, "t.py:1") is NextStep.WAIT
    core.handle(CheckpointFetched(1, 4, "w4"), now=0.0)
    core.handle(FetchEnded(1, 1), now=0.0)
    loaded = core.progress.begin_load(LOAD, "t.py:1")
    assert not isinstance(loaded, NextStep)
    assert (loaded.version, loaded.value) == (4, "w4")
    assert core.progress.replay_load(loaded, now=0.0) is Completion.DONE
    assert core.progress.position == at(4, 0)


def test_a_stopped_process_hears_the_tracker_before_it_completes_anything() -> None:
    core = a_member()
    core.progress.begin(SIG, "t.py:1")
    entry = LogEntry(SIG, "x")
    late = core.progress.complete(1, entry, synchronising=True, now=4.0)
    assert late == (Completion.CONFIRM_FIRST, [])
    heartbeat = Heartbeat(1, 1, START, None, 77)
    assert core.handle(Beat(log_bytes=77), now=4.0) == [SendControl(heartbeat)]
    assert (
        core.progress.complete(1, entry, synchronising=True, now=4.0)[0] is Completion.CONFIRM_FIRST
    )
    assert hear(core, HeartbeatAck(1), 4.0) == [Wake()]
    assert core.progress.complete(1, entry, synchronising=True, now=4.0)[0] is Completion.DONE


def test_an_answer_to_a_heartbeat_from_before_the_stop_is_not_being_heard() -> None:
    core = a_member()
    core.handle(Beat(), now=1.0)
    core.handle(Beat(), now=9.0)  # the second, after the stop
    assert hear(core, HeartbeatAck(1), 9.0) == []
    outcome, _ = core.progress.complete(
        core.view.epoch, LogEntry(SIG, 1), synchronising=True, now=9.0
    )
    assert outcome is Completion.CONFIRM_FIRST
    assert hear(core, HeartbeatAck(2), 9.0) == [Wake()]


def test_a_welcome_to_a_hello_from_before_the_stop_is_not_being_heard() -> None:
    core = a_member()
    core.handle(Attached(), now=0.1)
    core.handle(Beat(), now=4.0)
    hear(core, Welcome("job", 1, 1, 2, 1, ()), 4.0)
    core.progress.begin(SIG, "t.py:1")
    outcome, _ = core.progress.complete(1, LogEntry(SIG, "x"), synchronising=True, now=4.0)
    assert outcome is Completion.CONFIRM_FIRST


def test_replay_proves_nothing() -> None:
    core = a_member(keep_by_all=0)
    hear(core, Revoke(2, "rank 3 died"))
    group = {"members": members(count=4), "grouping": (0, 0, 0, 0)}  # no one keeps everything
    hear(core, plan(2, at(-1, 3), rank=1, fetches=(Fetch(0, PositionRange(-1, 0, 3)),), **group))
    for seqno in range(3):
        core.handle(ResultFetched(2, at(-1, seqno), SIG, "x"), now=0.0)
    core.handle(FetchEnded(2, 0), now=0.0)
    hear(core, Settled(2))
    for _ in range(3):
        core.progress.begin(SIG, "t.py:1")
        core.progress.replay(now=0.0)
    assert len(core.log) == 3


def test_fenced_is_final_and_local() -> None:
    core = a_member()
    assert hear(core, Fenced("a newer process has joined")) == [CloseLinks(), Wake(), Hangup()]
    with pytest.raises(errors.FencedError, match="a newer process has joined"):
        core.progress.begin(SIG, "t.py:1")
    assert core.handle(Beat(), now=0.0) == []


def test_the_first_error_sticks() -> None:
    core = a_member()
    hear(core, FatalDecision("CollectiveMismatchError", "ranks disagree", 1, at(-1, 0), 1))
    hear(core, Fenced("later"))
    with pytest.raises(errors.CollectiveMismatchError, match="ranks disagree"):
        core.progress.begin(SIG, "t.py:1")


def test_close_serves_until_all_have_closed() -> None:
    core = a_member()
    assert core.progress.begin(CLOSE, "t.py:9") is NextStep.EXECUTE
    assert core.progress.complete_close(1, LogEntry(CLOSE, None), now=0.0) is Completion.DONE
    assert core.handle(OwnCloseDone(), now=0.0) == [SendControl(Closed(0))]
    assert core.view.state is WorkerState.RUNNING
    [heard, *others] = hear(core, AllClosed(0))
    assert heard == SendControl(Leave("the job has finished", core.progress.position))
    assert others == [CloseLinks(), Wake(), Hangup()]
    assert core.view.state is WorkerState.FINISHED


def test_close_is_served_when_a_member_closed_and_then_left() -> None:
    core = a_member(members=members(1))
    assert core.progress.begin(CLOSE, "t.py:9") == LogEntry(CLOSE, None)
    assert core.progress.replay_close(now=0.0) is Completion.DONE
    assert core.progress.closed


def a_second_incarnation(version: int, prelude_length: int) -> WorkerMachine:
    """In epoch 1, with checkpoint `version` fetched, at the beginning of its prelude."""
    core = a_member(at(version, 0), prelude_length=prelude_length, load=version, load_from=(1,))
    core.handle(CheckpointFetched(1, version, f"w{version}"), now=0.0)
    core.handle(FetchEnded(1, 1), now=0.0)
    return core


def test_a_plan_between_the_look_and_the_load_makes_the_worker_look_again() -> None:
    core = a_second_incarnation(3, prelude_length=0)
    seen = core.progress.begin_load(LOAD, "t.py:1")
    assert isinstance(seen, Checkpoint)
    hear(core, Revoke(2, "someone died"))
    hear(core, plan(2, at(4, 0), prelude_length=0, commit=4, load=4, load_from=(1,)))
    assert core.progress.replay_load(seen, now=0.0) is Completion.REVOKED
    core.handle(CheckpointFetched(2, 4, "w4"), now=0.0)
    newer = core.progress.begin_load(LOAD, "t.py:1")
    assert isinstance(newer, Checkpoint)
    assert core.progress.replay_load(newer, now=0.0) is Completion.DONE
    assert core.progress.position == at(4, 0)


def test_a_prelude_that_is_longer_than_the_jobs_is_a_mismatch_not_a_wait() -> None:
    core = a_second_incarnation(2, prelude_length=0)
    assert core.progress.begin(SIG, "t.py:1") == LogEntry(LOAD, None)


def test_a_load_where_the_others_called_something_else_is_a_mismatch_not_a_wait() -> None:
    core = a_member(at(-1, 1), fetches=(Fetch(1, PositionRange(-1, 0, 1)),))
    core.handle(ResultFetched(1, START, SIG, "a"), now=0.0)
    core.handle(FetchEnded(1, 1), now=0.0)
    assert core.progress.begin_load(LOAD, "t.py:1") == LogEntry(SIG, "a")


def test_a_stopped_process_hears_the_tracker_before_it_replays_too() -> None:
    core = a_second_incarnation(2, prelude_length=0)
    seen = core.progress.begin_load(LOAD, "t.py:1")
    assert isinstance(seen, Checkpoint)
    assert core.progress.replay_load(seen, now=4.0) is Completion.CONFIRM_FIRST
    core.handle(Beat(), now=4.0)
    assert core.progress.replay_load(seen, now=4.0) is Completion.CONFIRM_FIRST
    hear(core, HeartbeatAck(1), now=4.0)
    assert core.progress.replay_load(seen, now=4.0) is Completion.DONE


def cut_off(core: WorkerMachine, *, until: float, blocked_ms: int = 0) -> list[Effect]:
    """One beat a second without the tracker; what the last of them came to."""
    core.handle(Detached("connection reset"), now=0.0)
    effects: list[Effect] = []
    second = 0.0
    while second <= until and core.view.state is not WorkerState.FAILED:
        effects = core.handle(Beat((1,) if blocked_ms else (), blocked_ms), now=second)
        second += 1.0
    return effects


def test_without_a_tracker_a_rank_that_waits_for_nobody_goes_on() -> None:
    core = a_member()
    assert cut_off(core, until=2000.0) == []
    execute(core, "a")


def test_a_rank_that_is_blocked_for_long_without_a_tracker_does_not_wait_for_ever() -> None:
    """The peer died before their link was made, and the job ended: nobody would ever tell it."""
    core = a_member()
    core.progress.begin(SIG, "t.py:1")
    assert cut_off(core, until=2000.0, blocked_ms=5000) == [CloseLinks(), Wake(), Hangup()]
    assert isinstance(core.view.error, errors.TrackerLostError)


def test_a_byte_in_between_shows_that_the_peer_processes() -> None:
    core = a_member()
    for _ in range(4):  # each wait is shorter than the tracker's time, all together are longer
        assert cut_off(core, until=400.0, blocked_ms=5000) == []
        core.handle(Beat(), now=400.0)
    assert core.view.error is None


def test_while_no_tracker_settles_the_plan_the_log_holds_its_share_and_calls_are_short() -> None:
    core = a_member(members=members(count=4), grouping=(0, 0, 0, 0), keep_by_all=0)
    for seqno in range(40):
        execute(core, str(seqno))
    assert core.progress.is_quiescent
    assert core.progress.report().runs == (PositionRange(-1, 0, 39, 2), PositionRange(-1, 39, 40))


def test_small_results_that_were_fetched_stay_as_those_that_were_executed_do() -> None:
    core = a_member(members=members(count=4), grouping=(0, 0, 0, 0))
    hear(core, Revoke(2, "rank 1 died"))
    fetches = (Fetch(1, PositionRange(-1, 0, 6)),)
    four = {"members": members(count=4), "grouping": (0, 0, 0, 0)}
    hear(core, plan(2, at(-1, 6), fetches=fetches, **four))
    for seqno in range(6):
        nbytes = KEEP_BY_ALL_BYTES + (seqno == 3)
        core.handle(ResultFetched(2, at(-1, seqno), SIG, "x", nbytes), now=0.0)
    core.handle(FetchEnded(2, 1), now=0.0)
    for _ in range(6):
        assert isinstance(core.progress.begin(SIG, "t.py:1"), LogEntry)
        assert core.progress.replay(now=0.0) is Completion.DONE
    execute(core, "6")
    execute(core, "7")
    assert core.progress.report().runs == (PositionRange(-1, 0, 3), PositionRange(-1, 4, 8))


def test_the_rest_of_a_prelude_that_is_left_out_is_kept_within_its_budget() -> None:
    four = {"members": members(count=4), "grouping": (0, 0, 0, 0)}
    core = a_member(keep_by_all=3 * ENTRY_BYTES, **four)
    hear(core, Revoke(2, "rank 1 died"))
    fetches = (Fetch(1, PositionRange(-1, 0, 6)),)
    order = plan(2, at(1, 0), prelude_length=6, load=1, load_from=(1,), fetches=fetches, **four)
    hear(core, order)
    core.handle(CheckpointFetched(2, 1, "state"), now=0.0)
    for seqno in range(6):
        core.handle(ResultFetched(2, at(-1, seqno), SIG, "x"), now=0.0)
    core.handle(FetchEnded(2, 1), now=0.0)
    assert isinstance(core.progress.begin(SIG, "t.py:1"), LogEntry)
    assert core.progress.replay(now=0.0) is Completion.DONE
    loaded = core.progress.begin_load(LOAD, "t.py:2")
    assert isinstance(loaded, Checkpoint)
    assert core.progress.replay_load(loaded, now=0.0) is Completion.DONE
    execute(core, "1.0")
    assert core.progress.report().runs == (
        PositionRange(-1, 0, 3),
        PositionRange(-1, 4, 5),
        PositionRange(1, 0, 1),
    )


def a_quiescent_member() -> WorkerMachine:
    core = a_member()
    for value in ("a", "b"):
        execute(core, value)
    assert core.progress.is_quiescent
    return core


@pytest.mark.parametrize(
    "event",
    [
        Beat(),
        Received(HeartbeatAck(1)),
        Received(Revoke(2, "somebody died")),
        LinkDown(1, 1, "reset"),
        Detached("gone"),
    ],
)
def test_whatever_is_heard_sends_the_next_call_the_long_way(event: Any) -> None:
    core = a_quiescent_member()
    position = core.progress.position
    core.handle(event, now=0.1)
    assert core.progress.complete_next(LogEntry(b"s" * 40, "c"), 0.1) is None
    assert core.progress.position == position


def test_a_process_that_did_not_run_for_a_while_completes_nothing_at_once() -> None:
    core = a_quiescent_member()
    assert (
        core.progress.complete_next(
            LogEntry(b"s" * 40, "c"), 0.51 * core.contact.limits.detect_within
        )
        is None
    )
    assert (
        core.progress.complete_next(
            LogEntry(b"s" * 40, "c"), 0.49 * core.contact.limits.detect_within
        )
        == []
    )


def test_a_member_that_is_behind_or_has_replayed_is_not_quiescent() -> None:
    assert not a_member(frontier=at(-1, 1)).progress.is_quiescent
    core = a_quiescent_member()
    core.progress.position = at(-1, 0)  # as one whose next results are in its log
    core.progress.replay(now=0.0)
    assert not core.progress.is_quiescent
