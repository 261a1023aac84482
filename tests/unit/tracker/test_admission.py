"""Scenarios: who is admitted, who is fenced, and what no honest worker says."""

from dataclasses import replace
from typing import Any

import pytest

from ftcomm import __version__
from ftcomm.config.job_settings import MAX_SPARES
from ftcomm.protocol.codec import Decoder
from ftcomm.protocol.durable.store_messages import Marked, ObjectOrder, ObjectWritten
from ftcomm.protocol.field_types import (
    MAX_ADDRESS,
    MAX_CONTROL_FRAME,
    MAX_NAME,
    MAX_ROUTES,
    MAX_WORLD_SIZE,
)
from ftcomm.protocol.member_deltas import MEMBERS_PER_DELTA, MemberDeltaWriter
from ftcomm.protocol.message_splitting import MAX_RUNS
from ftcomm.protocol.messages import (
    AskCalls,
    Blocked,
    FatalDecision,
    Fetch,
    Fetched,
    Heartbeat,
    Hello,
    LocalFetch,
    Member,
    Mismatch,
    Plan,
    Refused,
    Revoke,
    Route,
    Settled,
    Suspect,
    Welcome,
    WorkerMessage,
)
from ftcomm.protocol.position import MAX_SEQNO, PRELUDE, START, Position, PositionRange
from ftcomm.protocol.signature import Kind, Signature
from ftcomm_tracker.core.admission import MAX_INCARNATIONS_AHEAD
from ftcomm_tracker.core.events import ConnectionLost as ConnLost
from ftcomm_tracker.core.events import (
    Disconnect,
    Said,
)
from ftcomm_tracker.core.mismatch_inquiry import ANSWER_WITHIN_S
from ftcomm_tracker.core.relay_routing import REPAIRED_AFTER
from ftcomm_tracker.core.roster import JobState
from tests.unit.tracker.roster_scenario import (
    SETTINGS,
    ScenarioRun,
    at,
    decisions,
    formed,
    hello,
    names,
    report,
    running,
    running_with_store,
)


def blocked(number: int, position: Position, kind: Kind) -> Heartbeat:
    waiting = Blocked(Signature(kind).encode(), "train.py:7", (0,), 300)
    return Heartbeat(number, 1, position, waiting)


def test_a_worker_of_another_release_is_refused_and_both_are_named() -> None:
    """Its bits may differ, though its messages do not."""
    scenario = ScenarioRun(1)
    assert scenario.joined(1, hello("w0", release="0.2.7")) == [
        (
            1,
            Refused(
                "ProtocolVersionError",
                f"worker w0 is ftcomm 0.2.7, its tracker ftcomm {__version__}",
            ),
        )
    ]
    assert names(scenario.joined(2, hello("w0")))[0] == (2, "Welcome")


def test_two_blocked_ranks_that_disagree_are_found_behind_a_root_that_ran_ahead() -> None:
    scenario = running(3)
    scenario.said(1, blocked(1, at(0, 2), Kind.BARRIER))
    scenario.said(2, blocked(1, at(0, 1), Kind.BARRIER))
    scenario.said(3, blocked(1, at(0, 1), Kind.ALLGATHER))
    told = decisions(scenario.tick(ANSWER_WITHIN_S))
    assert [told[conn].error for conn in (1, 2, 3)] == ["CollectiveMismatchError"] * 3
    assert told[1].position == at(0, 1)
    assert "rank 1 called barrier() at train.py:7 but rank 2 called all" in told[1].cause


def test_blocked_ranks_that_disagree_are_found_when_the_last_has_come_back_to_a_new_tracker() -> (
    None
):
    """They say so at once, and again only after a tenth of `detect_within`."""
    scenario = ScenarioRun(durable=running(3).roster.durable)
    processes = [hello(f"w{r}", incarnation=1, plan_epoch=1, revoke_epoch=1) for r in range(3)]
    for conn, kind in ((1, Kind.BARRIER), (2, Kind.ALLGATHER)):
        scenario.joined(conn, processes[conn - 1])
        scenario.said(conn, blocked(1, START, kind))
    sent = scenario.joined(3, processes[2])
    assert [conn for conn, told in sent if isinstance(told, AskCalls)] == [1, 2, 3]
    told = decisions(scenario.tick(ANSWER_WITHIN_S))
    assert [told[conn].error for conn in (1, 2, 3)] == ["CollectiveMismatchError"] * 3


def test_a_process_that_cannot_be_does_not_use_up_the_processes_of_its_worker() -> None:
    scenario = running()
    number = MAX_INCARNATIONS_AHEAD + 2
    ((_, refused),) = scenario.joined(3, hello("w1", "b", incarnation=number))
    assert isinstance(refused, Refused)
    assert refused.reason == "worker w1 says that it is incarnation 10002; the tracker knows of 1"
    assert names(scenario.joined(4, hello("w1", "c")))[:2] == [(2, "Fenced"), (4, "Welcome")]


def test_the_largest_plan_fits_its_frames() -> None:
    """A plan that could be made, and not sent, would end the tracker at every start again."""
    size, last = MAX_WORLD_SIZE, MAX_WORLD_SIZE - 1
    ranks = tuple(range(size))
    member = Member(last, "w" * MAX_NAME, 2**32 - 1, "h" * MAX_NAME, "a" * MAX_ADDRESS, 65535)
    plan = Plan(
        epoch=2**32 - 1,
        rank=last,
        frontier=at(2**31 - 1, MAX_SEQNO),
        prelude_length=MAX_SEQNO,
        commit=2**31 - 1,
        load=2**31 - 1,
        load_from=ranks,
        fetches=(Fetch(last, PositionRange(2**31 - 1, MAX_SEQNO, MAX_SEQNO, size)),) * MAX_RUNS,
        locals=(LocalFetch(last, last),) * size,
        routes=(Route(last, last, last),) * MAX_ROUTES,
        members=(member,) * size,
        grouping=ranks,
    )
    frames = MemberDeltaWriter().frames(plan, ())
    assert len(frames) == size // MEMBERS_PER_DELTA + 1
    *member_deltas, rest = frames
    assert max(map(len, member_deltas)) <= MAX_CONTROL_FRAME
    assert Decoder().feed(rest) == [replace(plan, members=(), grouping=())]


def fail_links(
    scenario: ScenarioRun, epoch: int, until: float, recovery_s: float = 0.0
) -> tuple[int, list[FatalDecision]]:
    """Rank 0 loses rank 1 in plan after plan; gives the next epoch, and verdicts if any.

    A plan comes `recovery_s` seconds after its epoch has begun.
    """
    while scenario.now < until:
        for conn in (1, 2, 1, 2):
            scenario.now += SETTINGS.detect_within / 4
            scenario.said(conn, Heartbeat(epoch, epoch, START))
        sent = scenario.said(1, Suspect(epoch, (1,), "cannot connect"))
        verdicts = [message for _, message in sent if isinstance(message, FatalDecision)]
        epoch += 1
        if verdicts:
            return epoch, verdicts
        for _ in range(round(recovery_s / (SETTINGS.detect_within / 4))):
            scenario.now += SETTINGS.detect_within / 4
            for conn in (1, 2):
                scenario.said(conn, Heartbeat(epoch, epoch - 1, START))
        report_halves(scenario, epoch)
    return epoch, []


def report_halves(scenario: ScenarioRun, epoch: int) -> None:
    """Each holds what the other lacks: neither can be given up."""
    for seqno in (0, 1):
        scenario.said(
            seqno + 1, report(epoch, at(-1, 2), runs=(PositionRange(-1, seqno, seqno + 1),))
        )


def test_links_that_keep_failing_without_any_progress_end_the_job_in_bounded_time() -> None:
    scenario = running()
    _, verdicts = fail_links(scenario, 1, 10 * SETTINGS.replace_within)
    assert [v.error for v in verdicts] == ["RankLostError"] * 2
    assert "links keep failing: rank 0 lost its link to rank 1" in verdicts[0].cause
    assert scenario.now <= SETTINGS.replace_within + 2 * SETTINGS.detect_within


def test_one_link_failure_ends_no_job_that_waits_for_no_replacement() -> None:
    """`local_group`'s are such jobs: a lost link is no lost worker."""
    scenario = ScenarioRun(2, settings=replace(SETTINGS, replace_within=0.0))
    formed(scenario, 2)
    assert names(scenario.said(1, Suspect(1, (1,), "reset"))) == [(1, "Revoke"), (2, "Revoke")]
    report_halves(scenario, 2)
    _, verdicts = fail_links(scenario, 2, 10 * SETTINGS.detect_within)
    assert [v.error for v in verdicts] == ["RankLostError"] * 2


def test_links_that_keep_failing_end_the_job_though_each_recovery_takes_long() -> None:
    """As where each epoch is recorded in a slow store; the limit began anew with each epoch."""
    scenario = running()
    recovery_s = 4 * SETTINGS.detect_within
    _, verdicts = fail_links(scenario, 1, 10 * SETTINGS.replace_within, recovery_s)
    assert [v.error for v in verdicts] == ["RankLostError"] * 2
    epoch_s = recovery_s + SETTINGS.detect_within  # in the first one the job goes on
    assert scenario.now <= SETTINGS.replace_within + 2 * epoch_s


def test_links_that_fail_before_a_plan_has_lasted_end_the_job_however_slowly() -> None:
    scenario = running()
    each_s = (REPAIRED_AFTER - 1) * SETTINGS.detect_within
    for epoch in range(1, 10):
        wait(scenario, epoch, each_s)
        scenario.said(1, Suspect(epoch, (1,), "cannot connect"))
        report_halves(scenario, epoch + 1)
    verdict = scenario.roster.durable.fatal_decision
    assert verdict is not None
    assert (verdict.error, "links keep failing" in verdict.cause) == ("RankLostError", True)


@pytest.mark.parametrize("fetched", [(1, 2), (2,)], ids=["idle", "while one fetches for long"])
def test_links_that_fail_in_plans_that_have_lasted_end_no_job(fetched: tuple[int, ...]) -> None:
    """Such as those of an idle network, while a rank computes for an hour."""
    scenario = running()
    for epoch in range(1, 10):
        wait(scenario, epoch, (REPAIRED_AFTER + 1) * SETTINGS.detect_within)
        scenario.said(1, Suspect(epoch, (1,), "reset"))
        report_halves(scenario, epoch + 1)
        for conn in fetched:
            scenario.said(conn, Fetched(epoch + 1))
    assert scenario.now > SETTINGS.replace_within
    assert scenario.roster.state is JobState.RUNNING


def wait(scenario: ScenarioRun, epoch: int, seconds: float) -> None:
    """Both ranks send heartbeats for so long, and the links' time passes a little later."""
    for _ in range(round(4 * seconds / SETTINGS.detect_within)):
        scenario.now += SETTINGS.detect_within / 4
        for conn in (1, 2):
            scenario.said(conn, Heartbeat(epoch, epoch, START))
    scenario.now += SETTINGS.detect_within / 5


def test_a_new_process_is_not_charged_with_the_links_of_the_one_before_it() -> None:
    scenario = running()
    epoch, verdicts = fail_links(scenario, 1, SETTINGS.replace_within - SETTINGS.detect_within)
    assert not verdicts
    scenario.joined(2, hello("w1", process="b"))
    epoch += 1
    report_halves(scenario, epoch)
    _, verdicts = fail_links(scenario, epoch, SETTINGS.replace_within + 2 * SETTINGS.detect_within)
    assert not verdicts


def test_a_process_whose_place_went_to_a_spare_is_fenced_when_it_comes_back() -> None:
    scenario = running()
    scenario.joined(9, hello("spare"))
    scenario.tell(ConnLost(2, "connection reset"))
    assert [place.worker_id for place in scenario.roster.durable.places] == ["w0", "spare"]
    back = scenario.joined(3, hello("w1", incarnation=1, plan_epoch=1, revoke_epoch=1))
    assert names(back) == [(3, "Fenced")]


def test_a_spare_that_reconnects_is_still_a_spare() -> None:
    scenario = running()
    scenario.joined(9, hello("spare"))
    scenario.tell(ConnLost(9, "connection reset"))
    assert names(scenario.joined(10, hello("spare", incarnation=1))) == [(10, "Welcome")]


def test_a_second_link_failure_long_after_the_first_is_a_new_beginning() -> None:
    scenario = running()
    scenario.said(1, Suspect(1, (1,), "reset"))
    scenario.said(1, report(2))
    scenario.said(2, report(2))
    while scenario.now < 2 * SETTINGS.replace_within:  # all ranks compute for long
        scenario.now += SETTINGS.detect_within / 2
        for conn in (1, 2):
            scenario.said(conn, Heartbeat(1, 2, START))
    assert names(scenario.said(1, Suspect(2, (1,), "reset"))) == [(1, "Revoke"), (2, "Revoke")]


def test_what_cannot_be_is_refused_and_hurts_nobody_else() -> None:
    scenario = running()
    assert names(scenario.joined(7, hello("x", revoke_epoch=2**32 - 1))) == [(7, "Refused")]
    for impossible in (
        report(2, runs=(PositionRange(0, 5, 5),)),
        report(2, runs=(PositionRange(0, 0, 2**32),)),
        report(2, at(0, 2**31)),
        report(2, at(3, 0), committed=-1),
        report(2, Position(1, 0, 0), committed=0),
    ):
        other = running()
        other.said(1, Suspect(1, (1,), "reset"))
        effects = other.tell(Said(2, impossible))
        assert [e.conn for e in effects if isinstance(e, Disconnect)] == [2]
        assert other.roster.state is JobState.COLLECTING


WHOLE_WORLD = PositionRange(PRELUDE, 0, 2**32 - 1)


@pytest.mark.parametrize(
    "said",
    [
        Marked(1, b"d", 9, None, (), 2**32 - 1),
        Marked(1, b"d", 9, None, (WHOLE_WORLD,), 0),
        ObjectWritten(1, ObjectOrder("prelude"), "object", 1, b"", b"d", (WHOLE_WORLD,) * 1000),
    ],
)
def test_results_that_nobody_can_hold_are_not_counted_one_by_one(said: WorkerMessage) -> None:
    scenario = running_with_store()
    effects = scenario.tell(Said(2, said))
    assert [e.conn for e in effects if isinstance(e, Disconnect)] == [2]


def test_ids_with_odd_digits_sort_without_a_crash() -> None:
    scenario = ScenarioRun(2)
    scenario.joined(1, hello("²"))
    scenario.joined(2, hello("10"))
    assert [place.worker_id for place in scenario.roster.durable.places] == ["10", "²"]


def after_a_crash(behind: int = 0) -> ScenarioRun:
    """The tracker of epoch 1 has been restarted; its journal lost `behind` epochs."""
    durable = running().roster.durable
    return ScenarioRun(durable=replace(durable, epoch=durable.epoch - behind))


def returning(rank: int, epoch: int, **changes: Any) -> Hello:
    return hello(f"w{rank}", incarnation=1, plan_epoch=epoch, revoke_epoch=epoch, **changes)


def test_members_that_agree_on_an_epoch_which_the_journal_lost_go_on_in_it() -> None:
    scenario = after_a_crash(behind=1)
    for rank in (0, 1):
        scenario.joined(rank + 1, returning(rank, 1))
    assert (scenario.roster.state, scenario.roster.durable.epoch) == (JobState.RUNNING, 1)


def test_a_member_that_knows_a_later_epoch_than_the_journal_starts_one_above_it() -> None:
    scenario = after_a_crash()
    scenario.joined(1, returning(0, 1))
    scenario.now = SETTINGS.reattach_within
    scenario.said(1, Heartbeat(1, 1, START))
    assert scenario.roster.durable.epoch == 2
    sent = scenario.joined(2, returning(1, 7))
    assert [m.epoch for _, m in sent if isinstance(m, Revoke)] == [8, 8]


def test_a_process_whose_number_the_journal_lost_is_adopted() -> None:
    scenario = after_a_crash()
    sent = scenario.joined(1, hello("w0", "b", incarnation=2, plan_epoch=3, revoke_epoch=3))
    assert isinstance(sent[0][1], Welcome)
    assert sent[0][1].incarnation == 2
    assert dict(scenario.roster.durable.incarnations)["w0"] == 2


def test_pins_settle_after_a_tracker_restart_once_all_have_said_fetched() -> None:
    scenario = after_a_crash()
    scenario.joined(1, returning(0, 1))
    scenario.said(1, Fetched(1))
    scenario.joined(2, returning(1, 1))
    assert (1, Settled(1)) in scenario.said(2, Fetched(1))


def test_a_mismatch_of_an_older_epoch_ends_nothing() -> None:
    scenario = running()
    signature = Signature(Kind.BARRIER).encode()
    assert (
        scenario.said(1, Mismatch(0, at(9, 9), signature, "x", 1, at(9, 9), signature, "y")) == []
    )


def test_the_last_permitted_process_may_reconnect_before_its_welcome() -> None:
    scenario = ScenarioRun(1)
    limit = SETTINGS.max_incarnations
    for process in range(limit):
        scenario.joined(process + 1, hello("w0", str(process)))
    again = scenario.joined(limit + 1, hello("w0", str(limit - 1)))
    assert names(again)[0] == (limit + 1, "Welcome")
    assert names(scenario.joined(limit + 2, hello("w0", "one more"))) == [(limit + 2, "Refused")]


def die_and_come_back(scenario: ScenarioRun, process: int) -> list[tuple[int, Any]]:
    """Worker w1 loses its connection, and its next process joins."""
    scenario.tell(ConnLost(process + 1, "reset"))
    return scenario.joined(process + 2, hello("w1", str(process)))


def test_a_worker_that_dies_again_and_again_is_admitted_while_the_job_goes_on() -> None:
    scenario = running()
    for process in range(1, 2 * SETTINGS.max_incarnations):
        scenario.said(1, Heartbeat(process, 1, at(0, process)))
        assert (process + 2, "Welcome") in names(die_and_come_back(scenario, process))
    assert scenario.roster.durable.incarnation_of("w1") == 2 * SETTINGS.max_incarnations


def test_a_worker_that_dies_again_and_again_while_the_job_stands_still_ends_it_at_once() -> None:
    scenario = running()
    limit = SETTINGS.max_incarnations
    for process in range(1, limit):
        assert (process + 2, "Welcome") in names(die_and_come_back(scenario, process))
    sent = die_and_come_back(scenario, limit)
    reason = (
        "worker w1 has been started 100 times while the job stood at -1.0: so often it"
        " fails for a reason that stays"
    )
    assert (limit + 2, Refused("RankLostError", reason)) in sent
    told = [message for conn, message in sent if conn == 1 and isinstance(message, FatalDecision)]
    assert [(decision.error, decision.cause, decision.rank) for decision in told] == [
        ("RankLostError", reason, 1)
    ]


def test_a_process_too_many_ends_nothing_while_the_one_before_it_works() -> None:
    scenario = running()
    limit = SETTINGS.max_incarnations
    for process in range(1, limit):
        die_and_come_back(scenario, process)
    sent = scenario.joined(limit + 2, hello("w1", "one more"))
    assert (names(sent), scenario.roster.state) == (
        [(limit + 2, "Refused")],
        JobState.COLLECTING,
    )


def test_refused_spares_leave_no_trace_in_the_journal() -> None:
    scenario = running()
    for number in range(3 * MAX_SPARES):
        scenario.joined(100 + number, hello(f"spare{number}"))
    assert len(scenario.roster.durable.incarnations) <= 2 + MAX_SPARES
