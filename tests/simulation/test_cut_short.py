"""A call that a local exception ends is made again, over new links."""

import pytest

from ftcomm.recovery.recent_calls import NO_CALL
from ftcomm_chaos.sim.fault_plan import SimulatedFaultKind
from ftcomm_chaos.sim.simulation import Simulation
from ftcomm_chaos.sim.worker import user_thread
from ftcomm_chaos.sim.worker.process import SimulatedProcess
from ftcomm_chaos.sim.world import Violation


def interrupted(first: int, last: int) -> list[Simulation]:
    """Jobs whose users cut calls short."""
    jobs = [Simulation(seed) for seed in range(first, last)]
    return [
        job
        for job in jobs
        if any(planned.kind is SimulatedFaultKind.CUT_SHORT for planned in job.plan)
    ]


def run_all(jobs: list[Simulation]) -> int:
    """Count the interrupted calls among those that the users repeated."""
    for job in jobs:
        job.run()
    return sum(job.counters["cut short"] for job in jobs)


def test_calls_are_cut_short_and_made_again() -> None:
    assert run_all(interrupted(0, 60)) > 10


def test_without_new_links_half_a_call_meets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames of the first attempt are still on the links of the epoch."""

    def goes_on(process: SimulatedProcess) -> None:
        process.core.progress.call = NO_CALL

    monkeypatch.setattr(user_thread, "_cut_short", goes_on)
    with pytest.raises(Violation):
        run_all(interrupted(0, 300))
