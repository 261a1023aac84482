"""Reasons for which the monitor ends a job, and events that are none."""

from types import SimpleNamespace

import pytest

from ftcomm.config.job_settings import JobSettings
from ftcomm.protocol.messages import FatalDecision
from ftcomm.protocol.position import START
from ftcomm_chaos.sim.fault_plan import SimulatedFaultKind
from ftcomm_chaos.sim.invariants import Monitor
from ftcomm_chaos.sim.partitions import Partitions, PathLoss
from ftcomm_chaos.sim.world import Violation

APART = FatalDecision("RankLostError", "w0 and w1 cannot reach each other", 1, START, 0)


def monitor_of(
    kinds: list[SimulatedFaultKind], *workers: str, barred: tuple[str, ...] = ()
) -> Monitor:
    """A job of these workers in which these faults have fired; two were `barred` for a while."""
    barriers = Partitions()
    if barred:
        barriers.put_up(frozenset(barred), PathLoss.SILENT)
    places = [SimpleNamespace(worker_id=name) for name in workers]
    tracker = SimpleNamespace(
        journal=SimpleNamespace(closed_ranks=(), places=places),
        roster=SimpleNamespace(members=SimpleNamespace(slots={})),
    )
    return Monitor(
        SimpleNamespace(
            tracker=tracker,
            trackers=[tracker],
            network=SimpleNamespace(barriers=barriers),
            store=None,
            settings=JobSettings(),
            conditions=SimpleNamespace(may_stay_empty=False),
            faults=SimpleNamespace(fired=[(0.0, SimpleNamespace(kind=kind)) for kind in kinds]),
        )  # type: ignore[arg-type]  # as much of a simulation as it looks at
    )


def test_two_alone_may_be_given_up_when_every_plan_has_lost_a_link() -> None:
    monitor_of(
        [
            SimulatedFaultKind.CUT_DATA,
            SimulatedFaultKind.SILENCE,
            SimulatedFaultKind.CUT_DATA,
            SimulatedFaultKind.CUT_INSIDE,
        ],
        "w0",
        "w1",
    ).on_verdict(APART)


def test_two_of_three_may_be_given_up_when_their_relay_loses_links_too() -> None:
    job = ["w0", "w1", "w2"]
    monitor_of([SimulatedFaultKind.CUT_DATA] * 4, *job, barred=("w0", "w1")).on_verdict(APART)
    with pytest.raises(Violation, match="verdict without a reason"):
        monitor_of([SimulatedFaultKind.CUT_DATA] * 3, *job, barred=("w0", "w1")).on_verdict(APART)


@pytest.mark.parametrize(
    ("kinds", "workers"),
    [
        ([SimulatedFaultKind.CUT_DATA] * 3 + [SimulatedFaultKind.CRASH], ["w0", "w1"]),
        ([SimulatedFaultKind.CUT_DATA] * 4, ["w0", "w1", "w2"]),
    ],
)
def test_three_cuts_or_a_third_rank_are_no_reason(
    kinds: list[SimulatedFaultKind], workers: list[str]
) -> None:
    with pytest.raises(Violation, match="verdict without a reason"):
        monitor_of(kinds, *workers).on_verdict(APART)
