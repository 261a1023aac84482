"""Spares that hold checkpoints: they die while they fetch, and with members, and take places."""

from collections import Counter

from ftcomm_chaos.sim.scenario import draw_conditions
from ftcomm_chaos.sim.simulation import Simulation

SEEDS = range(120)


def test_spares_that_hold_checkpoints_bring_nothing_wrong() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        if draw_conditions(seed, faulty=True).gentle:
            continue  # there a spare could take the place of who has only lost a connection
        simulation = Simulation(seed, spares=2)
        seen[simulation.run().fatal_decision] += 1
        seen.update(simulation.counters)
    assert seen["prefetched"] > 60
    assert seen["prefetches reported"] > 10
    assert seen["finished"] > 20
