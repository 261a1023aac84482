"""Jobs with two trackers: one is lost, stopped, or cut off, and the other one leads."""

from collections import Counter

import pytest

from ftcomm_chaos.sim.simulation import Simulation

pytestmark = pytest.mark.timeout(600)  # it computes for long, beside whatever else runs

# The last ones: two trackers that claimed in turn; a version that was to be read twice; a tracker
# that was cut off while a member was lost; one that met a worker of a later attempt.
SEEDS = (*range(60), 53, 7, 769, 178)


def test_jobs_survive_the_loss_of_either_side_of_their_tracker() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        simulation = Simulation(seed, durable=True, standby=True)
        seen[simulation.run().fatal_decision] += 1
        seen.update(simulation.counters)
        seen["led by the second"] += simulation.leading
    assert seen["epoch records"] > 500
    assert seen["trackers that have lost"] > 10
    assert seen["led by the second"] > 20
    assert seen["finished"] > 40


def test_without_faults_one_tracker_leads_to_the_end() -> None:
    for seed in range(20):
        simulation = Simulation(seed, faulty=False, durable=True, standby=True)
        assert simulation.run().fatal_decision == "finished"
        assert simulation.leading == 0
        assert simulation.counters["epoch records"] == simulation.standby
