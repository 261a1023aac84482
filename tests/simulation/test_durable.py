"""Jobs with a store: everything is lost, again and again, and the job goes on."""

from collections import Counter
from collections.abc import Sequence

import pytest

from ftcomm_chaos.sim.simulation import Simulation

# The last two: a member was away when a version became durable; a closed worker was needed again.
FOUND = (524, 108)


@pytest.mark.parametrize(
    "seeds", [(*range(15), *FOUND), pytest.param(range(15, 60), marks=pytest.mark.slow)]
)
def test_jobs_with_a_store_survive_the_loss_of_everything(seeds: Sequence[int]) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        simulation = Simulation(seed, durable=True)
        seen[simulation.run().fatal_decision] += 1
        seen.update(simulation.counters)
    assert seen["total losses"] > len(seeds)
    assert seen["version records"] > len(seeds)
    assert seen["restored"] > len(seeds) // 3
    assert seen["finished"] > len(seeds) // 2


def test_without_faults_nothing_is_lost_or_begun_again() -> None:
    for seed in range(20):
        simulation = Simulation(seed, faulty=False, durable=True)
        assert simulation.run().fatal_decision == "finished"
        assert simulation.counters["attempts"] <= 1
