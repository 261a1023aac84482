"""Runs one job from its start to its end, with or without faults, and writes down what happened."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import trio

from ftcomm.config.plurals import counted
from ftcomm_chaos.faults.fault import Preparation
from ftcomm_chaos.faults.processes import children, end_orphans
from ftcomm_chaos.report.attribution import confirm, join_recoveries, pass_over_the_late
from ftcomm_chaos.report.run_record import ProcessRecord, RunRecord
from ftcomm_chaos.runner.fault_plan import library_faults, tracker_faults
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
        limit_s: the run is ended then, and that is a violation.
        populate: starts and loses workers, in place of starting them all at once.
        show: is called with the progress of the run, in words, each second.
        interrupted: once it is set, the run is cut short, which is no violation.
    """

    limit_s: float = 3600.0
    populate: Replay | None = None
    show: Callable[[str], object] | None = None
    interrupted: trio.Event = field(default_factory=trio.Event)


async def run_once(spec: JobSpec, schedule: FaultScheduler, options: ChaosRunOptions) -> RunRecord:
    """Run the job of `spec` once; every process of it has ended when this returns or raises."""
    make_folders(spec)
    notes = Announcements(spec.folder)
    with contextlib.ExitStack() as at_end:
        at_end.callback(end_orphans, children())  # after all that faults have started has ended
        at_end.callback(notes.close)
        async with trio.open_nursery() as nursery:
            run = Preparation(spec.worker_ids, nursery, at_end, spares=spec.spare_ids)
            run.own_tracker = options.populate is not None
            for entry in schedule.entries:
                await entry.fault.prepare(run)
            job = _job(spec, run, notes, schedule, options)
            try:
                status, in_time = await _run_until(job, notes, schedule, options, nursery)
                ended_at = job.now
            finally:
                job.finish()
                nursery.cancel_scope.cancel()
    return record_of(spec, job, schedule, options, status if in_time else None, ended_at)


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


def _job(
    spec: JobSpec,
    run: Preparation,
    notes: Announcements,
    schedule: FaultScheduler,
    options: ChaosRunOptions,
) -> LiveJob:
    later = library_faults(schedule.entries, joined=True)
    command = notes.wrap(spec.user_command(), run, spec.out if spec.in_out else None, later)
    planned = notes.recorded(library_faults(schedule.entries))
    if planned:
        spec = replace(spec, environment={**spec.environment, "FTCOMM_FAULTS": planned})
    deaths = notes.recorded(tracker_faults(schedule.entries))
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
        result="",
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
