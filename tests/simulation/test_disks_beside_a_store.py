"""Jobs with a store whose tracker loses its journal while members live: they go on, or again."""

from collections import Counter

from ftcomm_chaos.sim.simulation import Simulation

# The last ones lost the journal of an attempt that had no record yet: then another member, a second
# time, or everything.
SEEDS = (*range(60), 159, 410, 475, 665)


def test_jobs_with_a_store_survive_the_loss_of_their_journal() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        simulation = Simulation(seed, durable=True, spares=0, disks=True)
        seen[simulation.run().fatal_decision] += 1
        seen.update(simulation.counters)
    assert seen["journals lost"] > 60
    assert seen["taken up beside a store"] > 40
    assert seen["attempts after hearing"] > 20
    assert seen["finished"] > 40


def test_without_faults_no_journal_is_lost() -> None:
    for seed in range(10):
        simulation = Simulation(seed, faulty=False, durable=True, disks=True)
        assert simulation.run().fatal_decision == "finished"
        assert simulation.counters["taken up beside a store"] == 0
