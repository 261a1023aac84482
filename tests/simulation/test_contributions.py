"""Simulated jobs with calls of which each rank keeps its own input (R20)."""

from collections import Counter
from typing import Any

import pytest

from ftcomm_chaos.sim.simulation import Simulation
from ftcomm_chaos.sim.world import Violation

pytestmark = pytest.mark.timeout(600)  # it computes for long, beside whatever else runs
slow = pytest.mark.slow


def run_all(seeds: range, **changes: Any) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        simulation = Simulation(seed, contributed=True, **changes)
        seen[simulation.run().fatal_decision] += 1
        seen.update(simulation.counters)
    return seen


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 300), marks=slow)])
def test_every_rank_gets_its_own_result_whoever_is_lost(seeds: range) -> None:
    seen = run_all(seeds)
    assert seen["replayed from inputs"] > len(seeds) // 30
    assert seen["finished"] > len(seeds) // 2


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 40), marks=slow)])
def test_so_it_does_behind_checkpoints(seeds: range) -> None:
    seen = run_all(seeds, durable=True)
    assert seen["attempts"] > len(seeds)
    assert seen["finished"] > len(seeds) // 2


@slow
def test_with_spares_too() -> None:
    seen = run_all(range(30_000, 30_100), spares=2)
    assert seen["replayed from inputs"] > 3
    assert seen["finished"] > 40


def test_without_faults_nothing_is_replayed() -> None:
    for seed in range(20):
        simulation = Simulation(seed, contributed=True, faulty=False)
        assert simulation.run().fatal_decision == "finished"
        assert simulation.counters["replayed from inputs"] == 0


def test_a_part_for_another_rank_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that serves its own block in place of the asker's."""

    def own_part(rank: int, source: tuple[float, ...], world_size: int) -> tuple[float, ...]:
        del rank
        return source[: len(source) // world_size]

    monkeypatch.setattr("ftcomm_chaos.sim.worker.parts.part_for", own_part)
    with pytest.raises(Violation, match="should be"):
        run_all(range(300))
