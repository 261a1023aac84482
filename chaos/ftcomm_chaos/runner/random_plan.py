"""Random plans: faults that come at random, and the generators that draw them."""

import random
from typing import Any

from ftcomm_chaos.faults.fault_kinds import RANDOM
from ftcomm_chaos.report.attribution import EVERYTHING
from ftcomm_chaos.runner.fault_plan import PlanEntry

SOONEST_S = 0.01


def random_plan(
    *,
    kill_every_s: float | None = None,
    stop_every_s: float | None = None,
    stop_for_s: float = 1.0,
    tracker_every_s: float | None = None,
    lose_all_every_s: float | None = None,
    lose_disk_every_s: float | None = None,
) -> list[dict[str, Any]]:
    """A plan, as its file would say it, of faults for random workers at random moments.

    The moments and the workers are drawn when the plan is run, from the run's seed.
    """
    entries: list[dict[str, Any]] = []
    if kill_every_s is not None:
        entries.append({"at": {"every": kill_every_s}, "kind": "sigkill", "target": RANDOM})
    if stop_every_s is not None:
        stop = {"at": {"every": stop_every_s}, "kind": "sigstop", "target": RANDOM}
        entries.append({**stop, "for": stop_for_s})
    if tracker_every_s is not None:
        entries.append({"at": {"every": tracker_every_s}, "kind": "tracker_kill"})
    if lose_all_every_s is not None:
        entries.append({"at": {"every": lose_all_every_s}, "kind": "lose_all"})
    if lose_disk_every_s is not None:
        entries.append({"at": {"every": lose_disk_every_s}, "kind": "tracker_disk_lost"})
    return entries


def everything_once(work_s: float) -> dict[str, Any]:
    """A loss of everything about halfway through a job that works for `work_s` seconds.

    It alone finds a variable that is not in the checkpoint and that all ranks have alike.
    """
    return {"at": {"every": max(work_s / 2, SOONEST_S), "count": 1}, "kind": EVERYTHING}


def dice_of(seed: int, run: int, entry: PlanEntry) -> random.Random:
    """The dice of one entry in one run: what one entry draws does not change another's."""
    return random.Random(f"{seed}/{run}/{entry.number}")  # noqa: S311 - faults, not secrets
