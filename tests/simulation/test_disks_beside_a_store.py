"""Jobs with a store whose tracker loses its journal while members live: they go on, or again."""

from collections import Counter
from collections.abc import Sequence

import pytest

from ftcomm_chaos.sim.simulation import Simulation

# The last ones lost the journal of an attempt that had no record yet: then another member, a second
# time, or everything.
FOUND = (159, 410, 475, 665)


@pytest.mark.parametrize(
    "seeds", [(*range(15), *FOUND), pytest.param(range(15, 60), marks=pytest.mark.slow)]
)
def test_jobs_with_a_store_survive_the_loss_of_their_journal(seeds: Sequence[int]) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        simulation = Simulation(seed, durable=True, spares=0, disks=True)
        seen[simulation.run().fatal_decision] += 1
        seen.update(simulation.counters)
    assert seen["journals lost"] > len(seeds)
    assert seen["taken up beside a store"] > len(seeds) // 2
    assert seen["attempts after hearing"] > len(seeds) // 4
    assert seen["finished"] > len(seeds) // 2


def test_without_faults_no_journal_is_lost() -> None:
    for seed in range(10):
        simulation = Simulation(seed, faulty=False, durable=True, disks=True)
        assert simulation.run().fatal_decision == "finished"
        assert simulation.counters["taken up beside a store"] == 0
