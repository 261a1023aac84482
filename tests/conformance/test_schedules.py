"""The random plans themselves: drawn from the seed alone, and full of trouble."""

import pytest

from tests.conformance.random_scenarios import QUICK, SEEDS
from tests.conformance.schedules import (
    BROADCASTS,
    CALLS,
    CHECKPOINT,
    _next_undisturbed,
    random_plan,
)


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_is_a_plan(seed: int) -> None:
    assert random_plan(seed) == random_plan(seed) != random_plan(seed + 1)


def test_no_fault_is_planned_twice() -> None:
    plans = [random_plan(seed) for seed in range(SEEDS)]
    assert [plan for plan in plans if len(set(plan.faults)) != len(plan.faults)] == []


def test_a_burst_waits_for_a_collective_that_all_execute_after_the_last_one() -> None:
    """Not for a broadcast, which goes on without the dead."""
    waits = {CALLS[i].seqno: _next_undisturbed(i) - i for i in range(CHECKPOINT + 1)}
    to_the_sum = {seqno: BROADCASTS.stop - seqno + 1 for seqno in (0, *BROADCASTS)}
    assert waits == {**to_the_sum, 9: 2, 10: 2, 11: 2}


def test_the_plans_are_full_of_deaths_and_stops() -> None:
    plans = [random_plan(seed) for seed in range(SEEDS)]
    few = plans[:QUICK]
    assert (sum(p.deaths for p in few), sum(p.stops for p in few)) == (17, 20)
    assert sum(plan.deaths for plan in plans) > 7 * SEEDS
    assert max(plan.deaths for plan in plans) > 20
