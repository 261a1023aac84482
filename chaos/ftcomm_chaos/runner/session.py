"""One invocation of ``ftcomm-chaos run``: a run without faults, runs with them, the verdict."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trio

from ftcomm.config.plurals import counted
from ftcomm_chaos.history import History
from ftcomm_chaos.report.attribution import EVERYTHING
from ftcomm_chaos.report.run_record import RunRecord
from ftcomm_chaos.report.verdict import Verdict, differs, judge
from ftcomm_chaos.runner.fault_plan import PlanEntry, check_plan
from ftcomm_chaos.runner.fault_scheduler import FaultScheduler
from ftcomm_chaos.runner.history_checks import judge_history, last_result
from ftcomm_chaos.runner.job import JobSpec
from ftcomm_chaos.runner.runner import ChaosRunOptions, run_once
from ftcomm_chaos.runner.spot_trace import NodeEvent
from ftcomm_chaos.runner.trace_replay import Replay

SLOWER = 20.0  # times a run without faults: more than that is not slow, it hangs
STARTS_S = 120.0  # and this much for starting processes again
REFERENCE_LIMIT_S = 86400.0
SOONEST_S = 0.01
NEVER = trio.Event()  # is not set
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Request of the user, checked.

    Attributes:
        job: the run without faults; the others are made after it.
        plan: the faults, as a plan file says them.
        loses_all_once: each job loses everything once besides, about halfway.
        trace: or the trace to replay.
        speed: trace seconds in one second.
        seed: of all random choices.
        duration_s: how long to break things; jobs are run one after another until it is over.
            None is one job, to its end.
        limit_s: for one job, None to derive it from the run without faults.
        compare: file in the output folder that holds the result, None for the last result.
    """

    job: JobSpec
    plan: Sequence[dict[str, Any]] = ()
    loses_all_once: bool = False
    trace: Sequence[NodeEvent] = ()
    speed: float = 1.0
    seed: int = 0
    duration_s: float | None = None
    limit_s: float | None = None
    compare: str | None = None

    @property
    def result_name(self) -> str:
        """Name of the compared result."""
        return self.compare or "the last result"

    def entries(self) -> list[PlanEntry]:
        """The faults, made anew for each run: they keep state."""
        return check_plan(list(self.plan), self.job.world_size)


@dataclass(slots=True)
class RunSession:
    """Runs of a session and their outcome."""

    request: RunRequest
    reference: RunRecord
    runs: list[RunRecord]
    verdict: Verdict

    def goodput(self) -> float | None:
        """Time that the work takes without faults, divided by what it took with them."""
        ended = [run for run in self.runs if run.status == 0]
        if self.reference.status != 0 or not ended:
            return None
        return self.reference.work_s * len(ended) / sum(run.work_s for run in ended)


async def run_session(
    request: RunRequest,
    say: Say,
    show: Say | None = None,
    interrupted: trio.Event = NEVER,
) -> RunSession:
    """Run everything and judge it.

    Args:
        request: what to run.
        say: is called with a line for each step.
        show: is called each second with the progress of the present run; a later one replaces it.
        interrupted: once it is set, the present run is cut short, and no other begins.
    """
    say("running without faults")
    options = ChaosRunOptions(
        limit_s=request.limit_s or REFERENCE_LIMIT_S, show=show, interrupted=interrupted
    )
    reference, peace = await _run(request, request.job, FaultScheduler(), options)
    say(_ended(reference))
    if reference.status != 0 or not reference.result:
        verdict = judge(reference, [], result_name=request.result_name)
        return RunSession(request, reference, [], verdict)
    if request.loses_all_once:
        # It alone finds a variable that is not in the checkpoint and that all ranks have alike.
        lasts_s = min(reference.work_s, request.duration_s or math.inf)
        halfway_s = max(lasts_s / 2, SOONEST_S)
        loss = {"at": {"every": halfway_s, "count": 1}, "kind": EVERYTHING}
        request = replace(request, plan=[*request.plan, loss])
    runs, missed = await _break_things(request, reference, peace, say, options)
    again = None
    if differs(reference, runs) and not interrupted.is_set():
        say(
            "results differ: running without faults again, to see whether they differ by themselves"
        )
        job = _named(request.job, "without faults, again", "again")
        again, _ = await _run(request, job, FaultScheduler(), options, peace)
    name = request.result_name
    verdict = judge(reference, runs, missed=missed, result_name=name, again=again)
    return RunSession(request, reference, runs, verdict)


async def _break_things(
    request: RunRequest,
    reference: RunRecord,
    peace: History | None,
    say: Say,
    usual: ChaosRunOptions,
) -> tuple[list[RunRecord], list[str]]:
    """Jobs with faults, one after another, until the time is over."""
    end = None if request.duration_s is None else trio.current_time() + request.duration_s
    runs: list[RunRecord] = []
    missed: list[str] = []
    # A job may wait for a machine until its trace is over.
    trace_s = request.trace[-1].at_s / request.speed if request.trace else 0.0
    while not runs or (end is not None and _worth_another(request, runs, end)):
        number = len(runs)
        job = _named(request.job, f"run {number + 1} with faults", f"run-{number + 1}")
        say(f"running with faults{f', job {number + 1}' if number else ''}")
        lasts_s = max(request.duration_s or 0.0, trace_s)
        patience_s = SLOWER * reference.wall_s + STARTS_S + lasts_s
        left_s = math.inf if end is None else end - trio.current_time()
        schedule = FaultScheduler(request.entries(), request.seed, number, left_s)
        replay = Replay(request.trace, request.speed) if request.trace else None
        options = replace(usual, limit_s=request.limit_s or patience_s, populate=replay)
        run, _ = await _run(request, job, schedule, options, peace)
        runs.append(run)
        missed += map(str, schedule.missed())
        say(_ended(run))
        if run.status != 0:
            break
    return runs, missed + never_delivered(request, runs)


def never_delivered(request: RunRequest, runs: Sequence[RunRecord]) -> list[str]:
    """List the repeated faults that were never delivered."""
    done = {delivery.entry for run in runs for delivery in run.delivered}
    again = [entry for entry in request.entries() if not entry.once]
    return [str(entry) for entry in again if entry.number not in done]


def _worth_another(request: RunRequest, runs: Sequence[RunRecord], end: float) -> bool:
    """Plans of moments and traces are one job; what comes again and again fills the time."""
    again = not request.trace and all("every" in entry["at"] for entry in request.plan)
    return again and trio.current_time() + runs[-1].wall_s / 2 < end


async def _run(
    request: RunRequest,
    job: JobSpec,
    schedule: FaultScheduler,
    options: ChaosRunOptions,
    peace: History | None = None,
) -> tuple[RunRecord, History | None]:
    """One run, judged by itself and against the history of the run without faults."""
    record = await run_once(job, schedule, options)
    history = judge_history(job, record, peace)
    if request.compare is not None:
        record.result = digest_of(job.out / request.compare)
    elif history is not None:
        record.result = last_result(history)
    return record, history


def digest_of(path: Path) -> str:
    """SHA-256 of a file, empty if there is none or nothing in it: that compares nothing."""
    try:
        if not path.stat().st_size:
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _named(job: JobSpec, name: str, folder: str) -> JobSpec:
    return replace(job, name=name, folder=job.folder.parent / folder)


def _ended(run: RunRecord) -> str:
    how = f"status {run.status}"
    if run.status is None:
        how = "cut short" if run.is_cut_short else "no end in time"
    faults = f", {counted(len(run.delivered), 'fault')}" if run.deliveries else ""
    recoveries = sum(incident["completed"] for incident in run.incidents)
    recovered = counted(recoveries, "recovery", "recoveries")
    return f"  {how} after {run.wall_s:.1f} s{faults}, {recovered}"
