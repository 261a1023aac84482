"""Jobs with two trackers: one is lost, stopped, or cut off, and the other one leads."""

from collections import Counter
from collections.abc import Sequence

import pytest

from ftcomm_chaos.sim.simulation import Simulation

pytestmark = pytest.mark.timeout(600)  # it computes for long, beside whatever else runs

# The last ones: two trackers that claimed in turn; a version that was to be read twice; a tracker
# that was cut off while a member was lost; one that met a worker of a later attempt.
FOUND = (53, 7, 769, 178)


@pytest.mark.parametrize(
    "seeds", [(*range(12), *FOUND), pytest.param(range(12, 60), marks=pytest.mark.slow)]
)
def test_jobs_survive_the_loss_of_either_side_of_their_tracker(seeds: Sequence[int]) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        simulation = Simulation(seed, durable=True, standby=True)
        seen[simulation.run().fatal_decision] += 1
        seen.update(simulation.counters)
        seen["led by the second"] += simulation.leading
    assert seen["epoch records"] > 7 * len(seeds)
    assert seen["trackers that have lost"] > len(seeds) // 8
    assert seen["led by the second"] > len(seeds) // 4
    assert seen["finished"] > len(seeds) // 2


def test_without_faults_one_tracker_leads_to_the_end() -> None:
    for seed in range(20):
        simulation = Simulation(seed, faulty=False, durable=True, standby=True)
        assert simulation.run().fatal_decision == "finished"
        assert simulation.leading == 0
        assert simulation.counters["epoch records"] == simulation.standby
