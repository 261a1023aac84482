"""Runs one job from its start to its end, with or without faults, and writes down what happened."""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio

from ftcomm.config.plurals import counted
from ftcomm_chaos.faults.fault_kinds import Preparation
from ftcomm_chaos.faults.processes import children, end_orphans
from ftcomm_chaos.report.attribution import confirm, join_recoveries, pass_over_the_late
from ftcomm_chaos.report.run_record import ProcessRecord, RunRecord
from ftcomm_chaos.runner.fault_plan import PlanEntry, library_faults, tracker_faults
from ftcomm_chaos.runner.fault_scheduler import FaultScheduler
from ftcomm_chaos.runner.job import JobSpec, LiveJob, make_folders
from ftcomm_chaos.runner.launched_job import LaunchedJob
from ftcomm_chaos.runner.output_parser import ParsedOutput
from ftcomm_chaos.runner.process_announcements import Announcements
from ftcomm_chaos.runner.served_job import ServedJob
from ftcomm_chaos.runner.trace_replay import Replay

SHOW_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class ChaosRunOptions:
    """Options of one run.

    Attributes:
        entries: the faults.
        seed: of all random choices.
        run: the number of this run under its seed.
        stop_after_s: faults that come again and again stop then.
        limit_s: the run is ended then, and that is a violation.
        compare: file in the output folder that holds the result, None for none.
        populate: starts and loses workers, in place of starting them all at once.
        show: is called with the progress of the run, in words, each second.
        interrupted: once it is set, the run is cut short, which is no violation.
    """

    entries: Sequence[PlanEntry] = ()
    seed: int = 0
    run: int = 0
    stop_after_s: float = float("inf")
    limit_s: float = 3600.0
    compare: str | None = None
    populate: Replay | None = None
    show: Callable[[str], object] | None = None
    interrupted: trio.Event = field(default_factory=trio.Event)


async def run_once(spec: JobSpec, options: ChaosRunOptions) -> tuple[RunRecord, FaultScheduler]:
    """Run the job of `spec` once; every process of it has ended when this returns or raises."""
    make_folders(spec)
    notes = Announcements(spec.folder)
    schedule = FaultScheduler(options.entries, options.seed, options.run, options.stop_after_s)
    with contextlib.ExitStack() as at_end:
        at_end.callback(end_orphans, children())  # after all that faults have started has ended
        at_end.callback(notes.close)
        async with trio.open_nursery() as nursery:
            run = _preparation(spec, nursery, at_end)
            run.own_tracker = options.populate is not None
            for entry in options.entries:
                await entry.fault.prepare(run)
            job = _job(spec, run, notes, schedule, options)
            try:
                status, in_time = await _run_until(job, notes, schedule, options, nursery)
                ended_at = job.now
            finally:
                job.finish()
                nursery.cancel_scope.cancel()
    return record_of(spec, job, schedule, options, status if in_time else None, ended_at), schedule


async def _run_until(
    job: LiveJob,
    notes: Announcements,
    schedule: FaultScheduler,
    options: ChaosRunOptions,
    nursery: trio.Nursery,
) -> tuple[int, bool]:
    nursery.start_soon(job.read_notes, notes, nursery)
    nursery.start_soon(schedule.deliver, job)
    if options.show is not None:
        nursery.start_soon(_show_progress, job, schedule, options.show)
    if options.populate is not None:
        assert isinstance(job, ServedJob)
        nursery.start_soon(options.populate.populate, job)
    status = 0
    with trio.move_on_after(options.limit_s) as limit:
        nursery.start_soon(_cut_short, options.interrupted, limit)
        status = await job.run()
    for note in notes.take():  # a fault of the last moment is in the pipe when the job is over
        job.take_note(note, nursery)
    return status, not limit.cancelled_caught


async def _cut_short(interrupted: trio.Event, run: trio.CancelScope) -> None:
    await interrupted.wait()
    run.cancel()


async def _show_progress(
    job: LiveJob, schedule: FaultScheduler, show: Callable[[str], object]
) -> None:
    """Show the progress until the run is over, which cancels this."""
    size = job.spec.world_size
    while True:
        await trio.sleep(SHOW_EVERY_S)
        delivered = sum(not delivery.failed for delivery in schedule.deliveries)
        show(progress_text(job.now, job.output, world_size=size, delivered=delivered))


def progress_text(seconds: float, output: ParsedOutput, *, world_size: int, delivered: int) -> str:
    """Time that the run has taken, faults and recoveries, and its activity now.

    Args:
        seconds: since the run began.
        output: what the job has said so far.
        world_size: of the job.
        delivered: number of faults that were delivered.
    """
    parts = [f"{seconds:.0f} s"]
    if delivered:
        parts.append(counted(delivered, "fault"))
    if output.recoveries:
        parts.append(counted(output.recoveries, "recovery", "recoveries"))
    return ", ".join([*parts, _activity(output, world_size)])


def _activity(output: ParsedOutput, world_size: int) -> str:
    if output.all_closed:
        return "all ranks have closed"
    if not output.formed:
        return "waiting for all workers to join"
    if output.recovering:
        return f"recovering, epoch {output.epoch}"
    if output.closed:
        return f"{len(output.closed)} of {counted(world_size, 'rank')} have closed"
    return f"running, epoch {output.epoch}"


def _preparation(spec: JobSpec, nursery: trio.Nursery, at_end: contextlib.ExitStack) -> Preparation:
    return Preparation(spec.worker_ids, nursery, at_end, spares=spec.spare_ids)


def _job(
    spec: JobSpec,
    run: Preparation,
    notes: Announcements,
    schedule: FaultScheduler,
    options: ChaosRunOptions,
) -> LiveJob:
    later = library_faults(options.entries, joined=True)
    command = notes.wrap(spec.user_command(), run, spec.out if spec.in_out else None, later)
    planned = notes.recorded(library_faults(options.entries))
    if planned:
        spec = replace(spec, environment={**spec.environment, "FTCOMM_FAULTS": planned})
    deaths = notes.recorded(tracker_faults(options.entries))
    if deaths:
        run.tracker_options += ["--faults", deaths]
    if run.own_tracker:
        populated = options.populate is None
        return ServedJob(spec, run, schedule.hear, command=command, populated=populated)
    return LaunchedJob(spec, run, schedule.hear, command=command)


def record_of(
    spec: JobSpec,
    job: LiveJob,
    schedule: FaultScheduler,
    options: ChaosRunOptions,
    status: int | None,
    ended_at: float,
) -> RunRecord:
    """Return the record of a finished run; `status` is None if the runner had to end it."""
    is_cut_short = status is None and options.interrupted.is_set()
    record = RunRecord(
        name=spec.name,
        status=status,
        over_limit_s=None if is_cut_short or status is not None else options.limit_s,
        wall_s=ended_at,
        formed_s=job.formed_at,
        closed_s=job.closed_at,
        result="" if options.compare is None else digest_of(spec.out / options.compare),
        processes=[
            ProcessRecord(
                process.who,
                process.number,
                process.pid,
                process.began_at,
                process.ended_at,
                process.how,
            )
            for process in job.processes
        ],
        deliveries=schedule.deliveries + (options.populate.deliveries if options.populate else []),
        incidents=[
            {**incident, "at_s": incident["wall_started"] - job.began_wall}
            for incident in job.incidents()
        ],
        violations=[*job.trouble, *job.output.other_values],
        attempts=job.attempts,
        error=job.output.error,
        tail=job.output.tail,
        folder=str(spec.folder),
    )
    confirm(record)
    join_recoveries(record)
    pass_over_the_late(record)
    return record


def digest_of(path: Path) -> str:
    """SHA-256 of a file, empty if there is none or nothing in it: that compares nothing."""
    try:
        if not path.stat().st_size:
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
