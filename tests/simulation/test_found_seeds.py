"""Seeds of which long runs have found that a rule did not hold, with what was wrong."""

import pytest

from ftcomm_chaos.sim.simulation import Simulation


def test_a_process_without_a_plan_does_not_end_the_only_tracker() -> None:
    """It had been welcomed by trackers that left no plan, and were gone."""
    assert Simulation(910039089).run().fatal_decision != ""


@pytest.mark.parametrize("seed", [31002217])
def test_an_attempt_over_an_empty_chain_keeps_the_name_of_its_series(seed: int) -> None:
    """As the tracker does, of which the simulator gave it another."""
    assert Simulation(seed, disks=True).run().fatal_decision == "finished"
