"""Stories of the decision about local states."""

from typing import Any

from ftcomm.protocol.messages import LocalFetch, LocalStates, Report
from ftcomm.protocol.position import PRELUDE, Position, PositionRange
from ftcomm_tracker.core.plan import Decided, Facts, plan
from tests.unit.tracker.test_plan import at, decided, lost, members, report

FRESH = report(caught_up=0)


def holding(version: int, *ranks: int, position: Position | None = None, **more: Any) -> Report:
    """A member of `version` that holds the local states of `ranks`."""
    held = LocalStates(version, tuple(sorted(ranks)))
    return report(position or at(version, 0), locals=(held,), **more)


def saving(*ranks: int, version: int = 2) -> Report:
    """A member that holds the tentative `version` and these local states of it."""
    before = at(version - 1, 3)
    return holding(version, *ranks, position=before, tentative=version, digest=b"d")


def locals_of(decision: Decided) -> list[tuple[LocalFetch, ...] | None]:
    return [plan.locals for plan in decision.plans.values()]


def test_where_nobody_speaks_of_local_states_there_are_none() -> None:
    assert locals_of(decided(report(at(2, 0)), FRESH)) == [None, None]


def test_a_replacement_gets_its_own_and_what_it_keeps_for_others() -> None:
    """Of four, each keeps those of the two before it."""
    decision = decided(FRESH, holding(3, 0, 1, 3), holding(3, 0, 1, 2), holding(3, 1, 2, 3))
    fetches = (LocalFetch(1, 0), LocalFetch(1, 3), LocalFetch(2, 2))
    assert locals_of(decision) == [fetches, (), (), ()]
    assert (decision.plans[0].load, decision.frontier) == (3, at(3, 0))


def test_what_a_replacement_has_fetched_already_it_is_not_given_again() -> None:
    half = report(caught_up=0, committed=3, locals=(LocalStates(3, (0,)),))
    decision = decided(half, holding(3, 0, 1, 3), holding(3, 0, 1, 2), holding(3, 1, 2, 3))
    assert locals_of(decision)[0] == (LocalFetch(1, 3), LocalFetch(2, 2))
    assert decision.plans[0].load == PRELUDE


def test_one_holder_is_enough_and_the_copies_are_made_again() -> None:
    """Rank 0 and one of its replica holders have died."""
    decision = decided(FRESH, FRESH, holding(3, 0, 1, 2), holding(3, 1, 2, 3))
    mine, replica_holders = locals_of(decision)[:2]
    assert mine == (LocalFetch(2, 0), LocalFetch(3, 3), LocalFetch(2, 2))
    assert replica_holders == (LocalFetch(3, 1), LocalFetch(2, 0), LocalFetch(3, 3))


def test_a_local_state_whose_holders_have_all_died_ends_the_job_by_name() -> None:
    error, cause = lost(FRESH, FRESH, FRESH, holding(3, 1, 2, 3))
    assert error == "JobLostError"
    assert cause == (
        "the local state of worker w0 (rank 0) in checkpoint 3 is needed and exists nowhere any "
        "more; its holders were w0 (rank 0), w1 (rank 1), w2 (rank 2)"
    )


def test_without_copies_a_local_state_dies_with_its_owner() -> None:
    error, cause = lost(FRESH, holding(3, 1), local_replicas=0)
    assert error == "JobLostError"
    assert cause.endswith("its holders were w0 (rank 0)")


def test_a_version_is_committed_if_all_who_live_hold_what_they_should() -> None:
    """Rank 0 has died after it gave copies to its replica holders, 1 and 2."""
    decision = decided(FRESH, saving(0, 1, 3), saving(0, 1, 2), saving(1, 2, 3))
    assert ({p.commit for p in decision.plans.values()}, decision.frontier) == ({2}, at(2, 0))
    assert decision.plans[0].load == 2
    assert locals_of(decision) == [
        (LocalFetch(1, 0), LocalFetch(1, 3), LocalFetch(2, 2)),
        (),
        (),
        (),
    ]


def test_a_version_is_not_committed_while_its_owner_alone_holds_a_local_state() -> None:
    """It could be loaded, but the next death would lose it, and version 1 would be gone by then."""
    decision = decided(saving(0, version=1), saving(0, 1, version=1), local_replicas=1)
    assert ({p.commit for p in decision.plans.values()}, decision.frontier) == ({-1}, at(0, 3))


def test_a_version_is_not_committed_while_one_local_state_is_held_by_nobody() -> None:
    """Rank 0 has died before anyone had a copy: all go back to version 1 and save again."""
    before = [
        report(
            at(1, 3), PositionRange(1, 0, 3), tentative=2, digest=b"d",
            locals=(LocalStates(1, (0, rank)), LocalStates(2, (rank,))),
        )
        for rank in (1, 2)
    ]  # fmt: skip
    decision = decided(FRESH, *before)
    assert {p.commit for p in decision.plans.values()} == {PRELUDE}
    assert (decision.plans[0].load, decision.frontier) == (1, at(1, 3))
    assert LocalFetch(1, 0) in (locals_of(decision)[0] or ())


def test_what_one_has_committed_stays_so_and_a_lost_local_state_of_it_ends_the_job() -> None:
    """All holders of rank 0's have died; that others could go back to version 1 does not help."""
    done = holding(2, 1, 2, position=at(2, 0))
    error, cause = lost(FRESH, done, saving(2, 1), saving(3))
    assert error == "JobLostError"
    assert "worker w0 (rank 0) in checkpoint 2" in cause


def test_who_has_closed_and_gone_needs_its_local_state_no_more() -> None:
    """Rank 0 is absent: there is no report of it, and nobody fetches what nobody holds."""
    both = [holding(1, 1, 2), holding(1, 1, 2)]
    decision = decided_without_first(*both)
    assert locals_of(decision) == [(), ()]


def decided_without_first(*reports: Report) -> Decided:
    facts = Facts(5, all_replaced=False, grouping=(0, 0, 0), replicas=2, local_replicas=2)
    decision = plan(members(3), facts, dict(enumerate(reports, 1)))
    assert isinstance(decision, Decided)
    return decision
