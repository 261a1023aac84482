"""Cuts between hosts in simulated jobs: how many epochs it costs to find all detours."""

from dataclasses import replace

import pytest

from ftcomm_chaos.sim import simulation
from ftcomm_chaos.sim.partitions import PathLoss
from ftcomm_chaos.sim.scenario import Conditions, draw_conditions
from ftcomm_chaos.sim.simulation import Simulation

HOSTS, RANKS = 4, 8
CUT_AT_S = 2.0  # in the middle of a job that thinks for long
SEEDS = range(12)
# Epochs after that in which the group forms. A cut that shows only when collectives get past
# another one's detour costs one more, and one more if that detour led through it.
AT_MOST = {1: 2, 2: 4}


def four_hosts(seed: int, *, faulty: bool, durable: bool | None, spares: int | None) -> Conditions:
    """Eight workers on four hosts, where nothing else goes wrong."""
    del durable
    drawn = draw_conditions(seed, faulty=faulty, durable=False, spares=spares)
    settings = replace(drawn.settings, detect_within=1.0)
    return replace(drawn, world_size=RANKS, hosts=HOSTS, wire=False, think_s=0.2, settings=settings)


def cut_hosts(job: Simulation, one: str, other: str) -> None:
    """Nothing passes any more between the workers of two hosts; the tracker hears all."""
    for here in job.worker_ids:
        for there in job.worker_ids:
            if (job.host_of(here), job.host_of(there)) == (one, other):
                job.network.put_up(frozenset((here, there)), PathLoss.SILENT)


def epochs_of(seed: int, cuts: list[tuple[str, str]]) -> int:
    """The epochs of a job in which these hosts are cut off from each other, and never repaired."""
    job = Simulation(seed, faulty=False)
    for one, other in cuts:
        job.world.after(CUT_AT_S, cut_hosts, job, one, other)
    outcome = job.run()
    assert outcome.fatal_decision == "finished", seed
    return outcome.epochs


@pytest.mark.parametrize(
    "cuts",
    [
        [("host0", "host1")],
        [("host0", "host1"), ("host2", "host3")],
        [("host0", "host1"), ("host0", "host2")],
    ],
)
def test_cuts_between_hosts_cost_few_epochs(
    cuts: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "draw_conditions", four_hosts)
    epochs = [epochs_of(seed, cuts) - 1 for seed in SEEDS]
    assert max(epochs) <= AT_MOST[len(cuts)], epochs
    assert max(epochs) > 1, "no cut was met"
