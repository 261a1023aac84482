"""Stories of links that fail though both ends live: suspected, relayed, given up (rule R12)."""

import pytest

from ftcomm.protocol.messages import (
    Blocked,
    FatalDecision,
    Heartbeat,
    Plan,
    Refused,
    Revoke,
    Route,
    Suspect,
)
from ftcomm.protocol.position import START, Position, PositionRange
from ftcomm.protocol.signature import Kind, Signature
from ftcomm_tracker.core.events import ConnectionLost as ConnLost
from ftcomm_tracker.core.events import Note, Persist, Send
from ftcomm_tracker.core.relay_routing import REPAIRED_AFTER
from ftcomm_tracker.core.reporting.explain import explain
from ftcomm_tracker.core.reporting.lost_hosts import host_text, lost_hosts
from ftcomm_tracker.core.reporting.status import table
from ftcomm_tracker.core.roster import JobState
from tests.unit.tracker.roster_scenario import (
    SETTINGS,
    ScenarioRun,
    at,
    hello,
    names,
    report,
    running,
)
from tests.unit.tracker.test_explain import document

BARRIER = Signature(Kind.BARRIER).encode()
LONG_MS = int(SETTINGS.detect_within * 1000)
RUN = PositionRange(-1, 0, 1)


def blocked(
    epoch: int, step: int, *peers: int, ms: int = LONG_MS, position: Position = START
) -> Heartbeat:
    return Heartbeat(1, epoch, position, Blocked(BARRIER, "train.py:7", peers, ms, step))


def revokes(sent: list[tuple[int, object]]) -> list[Revoke]:
    return [message for _, message in sent if isinstance(message, Revoke)]


def plans(scenario: ScenarioRun, epoch: int, conns: tuple[int, ...]) -> list[Plan]:
    sent = [pair for conn in conns for pair in scenario.said(conn, report(epoch))]
    return [message for _, message in sent if isinstance(message, Plan)]


def pass_time(
    scenario: ScenarioRun,
    epoch: int,
    conns: tuple[int, ...],
    windows: int = 1,
    position: Position = START,
) -> None:
    """Let `windows` times `detect_within` go by with heartbeats."""
    for _ in range(2 * windows):
        scenario.now += SETTINGS.detect_within / 2
        for conn in conns:
            scenario.said(conn, Heartbeat(1, epoch, position))


def fails(scenario: ScenarioRun, epoch: int, conns: tuple[int, ...], other: int = 1) -> list[Plan]:
    """Rank 0's link to `other` fails in `epoch`; the plans of the next."""
    pass_time(scenario, epoch, conns)
    scenario.said(conns[0], Suspect(epoch, (other,), "cannot connect: timed out"))
    return plans(scenario, epoch + 1, conns)


def test_a_pair_that_fails_in_two_plans_running_is_relayed_by_a_third_rank() -> None:
    scenario = running(3)
    assert [plan.routes for plan in fails(scenario, 1, (1, 2, 3))] == [()] * 3
    assert [plan.routes for plan in fails(scenario, 2, (1, 2, 3))] == [(Route(0, 1, 2),)] * 3
    assert scenario.roster.snapshot(scenario.now)["routes"] == [
        {"ranks": [0, 1], "via": 2, "why": "cannot connect: timed out"}
    ]


def test_a_relay_that_fails_is_exchanged() -> None:
    scenario = running(4)
    for epoch in (1, 2):
        last = fails(scenario, epoch, (1, 2, 3, 4))
    assert last[0].routes == (Route(0, 1, 2),)
    assert fails(scenario, 3, (1, 2, 3, 4))[0].routes == (Route(0, 1, 3),)


def test_a_new_process_of_an_end_is_tried_without_a_relay() -> None:
    scenario = running(3)
    for epoch in (1, 2):
        fails(scenario, epoch, (1, 2, 3))
    scenario.tell(ConnLost(2, "reset"))
    scenario.joined(5, hello("w1", "b"))
    assert [plan.routes for plan in plans(scenario, 4, (1, 3, 5))] == [()] * 3


def test_a_link_that_works_for_a_while_between_two_failures_is_not_relayed() -> None:
    scenario = running(3)
    fails(scenario, 1, (1, 2, 3))
    pass_time(scenario, 2, (1, 2, 3), REPAIRED_AFTER)
    assert [plan.routes for plan in fails(scenario, 2, (1, 2, 3))] == [()] * 3


def test_a_link_that_an_end_waits_for_all_the_while_has_not_been_shown_to_work() -> None:
    """Rank 1 computes; rank 0 waits for it, and would not be told that the link carries nothing."""
    scenario = running(3)
    fails(scenario, 1, (1, 2, 3))
    for share in range(1, 2 * REPAIRED_AFTER + 1):
        scenario.now += SETTINGS.detect_within / 2
        scenario.said(1, blocked(2, 0, 1, ms=share * LONG_MS // 2))
        scenario.said(2, Heartbeat(1, 2, START))
        scenario.said(3, Heartbeat(1, 2, START))
    assert [plan.routes for plan in fails(scenario, 2, (1, 2, 3))] == [(Route(0, 1, 2),)] * 3


def test_without_a_third_rank_one_end_is_given_up_and_its_place_is_free() -> None:
    scenario = running(2)
    fails(scenario, 1, (1, 2))
    pass_time(scenario, 2, (1, 2))
    scenario.said(1, Suspect(2, (1,), "cannot connect: timed out"))
    scenario.said(1, report(3))
    ((conn, told),) = scenario.said(2, report(3))
    assert (conn, isinstance(told, Refused) and told.error) == (2, "EvictedError")
    assert "worker w1 (rank 1) and worker w0 (rank 0) cannot reach each other" in told.reason
    assert (scenario.roster.state, list(scenario.roster.members.empty_since)) == (
        JobState.COLLECTING,
        [1],
    )


def test_the_place_of_a_given_up_worker_counts_as_empty_since_its_links_began_to_fail() -> None:
    """Else a job that stands still would have the whole limit once more."""
    scenario = given_up()
    assert scenario.roster.members.empty_since == {1: SETTINGS.detect_within}


def test_that_one_is_given_up_is_journalled_before_it_is_told() -> None:
    """Else a tracker that dies in between would have it back, in the place that others gave up."""
    scenario = running(2)
    fails(scenario, 1, (1, 2))
    pass_time(scenario, 2, (1, 2))
    scenario.said(1, Suspect(2, (1,), "cannot connect: timed out"))
    scenario.said(1, report(3))
    effects = scenario.tell_said(2, report(3))
    told = [isinstance(e, Send) and isinstance(e.message, Refused) for e in effects].index(True)
    journalled = [e.durable.places[1].nonce for e in effects[:told] if isinstance(e, Persist)]
    assert journalled == [b""]


def test_a_rank_whose_own_calls_are_cut_short_is_not_taken_for_unreachable() -> None:
    """An error of the script's, twice and more, at one collective: no pair's link has failed."""
    scenario = running(2)
    for epoch in (1, 2, 3):
        pass_time(scenario, epoch, (1, 2))
        sent = scenario.said(1, Suspect(epoch, (0,), "a call was cut short by ValueError()"))
        words = "rank 0 needs new links: a call was cut short by ValueError()"
        assert revokes(sent) == [Revoke(epoch + 1, words)] * 2
        assert [plan.routes for plan in plans(scenario, epoch + 1, (1, 2))] == [()] * 2


def given_up() -> ScenarioRun:
    """Two workers; w1 has been given up in epoch 3 and waits to be replaced."""
    scenario = running(2)
    for epoch in (1, 2):
        fails(scenario, epoch, (1, 2))
    assert list(scenario.roster.members.empty_since) == [1]
    return scenario


def test_the_given_up_process_cannot_come_back_but_a_new_one_can() -> None:
    scenario = given_up()
    ((_, told),) = scenario.joined(3, hello("w1", incarnation=1, plan_epoch=2, revoke_epoch=3))
    assert isinstance(told, Refused)
    assert told.error == "EvictedError"
    assert names(scenario.joined(4, hello("w1", "b"))) == [(4, "Welcome"), (4, "Revoke")]
    assert [plan.epoch for plan in plans(scenario, 3, (1, 4))] == [3, 3]


def test_a_spare_takes_the_place_of_a_given_up_worker() -> None:
    scenario = running(2)
    fails(scenario, 1, (1, 2))
    pass_time(scenario, 2, (1, 2))
    scenario.joined(9, hello("spare"))
    scenario.said(1, Suspect(2, (1,), "cannot connect: timed out"))
    plans(scenario, 3, (1, 2))
    assert [place.worker_id for place in scenario.roster.durable.places] == ["w0", "spare"]
    assert [plan.epoch for plan in plans(scenario, 3, (9,))] == [3, 3]


def fail_twice(scenario: ScenarioRun, epoch: int, conns: tuple[int, ...]) -> None:
    """Ranks 0 and 1, of a plan to come, cannot reach each other in two plans."""
    plans(scenario, epoch, conns)
    fails(scenario, epoch, conns)
    fails(scenario, epoch + 1, conns)


def test_a_partner_that_fails_with_two_processes_is_given_up_itself() -> None:
    scenario = given_up()
    scenario.joined(4, hello("w1", "b"))
    fail_twice(scenario, 3, (1, 4))
    assert (scenario.roster.state, list(scenario.roster.members.empty_since)) == (
        JobState.COLLECTING,
        [0],
    )
    scenario.joined(5, hello("w0", "b"))
    assert [plan.epoch for plan in plans(scenario, 5, (4, 5))] == [5, 5]


def test_if_new_processes_of_both_cannot_reach_each_other_they_are_named_to_all() -> None:
    scenario = given_up()
    scenario.joined(4, hello("w1", "b"))
    fail_twice(scenario, 3, (1, 4))
    scenario.joined(5, hello("w0", "b"))
    plans(scenario, 5, (5, 4))
    fails(scenario, 5, (5, 4))
    pass_time(scenario, 6, (5, 4))
    scenario.said(5, Suspect(6, (1,), "cannot connect: timed out"))
    scenario.said(5, report(7))
    verdicts = [message for _, message in scenario.said(4, report(7))]
    assert [isinstance(v, FatalDecision) and v.error for v in verdicts] == ["RankLostError"] * 2
    assert "worker w0 (rank 0) and worker w1 (rank 1) cannot reach each other" in verdicts[0].cause


def test_a_partner_is_not_blamed_for_what_failed_before_a_plan_that_has_lasted() -> None:
    """Each end was given up once and replaced, the pair worked for long, and fails anew."""
    scenario = given_up()
    scenario.joined(4, hello("w1", "b"))
    fail_twice(scenario, 3, (1, 4))
    scenario.joined(5, hello("w0", "b"))
    plans(scenario, 5, (5, 4))
    pass_time(scenario, 5, (5, 4), REPAIRED_AFTER)
    for epoch in (5, 6):
        fails(scenario, epoch, (5, 4))
    assert (scenario.roster.state, list(scenario.roster.members.empty_since)) == (
        JobState.COLLECTING,
        [1],
    )


def test_a_parting_is_remembered_while_an_end_only_waits() -> None:
    """Rank 1's new process computes; that a plan lasts shows nothing of the link to rank 0."""
    scenario = given_up()
    scenario.joined(4, hello("w1", "b"))
    plans(scenario, 3, (1, 4))
    for share in range(1, 2 * REPAIRED_AFTER + 1):
        scenario.now += SETTINGS.detect_within / 2
        scenario.said(1, blocked(3, 0, 1, ms=share * LONG_MS // 2))
        scenario.said(4, Heartbeat(1, 3, START))
    for epoch in (3, 4):
        fails(scenario, epoch, (1, 4))
    assert list(scenario.roster.members.empty_since) == [0]


def test_the_end_that_a_relay_cannot_reach_is_given_up_the_lower_rank_though_it_is() -> None:
    """Ranks 0 and 1 blame each other, and rank 2, which relays, says that it is rank 0."""
    scenario = running(3)
    for epoch in (1, 2):
        fails(scenario, epoch, (1, 2, 3))
    for epoch in (3, 4):
        pass_time(scenario, epoch, (1, 2, 3))
        scenario.said(3, Suspect(epoch, (0,), "does not acknowledge what a relay sends"))
        plans(scenario, epoch + 1, (1, 2, 3))
    assert list(scenario.roster.members.empty_since) == [0]


def test_a_partner_that_alone_has_completed_something_is_not_given_up_later_either() -> None:
    scenario = given_up()
    scenario.joined(4, hello("w1", "b"))
    for epoch in (3, 4, 5):
        scenario.said(1, report(epoch, at(-1, 1), runs=(RUN,)))
        sent = scenario.said(4, report(epoch))
        scenario.said(4, Suspect(epoch, (0,), "reset"))
        pass_time(scenario, epoch, (1, 4), position=START)
    verdicts = [message for _, message in sent if isinstance(message, FatalDecision)]
    assert [verdict.error for verdict in verdicts] == ["RankLostError"] * 2


def test_the_death_of_a_relay_is_no_failure_of_the_pair() -> None:
    """Both ends say that they have lost each other before the tracker hears of the death."""
    scenario = running(3)
    for epoch in (1, 2):
        fails(scenario, epoch, (1, 2, 3))
    for epoch in (3, 4):
        relay = epoch  # its connection
        pass_time(scenario, epoch, (1, 2, relay))
        for conn, other in ((1, 1), (2, 0)):
            scenario.said(conn, Suspect(epoch, (other,), "the other end closed the connection"))
        scenario.tell(ConnLost(relay, "its connection ended"))
        scenario.joined(relay + 1, hello("w2", f"{relay}"))
        routes = [plan.routes for plan in plans(scenario, epoch + 1, (1, 2, relay + 1))]
        assert routes == [(Route(0, 1, 2),)] * 3


def test_nobody_is_given_up_while_the_job_goes_on() -> None:
    scenario = running(2)
    for epoch in (1, 2, 3):
        pass_time(scenario, epoch, (1, 2), position=at(-1, epoch))
        scenario.said(1, Suspect(epoch, (1,), "reset"))
        held = {"runs": (), "prelude_length": -1}
        scenario.said(1, report(epoch + 1, at(-1, epoch), **held))
        scenario.said(2, report(epoch + 1, at(-1, epoch), **held))
        assert scenario.roster.state is JobState.RUNNING


def test_nobody_is_given_up_where_the_job_goes_on_while_a_suspicion_is_held_back() -> None:
    """The second failure comes at once, and its epoch `detect_within` later."""
    scenario = running(2)
    pass_time(scenario, 1, (1, 2), position=at(-1, 1))
    for epoch in (1, 2):
        scenario.said(1, Suspect(epoch, (1,), "reset"))
        pass_time(scenario, epoch, (1, 2), 2, position=at(-1, epoch))
        held = (PositionRange(-1, 0, epoch),)  # by both: each can be done without
        for conn in (1, 2):
            scenario.said(conn, report(epoch + 1, at(-1, epoch), runs=held))
    assert (scenario.roster.state, scenario.roster.members.empty_since) == (JobState.RUNNING, {})


def test_who_alone_has_completed_something_is_not_given_up() -> None:
    """Rank 1 stands one collective ahead of rank 0, the higher rank though it is: rank 0 goes."""
    scenario = running(2)
    for epoch in (1, 2, 3):
        pass_time(scenario, epoch, (1, 2))
        scenario.said(1, Suspect(epoch, (1,), "reset"))
        scenario.said(1, report(epoch + 1))
        scenario.said(2, report(epoch + 1, at(-1, 1), runs=(RUN,)))
    assert list(scenario.roster.members.empty_since) == [0]


def test_who_keeps_the_others_from_committing_can_be_given_up() -> None:
    """Without it they have come farther, not less far: they all hold the checkpoint."""
    scenario = running(2)
    for epoch in (1, 2):
        pass_time(scenario, epoch, (1, 2))
        scenario.said(1, Suspect(epoch, (1,), "reset"))
        held = {"runs": (RUN, PositionRange(0, 0, 1)), "prelude_length": 1, "committed": 0}
        scenario.said(1, report(epoch + 1, at(0, 1), tentative=1, digest=b"d" * 16, **held))
        scenario.said(2, report(epoch + 1, at(0, 1), **held))
    assert list(scenario.roster.members.empty_since) == [1]


def test_where_neither_end_can_be_given_up_the_link_and_the_relay_take_turns() -> None:
    """Rank 2 has to replay two results, of which each end holds one alone."""
    scenario = running(3)
    for epoch in range(1, 8):
        pass_time(scenario, epoch, (1, 2, 3))
        scenario.said(1, Suspect(epoch, (1,), "reset"))
        sent = scenario.said(1, report(epoch + 1, at(-1, 2), runs=(PositionRange(-1, 0, 1),)))
        sent += scenario.said(2, report(epoch + 1, at(-1, 2), runs=(PositionRange(-1, 1, 2),)))
        sent += scenario.said(3, report(epoch + 1))
        routes = [message.routes for _, message in sent if isinstance(message, Plan)]
        assert routes == [(Route(0, 1, 2),) if epoch in (2, 3, 5, 7) else ()] * 3


def test_a_starving_pair_is_suspected_though_a_third_rank_computes() -> None:
    scenario = running(3)
    scenario.said(1, blocked(1, 1, 1))
    (revoke,) = {message.reason for message in revokes(scenario.said(2, blocked(1, 1, 0)))}
    assert revoke == "silent link: ranks 0 and 1 wait, and nothing comes between them"


def test_ranks_that_wait_for_messages_are_suspected_of_nothing() -> None:
    """A message need never be sent; its two ranks watch its link themselves."""
    scenario = running(3)
    for conn, peer in ((1, 1), (2, 0)):
        receive = Signature(Kind.RECV, root=peer).encode()
        waits = Blocked(receive, "train.py:9", (peer,), LONG_MS)
        assert revokes(scenario.said(conn, Heartbeat(1, 1, START, waits))) == []


def test_nobody_is_suspected_while_the_awaited_rank_computes() -> None:
    scenario = running(3)
    scenario.said(3, Heartbeat(1, 1, START))
    scenario.now = SETTINGS.detect_within * 0.9
    scenario.said(1, blocked(1, 2, 1))
    scenario.said(2, blocked(1, 1, 2))
    scenario.said(3, Heartbeat(2, 1, START))
    scenario.now = SETTINGS.detect_within * 1.5
    assert revokes(scenario.said(1, blocked(1, 2, 1, ms=2 * LONG_MS))) == []
    assert revokes(scenario.said(2, blocked(1, 1, 2, ms=2 * LONG_MS))) == []


def test_a_root_that_ran_ahead_and_computes_has_sent_what_is_awaited() -> None:
    scenario = running(2)
    scenario.said(1, Heartbeat(1, 1, at(-1, 1)))
    scenario.now = SETTINGS.detect_within * 0.9
    scenario.said(1, Heartbeat(2, 1, at(-1, 1)))
    assert revokes(scenario.said(2, blocked(1, 0, 0))) == []  # it may have sent it just now
    scenario.now = SETTINGS.detect_within
    assert len(revokes(scenario.said(2, blocked(1, 0, 0)))) == 2


@pytest.mark.parametrize("ms", [0, LONG_MS - 1])
def test_a_short_wait_is_no_silence(ms: int) -> None:
    scenario = running(2)
    scenario.said(1, blocked(1, 1, 1, ms=ms))
    assert revokes(scenario.said(2, blocked(1, 1, 0, ms=ms))) == []


def test_silent_links_take_one_epoch_per_detect_within() -> None:
    scenario = running(2)
    scenario.said(1, blocked(1, 1, 1))
    assert len(revokes(scenario.said(2, blocked(1, 1, 0)))) == 2
    plans(scenario, 2, (1, 2))
    scenario.said(1, blocked(2, 1, 1))
    assert revokes(scenario.said(2, blocked(2, 1, 0))) == []  # held back
    for share in (0.9, 1.0):
        scenario.now = share * SETTINGS.detect_within
        sent = [pair for conn in (1, 2) for pair in scenario.said(conn, blocked(2, 1, 2 - conn))]
        assert len(revokes(sent)) == (0 if share < 1 else 2)


def test_people_see_who_is_relayed_by_whom_and_why() -> None:
    scenario = running(3)
    for epoch in (1, 2):
        fails(scenario, epoch, (1, 2, 3))
    server = {"address": "10.0.0.5:4711", "uptime_s": 20.0, "pid": 7, "state_dir": "/s"}
    document = {**scenario.roster.snapshot(scenario.now), **server}
    seen = "rank 2 relays between ranks 0 and 1: cannot connect: timed out"
    assert seen in table(document).splitlines()
    (finding,) = [finding for finding in explain(document) if finding.kind == "relayed"]
    assert (finding.waiting, finding.what) == (
        False,
        "ranks 0 and 1 cannot reach each other: rank 2 relays",
    )


def test_a_plan_in_which_a_rank_still_fetches_does_not_show_that_links_work() -> None:
    """Count no plan as lasting while a rank fetches, since its dials take seconds."""
    scenario = running(3)
    for epoch in (1, 2):
        pass_time(scenario, epoch, (1, 2, 3), REPAIRED_AFTER)
        scenario.said(1, Suspect(epoch, (1,), "while fetching results: no answer came in time"))
        scenario.said(1, report(epoch + 1))
        for conn in (2, 3):
            held = report(epoch + 1, Position(0, -1, 1), runs=(RUN,))
            last = scenario.said(conn, held)
        assert scenario.roster.epochs.awaiting_fetch == {0}
    assert [message.routes for _, message in last if isinstance(message, Plan)] == [
        (Route(0, 1, 2),)
    ] * 3


# --- hosts ----------------------------------------------------------------------------------------

CONNS = tuple(range(1, 9))


def four_hosts() -> ScenarioRun:
    """Eight workers, two on each of the hosts a to d, in epoch 1."""
    scenario = ScenarioRun(8)
    for rank in range(8):
        scenario.joined(rank + 1, hello(f"w{rank}", host="abcd"[rank // 2]))
    assert plans(scenario, 1, CONNS)
    return scenario


def starve(scenario: ScenarioRun, epoch: int, **ms_of: int) -> list[Revoke]:
    """Heartbeats of pairs that have been blocked on each other, as ``r0_2=LONG_MS``."""
    sent = []
    for name, ms in ms_of.items():
        a, b = map(int, name[1:].split("_"))
        for one, other in ((a, b), (b, a)):
            sent += scenario.said(one + 1, blocked(epoch, 1, other, ms=ms))
    return revokes(sent)


def test_what_is_blocked_for_half_as_long_is_found_with_the_first() -> None:
    """Each that is left for later costs an epoch more."""
    scenario = four_hosts()
    assert starve(scenario, 1, r4_6=LONG_MS // 2, r0_2=LONG_MS)[0].reason == (
        "silent link: ranks 0 and 2, 4 and 6 wait, and nothing comes between them"
    )


def test_two_cuts_between_hosts_are_found_in_two_epochs() -> None:
    scenario = four_hosts()
    assert starve(scenario, 1, r0_2=LONG_MS)
    assert plans(scenario, 2, CONNS)[0].routes == ()
    pass_time(scenario, 2, CONNS)
    assert starve(scenario, 2, r4_6=LONG_MS // 2, r1_3=LONG_MS)
    routes = plans(scenario, 3, CONNS)[0].routes
    assert {(route.a, route.b) for route in routes} == {
        *((a, b) for a in (0, 1) for b in (2, 3)),
        *((a, b) for a in (4, 5) for b in (6, 7)),
    }
    hosts = scenario.roster.snapshot(scenario.now)["routes"]
    assert {row["why"] for row in hosts} == {"no byte comes, though one has sent"}


def test_a_link_that_breaks_while_all_stop_is_no_failure() -> None:
    """Ignore links that end while all ranks stop: a rank sees that before its own order."""
    scenario = four_hosts()
    for epoch in (1, 2):
        pass_time(scenario, epoch, CONNS)
        scenario.said(1, Suspect(epoch, (2,), "cannot connect: timed out"))
        scenario.said(5, Suspect(epoch, (6,), "the peer closed the connection"))
        last = plans(scenario, epoch + 1, CONNS)
    assert {(route.a, route.b) for route in last[0].routes} == {
        (a, b) for a in (0, 1) for b in (2, 3)
    }


def test_a_cut_between_hosts_is_said_in_one_line() -> None:
    scenario = four_hosts()
    for epoch in (1, 2):
        pass_time(scenario, epoch, CONNS)
        scenario.said(1, Suspect(epoch, (2,), "cannot connect: timed out"))
        effects = [e for conn in CONNS for e in scenario.tell_said(conn, report(epoch + 1))]
    assert [e.text for e in effects if isinstance(e, Note) and e.level == "warning"] == [
        (
            "hosts a and b cannot reach each other: 4 pairs of ranks relayed by rank 4, 5, 6, 7"
            " (cannot connect: timed out)"
        )
    ]


def test_a_lost_host_is_named_with_its_workers() -> None:
    scenario = four_hosts()
    scenario.tell(ConnLost(3, "its connection ended"))
    assert scenario.roster.snapshot(1.0)["lost_hosts"] == []
    scenario.now = 1.5
    effects = scenario.tell(ConnLost(4, "its connection ended"))
    text = "host b (workers w2 and w3)"
    assert [e.text for e in effects if isinstance(e, Note)][-1] == f"{text} is lost"
    snapshot = scenario.roster.snapshot(1.5)
    assert snapshot["waiting_for"][0] == f"{text} to come back"
    assert snapshot["recovery"]["reason"] == (
        f"lost {text}; first: lost worker w2: its connection ended (rank 2)"
    )
    found = explain(document(scenario))[0]
    assert (found.kind, found.what) == (
        "lost_host",
        f"{text} is gone, and its places have been empty for 1.5 s",
    )
    scenario.joined(9, hello("w2", "b", host="b"))
    assert scenario.roster.snapshot(1.5)["waiting_for"][0] == "worker w3 to come back"


def test_hosts_of_one_worker_and_a_job_that_is_all_away_are_not_grouped() -> None:
    assert [
        lost_hosts({"0": "a", "1": "b", "2": "b"}, {"0"}),
        lost_hosts({"0": "a", "1": "a"}, {"0", "1"}),
        lost_hosts({"0": "a", "1": "a", "2": "b", "3": "b"}, {"0", "1", "3"}),
    ] == [([], ["0"]), ([], ["0", "1"]), ([("a", ["0", "1"])], ["3"])]
    assert host_text("b", [str(n) for n in range(9)]) == "host b (9 workers)"
