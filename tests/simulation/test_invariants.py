"""Reasons for which the monitor ends a job, and events that are none."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from ftcomm.config.job_settings import JobSettings
from ftcomm.protocol.messages import FatalDecision
from ftcomm.protocol.position import START
from ftcomm_chaos.sim.end_rules import EndRules
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
        lost_decisions=[],
        has_given_up=False,
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


def tell_end(
    *, after_s: float, puts: bool = True, finished: int = -1, standby: bool = False
) -> int:
    """A tracker tells that all have closed; how often that was without the store's record."""
    simulation = SimpleNamespace(
        store=SimpleNamespace(facts=lambda: SimpleNamespace(finished=finished)),
        settings=JobSettings(replace_within=4.0),
        world=SimpleNamespace(now=10.0 + after_s),
        standby=standby,
        counters=Counter(),
    )
    tracker = SimpleNamespace(
        journal=SimpleNamespace(final_version=4),
        chain=SimpleNamespace(is_putting=lambda _kind: puts),
        closed_at=10.0,
    )
    EndRules(simulation).on_all_closed(tracker)  # type: ignore[arg-type]  # as much as it looks at
    return simulation.counters["ends without a record"]


def test_an_end_is_told_that_is_recorded_or_was_awaited_for_long() -> None:
    assert tell_end(after_s=0.1, puts=False, finished=4) == 0
    assert tell_end(after_s=4.0) == 1


@pytest.mark.parametrize(
    "told", [{"after_s": 3.9}, {"after_s": 4.0, "puts": False}, {"after_s": 4.0, "standby": True}]
)
def test_an_end_is_not_told_before_its_record_otherwise(told: dict[str, Any]) -> None:
    with pytest.raises(Violation, match="the store does not say so"):
        tell_end(**told)


def end_all(*, disk_lost: bool, lost_version: int = -1, told: FatalDecision | None = None) -> None:
    """All processes have ended, and the tracker's journal knows of no end."""
    tracker = SimpleNamespace(
        journal=SimpleNamespace(fatal_decision=None, final_version=-1),
        disk_lost=disk_lost,
        final_version=lost_version,
        fatal_decision=told,
        lost_decisions=[],
        has_given_up=False,
        ended=False,
    )
    simulation = SimpleNamespace(tracker=tracker, trackers=[tracker], store=None)
    EndRules(simulation).check()  # type: ignore[arg-type]  # as much as it looks at


def test_an_end_may_be_lost_with_its_journal_once_all_have_heard_it() -> None:
    end_all(disk_lost=True, lost_version=0)
    end_all(disk_lost=True, told=APART)


def test_an_end_that_is_recorded_need_not_be_journalled_yet() -> None:
    """Another tracker reads the record, and tells it to the members."""
    end_all(disk_lost=False, told=APART)


@pytest.mark.parametrize(
    "kept", [{"disk_lost": True}, {"disk_lost": False}, {"disk_lost": False, "lost_version": 0}]
)
def test_an_end_that_no_lost_journal_had_is_known(kept: dict[str, Any]) -> None:
    with pytest.raises(Violation, match="the tracker knows of no end"):
        end_all(**kept)
