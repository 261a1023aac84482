"""Spares that hold checkpoints: they die while they fetch, and with members, and take places."""

from collections import Counter

import pytest

from ftcomm_chaos.sim.scenario import draw_conditions
from ftcomm_chaos.sim.simulation import Simulation


@pytest.mark.parametrize("seeds", [range(80), pytest.param(range(80, 160), marks=pytest.mark.slow)])
def test_spares_that_hold_checkpoints_bring_nothing_wrong(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        if draw_conditions(seed, faulty=True).gentle:
            continue  # there a spare could take the place of who has only lost a connection
        simulation = Simulation(seed, spares=2)
        seen[simulation.run().fatal_decision] += 1
        seen.update(simulation.counters)
    assert seen["prefetched"] > len(seeds) // 3
    assert seen["prefetches reported"] > len(seeds) // 20
    assert seen["finished"] > len(seeds) // 10
