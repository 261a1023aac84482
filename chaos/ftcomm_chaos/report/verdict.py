"""The verdict over a reference run and runs with faults: pure, over records."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from ftcomm_chaos.report.attribution import unplanned_deaths
from ftcomm_chaos.report.run_record import RunRecord
from ftcomm_tracker.launcher.restart_policy import describe_exit


class RunExit(IntEnum):
    """Exit status of the command."""

    PASSED = 0
    VIOLATED = 1
    NOTHING_TESTED = 2
    LACKING = 3


@dataclass(slots=True)
class Verdict:
    """Verdict on the runs.

    Attributes:
        outcome: the exit status.
        reasons: sentences for people; empty if all is well.
    """

    outcome: RunExit
    reasons: list[str] = field(default_factory=list)


def judge(
    reference: RunRecord,
    runs: Sequence[RunRecord],
    *,
    missed: Sequence[str] = (),
    result_name: str = "the result",
    again: RunRecord | None = None,
) -> Verdict:
    """The verdict.

    Args:
        reference: without faults.
        runs: with faults.
        missed: promised faults that were not delivered, in words.
        result_name: what was compared, in words.
        again: a second run without faults, made when results differ.
    """
    broken = [*_broken(reference)]
    for run in runs:
        broken += _against(reference, run, result_name)
        broken += _broken(run)
    if again is not None and again.status != 0:
        broken += _broken(again)
    elif again is not None and (again.result != reference.result or again.violations):
        what = result_name if again.result != reference.result else again.violations[0]
        broken.insert(  # it explains the others
            0,
            f"two runs without faults differ too, in {what}: the script does not compute the same"
            " twice (unseeded random numbers, time, process ids, or order of files)",
        )
    if broken:
        return Verdict(RunExit.VIOLATED, broken)
    untested = _untested(reference, runs, missed, result_name)
    return Verdict(RunExit.NOTHING_TESTED if untested else RunExit.PASSED, untested)


def differs(reference: RunRecord, runs: Sequence[RunRecord]) -> bool:
    """True if some run ended well with another result, last or on the way to it."""
    return any(
        run.status == 0 and (run.result != reference.result or run.violations) for run in runs
    )


def _broken(run: RunRecord) -> list[str]:
    """List the faults of one run by itself."""
    found = []
    if run.over_limit_s is not None:
        found.append(
            f"{run.name}: no end within {run.over_limit_s:.0f} s; `output.txt` in {run.folder}"
            " says what it waited for"
        )
    elif run.status:
        how = describe_exit(run.status)
        why = run.error or next((line for line in reversed(run.tail) if line.strip()), "")
        name, _, rest = why.partition(": ")
        found.append(f"{run.name}: the job {how}: {rest if f'({name})' in how else why}")
    found += [
        f"{run.name}: worker {process.who} (incarnation {process.number}, process {process.pid})"
        f" {process.how}, and no fault did that"
        for process in unplanned_deaths(run)
        if process.who != "tracker" and run.status == 0
    ]
    found += [
        f"{run.name}: fault {delivery.entry} ({delivery.what}): its victim did not die of SIGKILL"
        for delivery in run.delivered
        if not delivery.confirmed
    ]
    found += [f"{run.name}: {violation}" for violation in run.violations]
    return found


def _against(reference: RunRecord, run: RunRecord, what: str) -> list[str]:
    if reference.status != 0 or run.status != 0 or run.result == reference.result:
        return []
    if not run.result:
        return [f"{run.name}: {what} is missing or empty, and without faults it is there"]
    undisturbed = f"{reference.result[:16]}..." if reference.result else "none"
    return [f"{run.name}: {what} differs: {run.result[:16]}..., without faults {undisturbed}"]


def _untested(
    reference: RunRecord, runs: Sequence[RunRecord], missed: Sequence[str], result_name: str
) -> list[str]:
    cut = [run for run in (reference, *runs) if run.is_cut_short]
    if cut:
        return [f"{run.name}: cut short by a signal after {run.wall_s:.0f} s" for run in cut]
    if not reference.result:
        missing = f"{result_name} is not there or empty after the run without faults"
        remedy = "name a file that the script writes to {out} by --compare"
        return [f"{missing}, so nothing was compared; {remedy}"]
    found = [f"not delivered: {fault}" for fault in missed]
    if not any(run.delivered for run in runs):
        found.append("no fault was delivered; let the script run longer, or the faults come sooner")
    return found
