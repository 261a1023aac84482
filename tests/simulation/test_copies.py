"""Simulated jobs with calls of which other ranks keep each rank's result (R20).

Each process of a rank gives other numbers to such a call.
"""

from collections import Counter
from typing import Any

import pytest

from ftcomm_chaos.sim.simulation import Simulation

pytestmark = pytest.mark.timeout(600)  # it computes for long, beside whatever else runs
slow = pytest.mark.slow


def run_all(seeds: range, **changes: Any) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        simulation = Simulation(seed, copied=True, **changes)
        seen[simulation.run().fatal_decision] += 1
        seen.update(simulation.counters)
    return seen


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 300), marks=slow)])
def test_every_rank_gets_its_own_result_of_one_execution_whoever_is_lost(seeds: range) -> None:
    seen = run_all(seeds)
    assert seen["replayed from copies"] > len(seeds) // 30
    assert seen["finished"] > len(seeds) // 2


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 40), marks=slow)])
def test_so_it_does_behind_checkpoints(seeds: range) -> None:
    seen = run_all(seeds, durable=True)
    assert seen["attempts"] > len(seeds)
    assert seen["finished"] > len(seeds) // 2


@slow
def test_with_spares_too() -> None:
    seen = run_all(range(30_000, 30_200), spares=2)
    assert seen["replayed from copies"] > 3
    assert seen["finished"] > 80


def test_without_faults_nothing_is_replayed() -> None:
    for seed in range(20):
        simulation = Simulation(seed, copied=True, faulty=False)
        assert simulation.run().fatal_decision == "finished"
        assert simulation.counters["replayed from copies"] == 0


def test_a_restarted_holder_is_one_again_before_the_plan_is_settled() -> None:
    """Its peer dies while the script of the holder is still behind the call."""
    assert Simulation(30_232, copied=True).run().fatal_decision == "finished"
