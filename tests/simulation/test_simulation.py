"""Whole jobs under simulated faults: every rule holds, and a seed is a run."""

import pytest
from click.testing import CliRunner

from ftcomm_chaos.cli import main
from ftcomm_chaos.sim.fault_plan import OF_STANDBY, SimulatedFaultKind
from ftcomm_chaos.sim.seed_sweep import MIN_FAULTS_PER_RUN, Sweep, run_seeds
from ftcomm_chaos.sim.simulation import Simulation

slow = pytest.mark.slow

SHARES = 10
ENDINGS = {"finished", "JobLostError", "CollectiveMismatchError", "RankLostError"}
# A member was dead when the tracker's journal was lost: too rare for every share.
RARE_ENDINGS = {"TrackerLostError"}
# Faults of networks that lose large packets are drawn where messages are.
NOT_HERE = OF_STANDBY | {SimulatedFaultKind.HOLE, SimulatedFaultKind.HOST_HOLE}
PER_SHARE = 300  # 3,000 schedules in all, with more than 25,000 faults
IN_EVERY_RUN = 2  # of the shares


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "share",
    [*range(IN_EVERY_RUN), *(pytest.param(n, marks=slow) for n in range(IN_EVERY_RUN, SHARES))],
)
def test_every_rule_holds_under_faults(share: int) -> None:
    sweep = run_seeds(range(share * PER_SHARE, (share + 1) * PER_SHARE))
    assert [(failure.replay, failure.what) for failure in sweep.failures] == []
    assert sweep.runs == PER_SHARE
    assert sweep.faults_per_run >= MIN_FAULTS_PER_RUN
    assert sweep.ok
    assert set(sweep.faults) == {kind.value for kind in set(SimulatedFaultKind) - NOT_HERE}
    assert set(sweep.endings) - RARE_ENDINGS == ENDINGS


@pytest.mark.timeout(600)
def test_what_a_tracker_does_in_large_groups_alone_is_due_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every deadline is in the future once it was looked at; so small, groups become small too."""
    monkeypatch.setattr("ftcomm_tracker.core.group_state.SMALL_GROUP", 2)
    monkeypatch.setattr("ftcomm_tracker.core.roster.SMALL_GROUP", 2)
    monkeypatch.setattr("ftcomm_tracker.core.group_state.LOOK_S_PER_MEMBER", 0.1)
    sweep = run_seeds(range(30))
    assert [(failure.replay, failure.what) for failure in sweep.failures] == []


def test_a_sweep_in_which_too_little_went_wrong_fails() -> None:
    sweep = Sweep()
    for _ in range(10):
        sweep.add(Simulation(3, faulty=False).run())
    assert (sweep.ok, sweep.too_few_faults) == (False, True)

    done = CliRunner().invoke(main, ["sim", "--seeds", "0"])
    assert done.exit_code == 3
    assert "too few faults" in done.output.splitlines()[-1]


def test_without_faults_every_job_finishes_in_one_epoch() -> None:
    outcomes = [Simulation(seed, faulty=False).run() for seed in range(60)]
    assert {(outcome.fatal_decision, outcome.epochs) for outcome in outcomes} == {("finished", 1)}


def test_the_same_seed_is_the_same_run() -> None:
    traces = []
    for _ in range(2):
        simulation = Simulation(11, tracing=True)
        simulation.run()
        traces.append(simulation.world.lines)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 20


def test_the_command_says_how_to_see_a_seed_again() -> None:
    done = CliRunner().invoke(main, ["sim", "--seeds", "30"])
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "all rules held")
    one = CliRunner().invoke(main, ["sim", "--seed", "3", "--trace"])
    assert one.exit_code == 0
    assert "seed 3:" in one.output.splitlines()[-1]
