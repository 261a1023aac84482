"""The record of links that fail, and the choice of relays."""

import pytest

from ftcomm.protocol.messages import Route
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.link_failures import (
    Failing,
    HostReachability,
    Pairs,
    choose_routes,
    ends_to_give_up,
    host_pair,
)
from tests.unit.tracker.roster_scenario import at

PROCESSES = {0: b"a", 1: b"b", 2: b"c", 3: b"d"}


def fail(
    pairs: Pairs,
    epoch: int,
    pair: tuple[int, int] = (0, 1),
    progress: Position = START,
    via: int | None = None,
) -> None:
    processes = (PROCESSES[pair[0]], PROCESSES[pair[1]])
    pairs.note_failure(pair, processes, epoch=epoch, progress=progress, cause="reset", via=via)


def failing(plans: int = 2, spoilt: tuple[int, ...] = ()) -> Failing:
    return Failing((b"", b""), 1, plans, START, None, "reset", spoilt)


def unreachable(pairs: Pairs, processes: dict[int, bytes] = PROCESSES) -> list[tuple[int, int]]:
    return [
        pair for pair, failing in pairs.of_incarnations(processes).items() if failing.is_unreachable
    ]


def test_a_pair_that_fails_in_two_plans_running_is_unreachable() -> None:
    pairs = Pairs()
    fail(pairs, 1)
    fail(pairs, 1)  # both ends say so
    assert unreachable(pairs) == []
    fail(pairs, 2)
    assert unreachable(pairs) == [(0, 1)]


def test_plans_that_ended_early_in_between_show_nothing() -> None:
    pairs = Pairs()
    fail(pairs, 1)
    fail(pairs, 2, (1, 2))
    fail(pairs, 5)
    assert unreachable(pairs) == [(0, 1)]


def test_a_plan_that_lasted_in_between_shows_that_the_link_works() -> None:
    pairs = Pairs()
    fail(pairs, 1)
    pairs.forget_repaired(2)
    fail(pairs, 3)
    assert unreachable(pairs) == []


def test_a_relayed_pair_stays_relayed_however_long_the_plan_lasts() -> None:
    pairs = Pairs()
    fail(pairs, 1)
    fail(pairs, 2)
    fail(pairs, 3, via=2)
    pairs.forget_repaired(4)
    assert unreachable(pairs) == [(0, 1)]
    assert pairs.of_incarnations(PROCESSES)[0, 1].spoilt == ()


def test_a_plan_that_lasted_shows_nothing_of_a_pair_that_waits_and_nobody_is_stuck() -> None:
    pairs = Pairs()
    fail(pairs, 1)
    pairs.forget_repaired(2, {(0, 1)})
    fail(pairs, 2)
    assert unreachable(pairs) == [(0, 1)]
    assert not pairs.of_incarnations(PROCESSES)[0, 1].is_stuck


def test_only_failures_of_the_same_two_processes_count() -> None:
    pairs = Pairs()
    fail(pairs, 1)
    fail(pairs, 2)
    assert unreachable(pairs, {**PROCESSES, 1: b"new"}) == []
    assert pairs.of_incarnations(PROCESSES) == {}


def test_a_job_that_goes_on_between_two_failures_is_not_stuck() -> None:
    pairs = Pairs()
    fail(pairs, 1)
    fail(pairs, 2, progress=at(0, 1))
    assert not pairs.of_incarnations(PROCESSES)[0, 1].is_stuck
    fail(pairs, 3, progress=at(0, 1))
    assert pairs.of_incarnations(PROCESSES)[0, 1].is_stuck


def test_the_progress_that_reports_tell_counts_and_not_that_of_heartbeats_before() -> None:
    pairs = Pairs()
    fail(pairs, 1)
    pairs.note_progress(1, at(0, 1))
    fail(pairs, 2, progress=at(0, 1))
    assert pairs.of_incarnations(PROCESSES)[0, 1].is_stuck
    pairs.note_progress(2, at(1, 6))
    assert not pairs.of_incarnations(PROCESSES)[0, 1].is_stuck


@pytest.mark.parametrize(
    ("pairs", "present", "routes", "stranded"),
    [
        pytest.param({(0, 1): failing(1)}, range(3), (), (), id="once is not unreachable"),
        pytest.param({(0, 1): failing()}, range(4), (Route(0, 1, 2),), (), id="the lowest rank"),
        pytest.param({(0, 1): failing()}, range(2), (), ((0, 1),), id="nobody else is there"),
        pytest.param(
            {(0, 1): failing(), (1, 2): failing()},
            range(4),
            (Route(0, 1, 3), Route(1, 2, 3)),
            (),
            id="a relay reaches both ends",
        ),
        pytest.param(
            {(0, 1): failing(), (2, 3): failing()},
            range(5),
            (Route(0, 1, 2), Route(2, 3, 0)),
            (),
            id="the load is dealt out",
        ),
        pytest.param(
            {(0, 1): failing(spoilt=(2,))}, range(4), (Route(0, 1, 3),), (), id="another than last"
        ),
        pytest.param(
            {(0, 1): failing(spoilt=(2,))}, range(3), (Route(0, 1, 2),), (), id="once more if alone"
        ),
        pytest.param(
            {(0, 1): failing(4, spoilt=(2, 2))},
            range(3),
            (),
            ((0, 1),),
            id="the relay fails too",
        ),
        pytest.param(
            {(0, 1): failing(8, spoilt=(2, 3, 2, 3, 2))},
            range(4),
            (Route(0, 1, 3),),
            ((0, 1),),
            id="the best of relays that all fail",
        ),
        pytest.param(
            {(0, 1): failing(3), (1, 2): failing(2)},
            range(3),
            (Route(0, 1, 2),),
            ((0, 1), (1, 2)),
            id="a relay whose own link has failed less than this one",
        ),
        pytest.param(
            {(0, 1): failing(), (1, 2): failing(1)},
            range(4),
            (Route(0, 1, 3),),
            (),
            id="one that has not failed with an end",
        ),
        pytest.param(
            {(0, 1): failing(), (0, 2): failing(), (0, 3): failing()},
            range(4),
            (),
            ((0, 1), (0, 2), (0, 3)),
            id="one end reaches nobody",
        ),
        pytest.param({(0, 1): failing()}, (0, 2, 3), (), (), id="an end has closed and left"),
    ],
)
def test_the_relays_of_a_plan(
    pairs: dict[tuple[int, int], Failing],
    present: range | tuple[int, ...],
    routes: tuple[Route, ...],
    stranded: tuple[tuple[int, int], ...],
) -> None:
    assert choose_routes(pairs, tuple(present)) == (routes, stranded)


def test_one_who_has_closed_relays_only_if_nobody_else_can() -> None:
    pair = {(0, 1): failing()}
    assert choose_routes(pair, (0, 1, 2, 3), leaving=(2,))[0] == (Route(0, 1, 3),)
    assert choose_routes(pair, (0, 1, 2), leaving=(2,))[0] == (Route(0, 1, 2),)


def test_who_fails_with_most_others_is_given_up_else_the_higher_rank() -> None:
    assert ends_to_give_up({(0, 1): failing()}, (0, 1)) == (1, 0)
    several = {(0, 1): failing(), (0, 2): failing(1)}
    assert ends_to_give_up(several, (0, 1)) == (0, 1)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({(0, 3): failing(4, (2,)), (1, 3): failing(4)}, id="to a relay"),
        pytest.param({(2, 3): failing(3, (0,))}, id="as a relay"),
    ],
)
def test_of_two_ends_the_one_with_more_doubtful_hops_is_given_up(
    other: dict[tuple[int, int], Failing],
) -> None:
    assert ends_to_give_up({(0, 1): failing(), **other}, (0, 1)) == (0, 1)


def test_a_plan_has_room_for_so_many_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    room = 30
    monkeypatch.setattr("ftcomm_tracker.core.link_failures.MAX_ROUTES", room)
    pairs = {(0, other): failing() for other in range(1, room + 3)}
    routes, stranded = choose_routes(pairs, range(room + 4))
    assert (len(routes), stranded) == (room, ((0, room + 1), (0, room + 2)))


# --- hosts --------------------------------------------------------------------------------------

FOUR_HOSTS = {rank: "abcd"[rank // 2] for rank in range(8)}
EIGHT = {rank: f"incarnation {rank}".encode() for rank in range(8)}


def host_fails(pairs: Pairs, epoch: int, *failing: tuple[int, int]) -> None:
    """Links fail as the roster notes it: for the pair of ranks, and for that of their hosts."""
    for a, b in failing:
        hosts = host_pair(FOUR_HOSTS[a], FOUR_HOSTS[b])
        processes = [EIGHT[rank] for rank, host in FOUR_HOSTS.items() if host in hosts]
        pairs.note_failure(
            (a, b), (EIGHT[a], EIGHT[b]), epoch=epoch, progress=START, cause="silent"
        )
        pairs.note_cut(hosts, processes, epoch=epoch, cause="silent")


def chosen(
    pairs: Pairs, processes: dict[int, bytes] = EIGHT, before: tuple[Route, ...] = ()
) -> dict[tuple[int, int], str]:
    """By pair, the host of its relay."""
    hosts = HostReachability(FOUR_HOSTS, pairs.cuts(processes.values()), processes)
    routes, stranded = choose_routes(
        pairs.of_incarnations(processes), processes, hosts=hosts, before=before
    )
    assert stranded == ()
    return {(route.a, route.b): FOUR_HOSTS[route.via] for route in routes}


def test_two_hosts_whose_ranks_fail_in_two_plans_are_relayed_by_a_third_host() -> None:
    """Relay all pairs of two hosts once two pairs have failed; the others need not fail first."""
    pairs = Pairs()
    host_fails(pairs, 1, (0, 2))
    assert chosen(pairs) == {}
    host_fails(pairs, 2, (1, 3))
    assert chosen(pairs).keys() == {(0, 2), (0, 3), (1, 2), (1, 3)}
    assert set(chosen(pairs).values()) <= {"c", "d"}


@pytest.mark.parametrize("first", [(0, 2), (4, 6)])
@pytest.mark.parametrize("second", [((0, 2), (4, 6)), ((4, 6), (0, 2))])
def test_two_cuts_of_which_one_is_seen_twice_are_found_in_two_plans(
    first: tuple[int, int], second: tuple[tuple[int, int], ...]
) -> None:
    pairs = Pairs()
    host_fails(pairs, 1, first)
    host_fails(pairs, 2, *second)
    assert chosen(pairs).keys() == {
        *((a, b) for a in (0, 1) for b in (2, 3)),
        *((a, b) for a in (4, 5) for b in (6, 7)),
    }


def test_two_cuts_of_one_host_are_found_though_one_is_seen_once_and_earlier() -> None:
    pairs = Pairs()
    host_fails(pairs, 1, (0, 2), (0, 4))
    host_fails(pairs, 2, (0, 4))
    assert set(chosen(pairs).values()) == {"d"}
    assert len(chosen(pairs)) == 8


def test_a_cut_that_shows_only_behind_the_detour_of_another_is_found_at_once() -> None:
    pairs = Pairs()
    pairs.forget_repaired(1)  # the job ran for long before
    for epoch in (1, 2):
        host_fails(pairs, epoch, (0, 2))
    assert len(chosen(pairs)) == 4
    host_fails(pairs, 3, (1, 5))
    assert len(chosen(pairs)) == 8


def test_a_later_single_failure_is_not_taken_for_a_cut_because_there_is_one() -> None:
    pairs = Pairs()
    host_fails(pairs, 1, (0, 2))
    host_fails(pairs, 2, (0, 2))
    pairs.forget_repaired(3)
    host_fails(pairs, 7, (4, 6))
    assert len(chosen(pairs)) == 4


def test_a_relay_that_works_is_kept() -> None:
    """Though others relay less, and another cut has come."""
    pairs = Pairs()
    before = tuple(Route(a, b, 7) for a in (0, 1) for b in (2, 3))
    for epoch in (1, 2):
        host_fails(pairs, epoch, (0, 2))
    for epoch in (3, 4):
        host_fails(pairs, epoch, (0, 4))
    hosts = HostReachability(FOUR_HOSTS, pairs.cuts(EIGHT.values()), EIGHT)
    after, _ = choose_routes(pairs.of_incarnations(EIGHT), EIGHT, hosts=hosts, before=before)
    assert set(before) <= set(after)
    assert len(after) == 8


def test_one_who_has_closed_relays_before_those_behind_a_known_cut() -> None:
    """All others had closed: each pair of the cut hosts was relayed by the cut hosts in turn."""
    pairs = Pairs()
    for epoch in (1, 2):
        host_fails(pairs, epoch, (0, 2))
    hosts = HostReachability(FOUR_HOSTS, pairs.cuts(EIGHT.values()), EIGHT)
    failed, others = pairs.of_incarnations(EIGHT), (4, 5, 6, 7)
    routes, stranded = choose_routes(failed, EIGHT, others, hosts=hosts)
    assert stranded == ()
    assert {route.via for route in routes} <= set(others)


def test_a_new_process_on_a_cut_host_is_tried_directly() -> None:
    pairs = Pairs()
    for epoch in (1, 2):
        host_fails(pairs, epoch, (0, 2))
    assert chosen(pairs, {**EIGHT, 1: b"new"}).keys() == {(0, 2), (0, 3)}


def test_a_cut_of_which_nobody_processes_any_more_is_forgotten() -> None:
    pairs = Pairs()
    for epoch in (1, 2):
        host_fails(pairs, epoch, (0, 2))
    assert pairs.cuts([b"new"]) == {}
    assert pairs.cuts(EIGHT.values()) == {}


def test_two_hosts_without_a_third_are_not_relayed_ahead() -> None:
    """A rank of their own may still reach both: that is tried for the pair that fails, as ever."""
    pairs = Pairs()
    for epoch in (1, 2):
        host_fails(pairs, epoch, (0, 2))
    processes = {rank: EIGHT[rank] for rank in range(4)}
    hosts = HostReachability(FOUR_HOSTS, pairs.cuts(processes.values()), processes)
    routes, stranded = choose_routes(pairs.of_incarnations(processes), processes, hosts=hosts)
    assert (routes, stranded) == ((Route(0, 2, 1),), ())
