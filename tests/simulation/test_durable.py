"""Jobs with a store: everything is lost, again and again, and the job goes on."""

from collections import Counter

from ftcomm_chaos.sim.simulation import Simulation

# The last two: a member was away when a version became durable; a closed worker was needed again.
SEEDS = (*range(60), 524, 108)


def test_jobs_with_a_store_survive_the_loss_of_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        simulation = Simulation(seed, durable=True)
        seen[simulation.run().fatal_decision] += 1
        seen.update(simulation.counters)
    assert seen["total losses"] > 60
    assert seen["version records"] > 60
    assert seen["restored"] > 20
    assert seen["finished"] > 40


def test_without_faults_nothing_is_lost_or_begun_again() -> None:
    for seed in range(20):
        simulation = Simulation(seed, faulty=False, durable=True)
        assert simulation.run().fatal_decision == "finished"
        assert simulation.counters["attempts"] <= 1
