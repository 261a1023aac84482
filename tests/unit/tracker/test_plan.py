"""Stories of the decision, and what must hold for whatever is reported."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcomm.protocol.codec import encode
from ftcomm.protocol.messages import Fetch, Member, Report
from ftcomm.protocol.position import PRELUDE, START, Position, PositionRange
from ftcomm.protocol.signature import Kind, Signature
from ftcomm_tracker.core.mismatch_inquiry import Evidence, Side
from ftcomm_tracker.core.plan import Decided, Facts, Unrecoverable, plan

SUM = Signature(Kind.ALLREDUCE, count=3).encode()
BARRIER = Signature(Kind.BARRIER).encode()
LOAD = Signature(Kind.LOAD).encode()
CHECKPOINT = Signature(Kind.CHECKPOINT).encode()


def at(version: int, seqno: int) -> Position:
    return Position(0, version, seqno)


def members(count: int) -> list[Member]:
    return [Member(rank, f"w{rank}", 1, f"h{rank}", "a", 1) for rank in range(count)]


def report(position: Position = START, *runs: PositionRange, **changes: Any) -> Report:
    fields: dict[str, Any] = {
        "epoch": 5,
        "position": position,
        "committed": position.version,
        "tentative": PRELUDE,
        "digest": b"",
        "runs": runs,
        "prelude_length": 0 if position.past_load else -1,
        "caught_up": 4,
        "suspects": (),
        "signature": b"",
        "site": "",
        "closed": False,
    }
    return Report(**{**fields, **changes})


def decide(
    *reports: Report, all_replaced: bool = False, highest: int = PRELUDE, local_replicas: int = 2
) -> Decided | Unrecoverable:
    count = len(reports)
    facts = Facts(5, all_replaced, (0,) * count, 2, local_replicas, highest)
    return plan(members(count), facts, dict(enumerate(reports)))


def decided(*reports: Report, **facts: Any) -> Decided:
    decision = decide(*reports, **facts)
    assert isinstance(decision, Decided), decision
    return decision


def lost(*reports: Report, **facts: Any) -> tuple[str, str]:
    decision = decide(*reports, **facts)
    assert isinstance(decision, Unrecoverable), decision
    return decision.error, decision.cause


def test_a_fresh_group_starts_at_the_beginning_and_fetches_nothing() -> None:
    decision = decided(report(caught_up=0), report(caught_up=0))
    assert decision.frontier == START
    assert [(p.load, p.fetches, p.commit) for p in decision.plans.values()] == [(-1, (), -1)] * 2


def test_a_lagging_rank_fetches_what_another_completed() -> None:
    ahead = report(at(0, 3), PositionRange(0, 0, 3))
    decision = decided(ahead, report(at(0, 2), PositionRange(0, 0, 2)))
    assert decision.frontier == at(0, 3)
    assert decision.plans[0].fetches == ()
    assert decision.plans[1].fetches == (Fetch(0, PositionRange(0, 2, 3)),)


def test_a_replacement_loads_and_fetches_prelude_and_version() -> None:
    survivor = report(at(2, 2), PositionRange(-1, 0, 1), PositionRange(2, 0, 2), prelude_length=1)
    decision = decided(survivor, report(caught_up=0))
    order = decision.plans[1]
    assert (order.load, order.load_from, order.prelude_length) == (2, (0,), 1)
    assert order.fetches == (Fetch(0, PositionRange(-1, 0, 1)), Fetch(0, PositionRange(2, 0, 2)))


def test_the_length_of_the_prelude_is_that_of_who_still_loads() -> None:
    """All who had completed the load have died, and a spare alone has its checkpoint."""
    loading = report(at(PRELUDE, 2), PositionRange(-1, 0, 2), signature=LOAD)
    spare = report(committed=0, caught_up=0)
    orders = decided(loading, spare).plans
    assert [order.prelude_length for order in orders.values()] == [2, 2]
    assert orders[1].fetches == (Fetch(0, PositionRange(-1, 0, 2)),)


def test_the_length_of_the_prelude_is_open_until_one_has_loaded() -> None:
    """Programs may differ: each that is in a load now will find out as it executes that."""
    loading = report(at(PRELUDE, 2), PositionRange(-1, 0, 2), signature=LOAD)
    assert decided(loading, report(caught_up=0)).plans[0].prelude_length == -1


def test_holders_share_the_work_of_serving() -> None:
    evens = report(at(0, 4), PositionRange(0, 0, 4, 2))
    odds = report(at(0, 4), PositionRange(0, 1, 4, 2))
    order = decided(evens, odds, report(caught_up=0)).plans[2]
    assert order.fetches == (
        Fetch(0, PositionRange(0, 0, 3, 2)),
        Fetch(1, PositionRange(0, 1, 4, 2)),
    )


def test_a_long_version_is_fetched_by_few_orders() -> None:
    """Rank 2 has fetched all and replays; rank 0 is replaced, and a holder has what it has."""
    end = 30_000
    replica_holders = [
        report(at(0, end), PositionRange(0, index % 3, end, 3)) for index in range(6)
    ]
    replica_holders[0] = report(caught_up=0)
    replica_holders[2] = report(at(0, 17), PositionRange(0, 0, end))
    orders = decided(*replica_holders).plans[0]
    assert [(fetch.source, fetch.run.lo, fetch.run.step) for fetch in orders.fetches] == [
        (1, 1, 3),
        (2, 0, 3),
        (2, 2, 3),
    ]
    assert len(encode(orders)) < 1000


def test_what_no_plan_can_say_ends_the_job_and_not_the_tracker() -> None:
    lacks = [5 * (number // 2) + 2 * (number % 2) for number in range(70_000)]  # 0, 2, 5, 7, 10
    gaps = [PositionRange(0, a + 1, b) for a, b in itertools.pairwise(lacks) if b > a + 1]
    error, cause = lost(
        report(at(0, 0), *gaps), report(at(0, lacks[-1]), PositionRange(0, 0, lacks[-1]))
    )
    assert error == "JobLostError"
    assert cause == "rank 0 lacks results in 35000 pieces, and a plan names 32768 at most"


def test_a_result_that_nobody_holds_ends_the_job_by_name() -> None:
    holed = report(at(0, 3), PositionRange(0, 1, 3))
    error, cause = lost(holed, report(caught_up=0))
    assert error == "JobLostError"
    assert "collective 0.0" in cause
    assert "w0 (rank 0), w1 (rank 1)" in cause


def test_a_version_that_one_has_committed_is_committed_by_all() -> None:
    done = report(at(1, 0))
    holding = report(at(0, 4), tentative=1, digest=b"d")
    decision = decided(done, holding)
    assert (decision.plans[1].commit, decision.frontier) == (1, at(1, 0))


def test_a_version_that_everyone_holds_is_committed_though_nobody_knew() -> None:
    both = report(at(0, 4), PositionRange(0, 0, 4), tentative=1, digest=b"d")
    decision = decided(both, both, report(caught_up=0))
    assert decision.plans[0].commit == 1
    assert (decision.plans[2].load, decision.plans[2].load_from) == (1, (0, 1))


def test_a_version_that_a_restarted_member_was_given_is_committed_before_its_load() -> None:
    """It has died, got the checkpoint, and not come to its load; all others who had it are gone."""
    given = report(at(-1, 0), committed=6, caught_up=2)
    holding = report(at(5, 3), PositionRange(5, 0, 3), tentative=6, digest=b"d")
    decision = decided(given, holding, report(caught_up=0), highest=6)
    assert (decision.plans[1].commit, decision.frontier) == (6, at(6, 0))


def test_a_version_that_one_lacks_is_not_committed() -> None:
    holding = report(at(0, 4), PositionRange(0, 0, 4), tentative=1, digest=b"d")
    decision = decided(holding, report(at(0, 4), PositionRange(0, 0, 4)))
    assert decision.plans[0].commit == PRELUDE
    assert decision.frontier == at(0, 4)


@pytest.mark.parametrize(("balances", "commit"), [((7, 2**64 - 7), 1), ((7, 0), PRELUDE)])
def test_a_version_with_a_message_on_its_way_is_not_committed(
    balances: tuple[int, int], commit: int
) -> None:
    """Executing the checkpoint will name it (R21)."""
    holding = [
        report(at(0, 4), PositionRange(0, 0, 4), tentative=1, digest=b"d", messages=balance)
        for balance in balances
    ]
    assert decided(*holding).plans[0].commit == commit
    # Who has died may have committed it, and of who was restarted nobody knows the balance.
    assert decided(*holding, report(caught_up=0)).plans[0].commit == 1


def test_a_version_is_not_committed_while_a_member_has_not_come_past_its_load() -> None:
    """Nobody can have seen that all hold it; committed, it would die with its one holder."""
    holding = report(at(0, 0), tentative=1, digest=b"d")
    decision = decided(holding, report(at(-1, 0)))
    assert (decision.plans[0].commit, decision.plans[1].load) == (PRELUDE, 0)


def test_states_that_differ_are_a_mismatch() -> None:
    said = {"tentative": 1, "signature": CHECKPOINT, "site": "a.py:1"}
    one, other = (report(at(0, 1), digest=digest, **said) for digest in (b"d", b"e"))
    decision = decide(one, one, other)
    assert isinstance(decision, Unrecoverable)
    sides = tuple(Side(rank, at(0, 1), CHECKPOINT, "a.py:1") for rank in (0, 2))
    assert decision.evidence == Evidence(at(0, 1), sides, version=1)


def test_calls_in_flight_that_differ_are_a_mismatch() -> None:
    decision = decide(
        report(at(0, 1), PositionRange(0, 0, 1), signature=SUM, site="a.py:1"),
        report(at(0, 1), PositionRange(0, 0, 1), signature=BARRIER, site="b.py:2"),
    )
    assert isinstance(decision, Unrecoverable)
    sides = (Side(0, at(0, 1), SUM, "a.py:1"), Side(1, at(0, 1), BARRIER, "b.py:2"))
    assert decision.evidence == Evidence(at(0, 1), sides)


OPEN = Signature(Kind.BROADCAST, root=2).encode()
ARRAY = Signature(Kind.BROADCAST, root=2, dtype=12, count=3, ndim=1, dims=(3, 0, 0, 0)).encode()
OTHER = Signature(Kind.BROADCAST, root=2, dtype=12, count=4, ndim=1, dims=(4, 0, 0, 0)).encode()


@pytest.mark.parametrize(
    ("calls", "conflict"),
    [
        ((OPEN, ARRAY, ARRAY), False),
        ((ARRAY, OPEN, OPEN), False),
        ((OPEN, ARRAY, OTHER), True),
        ((OPEN, OPEN, BARRIER), True),
    ],
)
def test_a_rank_without_an_array_agrees_with_any_and_hides_no_mismatch(
    calls: tuple[bytes, ...], conflict: bool
) -> None:
    decision = decide(*(report(at(0, 1), PositionRange(0, 0, 1), signature=call) for call in calls))
    assert isinstance(decision, Unrecoverable) == conflict


def test_all_who_took_part_have_died() -> None:
    error, _ = lost(report(caught_up=0), report(caught_up=0), all_replaced=True)
    assert error == "JobLostError"


def test_a_committed_version_whose_holders_died_is_named() -> None:
    error, cause = lost(report(caught_up=3), report(caught_up=0), highest=7)
    assert (error, "checkpoint 7" in cause) == ("JobLostError", True)


def test_a_load_that_only_the_dead_had_completed_is_executed_again() -> None:
    before_load = report(at(-1, 2), PositionRange(-1, 0, 2), committed=-1)
    decision = decide(before_load, report(caught_up=0), highest=0)
    assert isinstance(decision, Decided)
    assert decision.frontier == at(-1, 2)


def run_sets() -> st.SearchStrategy[tuple[PositionRange, ...]]:
    seqnos = st.builds(range, st.integers(0, 3), st.integers(4, 9), st.integers(1, 3))
    return st.lists(seqnos, max_size=2).map(
        lambda ranges: tuple(PositionRange(0, r.start, r.stop, r.step) for r in ranges)
    )


@st.composite
def some_reports(draw: st.DrawFn) -> list[Report]:
    reports = []
    for _ in range(draw(st.integers(2, 4))):
        if draw(st.booleans()):
            runs = draw(run_sets())
            top = max((run.seqnos()[-1] + 1 for run in runs), default=0)
            reports.append(report(at(0, draw(st.integers(top, 10))), *runs))
        else:
            reports.append(report(START, caught_up=0))
    return reports


@given(some_reports())
@settings(max_examples=150)
def test_nobody_is_sent_to_a_rank_that_did_not_report_it_and_nothing_is_left_out(
    reports: list[Report],
) -> None:
    decision = decide(*reports)
    held = {
        rank: {(run.version, s) for run in r.runs for s in run.seqnos()}
        for rank, r in enumerate(reports)
    }
    if isinstance(decision, Unrecoverable):
        assert decision.error == "JobLostError"
        if decision.position != START:
            assert not any((0, decision.position.seqno) in own for own in held.values())
        return
    reached = [r.position for r in reports]
    ends = [at(v, s + 1) for own in held.values() for v, s in own]
    floor = [at(0, 0)] if any(p.past_load for p in reached) else []
    assert decision.frontier == max(reached + ends + floor)
    for rank, order in decision.plans.items():
        fetched = {(f.run.version, s) for f in order.fetches for s in f.run.seqnos()}
        for fetch in order.fetches:
            assert {(fetch.run.version, s) for s in fetch.run.seqnos()} <= held[fetch.source]
        mine = reports[rank].position
        first = mine.seqno if mine.past_load else 0
        end = decision.frontier.seqno if decision.frontier.past_load else 0
        assert fetched | held[rank] >= {(0, s) for s in range(first, end)}
        assert not fetched & held[rank]
