"""`ftcomm-tracker run`: one job's tracker and all its workers in one process."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import trio

from ftcomm.config.environment import process_environment, with_prompt_output
from ftcomm.config.plurals import counted
from ftcomm.errors import FtcommError
from ftcomm_tracker.core.events import JobEnded
from ftcomm_tracker.core.reporting.incident_words import done_text
from ftcomm_tracker.core.reporting.job_end import resume_text
from ftcomm_tracker.launcher.console import Console
from ftcomm_tracker.launcher.console_session import (
    LAST_WORDS_S,
    LogOptions,
    tell_failure,
    with_console,
)
from ftcomm_tracker.launcher.launcher import Launcher, LaunchOptions
from ftcomm_tracker.launcher.memcpy_tuning import with_tuned_copies
from ftcomm_tracker.launcher.processes.departure import GRACE_S
from ftcomm_tracker.launcher.restart_policy import RestartLimits
from ftcomm_tracker.operator.given_command import GivenCommand, keep_command
from ftcomm_tracker.operator.job_registry import register, unregister
from ftcomm_tracker.server.open_job import OpenJob, ServeOptions, open_job
from ftcomm_tracker.server.recovery_log import INCIDENTS_FILE
from ftcomm_tracker.server.server import Server

MAX_NAMED = 5  # workers whose scripts failed before, in the last words of a job


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The command `run` as it was given.

    Attributes:
        serving: of the tracker.
        command: of every worker.
        restarts: limits on those of one worker.
        log: form of the lines.
        grace_s: as in `LaunchOptions`.
        tell_end: called with the end of the job, None if the command has ended before it.
        given: the command line, kept in the state directory; None for no command of a person.
        keeps_records: after trouble a temporary state directory is kept, to be read by people.
    """

    serving: ServeOptions
    command: tuple[str, ...]
    restarts: RestartLimits
    log: LogOptions = field(default_factory=LogOptions)
    grace_s: float = GRACE_S
    tell_end: Callable[[JobEnded | None], object] | None = None
    given: GivenCommand | None = None
    keeps_records: bool = True


def spare_ids(number: int) -> tuple[str, ...]:
    """Ids of so many workers that begin without a rank."""
    return tuple(f"spare-{index}" for index in range(number))


async def run_job(options: RunOptions) -> int:
    """Run the job to its end and return the exit status for this process."""
    return await with_console(options.log, "run", lambda console: _run_one_job(options, console))


async def _run_one_job(options: RunOptions, console: Console) -> int:
    temporary = options.serving.state_dir is None
    # A temporary store is new: nothing can be resumed from it, which `require` asks for.
    own_store = not temporary or options.serving.resume != "require"
    job = await open_job(replace(options.serving, takes_up=False, own_store=own_store))
    register(job, "run", temporary=temporary)
    if options.given is not None:
        keep_command(job.state_dir, options.given)
    try:
        status = await _run_both(options, job, console)
    finally:
        if temporary and job.own_store is not None:
            shutil.rmtree(job.own_store, ignore_errors=True)
        job.journal.close()
        if temporary and not options.keeps_records:
            _forget(job)
    if options.tell_end is not None:
        options.tell_end(job.server.outcome)
    if temporary and not _tells_of_trouble(job, status):
        _forget(job)
    elif not temporary and status == 0:
        unregister(job)
    return status


def _forget(job: OpenJob) -> None:
    """Remove the state directory, which is ours, and all that speaks of it."""
    shutil.rmtree(job.state_dir, ignore_errors=True)
    unregister(job)


async def _run_both(options: RunOptions, job: OpenJob, console: Console) -> int:
    launcher = Launcher(
        LaunchOptions(
            workers=tuple(str(index) for index in range(job.durable.world_size)),
            spares=spare_ids(job.settings.spares),
            command=options.command,
            restarts=options.restarts,
            keeps_places=True,
            grace_s=options.grace_s,
        ),
        job.server,
        console,
        _environment(job, console),
    )
    job.server.launcher_kills = launcher.kill
    console.say(f"job {job.durable.job_id} at {job.address}, state in {job.state_dir}")
    console.announce(_beginning(options, job))
    began = trio.current_time()
    failures: list[FtcommError] = []
    status = FtcommError.exit_code
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, job.server, nursery.cancel_scope, failures)
        status = await launcher.run()
        with trio.move_on_after(LAST_WORDS_S):
            # The tracker would wait for those who may be dialling; ours have all ended.
            if job.server.over.is_set() and job.server.has_callers:
                await job.server.ended.wait()
        nursery.cancel_scope.cancel()
    spent_s = trio.current_time() - began
    done = done_text(spent_s, job.server.final_version, launcher.restarts)
    if not failures:
        _say_how_it_ended(options, job, console, done, status, launcher.failures)
    is_ours = options.serving.state_dir is None and options.keeps_records
    if is_ours and (failures or _tells_of_trouble(job, status)):
        console.say(f"the journal and the records of recoveries are kept in {job.state_dir}")
    if failures:
        raise failures[0]
    return status


def _say_how_it_ended(
    options: RunOptions,
    job: OpenJob,
    console: Console,
    done: str,
    status: int,
    before: Sequence[str],
) -> None:
    outcome = job.server.outcome
    if outcome is not None and outcome.ok:
        if status == 0:
            console.announce(done)
        return
    resumes = _resumes(options, job)
    if outcome is not None:
        tell_failure(console, outcome, status, resumes, before)
    elif resumes:
        console.announce(f"the job was cut short: {resumes}")


def _resumes(options: RunOptions, job: OpenJob) -> str:
    """Say from where the job resumes; empty where that is not known."""
    store = job.server.snapshot()["store"]
    if options.given is None or not isinstance(store, dict):
        return ""
    if options.serving.state_dir is None and job.own_store is not None:
        return "nothing is left to resume from: for that give --state-dir DIR"
    return resume_text(store["newest"], store["age_s"], options.given.line)


def _beginning(options: RunOptions, job: OpenJob) -> str:
    """Say at the start where checkpoints go: in hours it would be too late to change that."""
    if options.serving.state_dir is None and job.own_store is not None:
        return (
            f"{counted(job.durable.world_size, 'worker')}, checkpoint every"
            f" {job.settings.checkpoint_every} to a temporary folder; to resume by another"
            " command give --state-dir DIR"
        )
    return job.beginning()


async def _serve(server: Server, whole: trio.CancelScope, failures: list[FtcommError]) -> None:
    """Serve; without a tracker there is no job, so its failure ends the workers too."""
    try:
        await server.run()
    except FtcommError as error:
        failures.append(error)
        whole.cancel()


def _environment(job: OpenJob, console: Console) -> dict[str, str]:
    """Build the environment of every worker: this process's own and the tracker's address."""
    environment = process_environment()
    for name, _ in job.settings.to_wire():
        # Settings are the job's; a variable that an option overrides must not contradict it.
        environment.pop(f"FTCOMM_{name.upper()}", None)
    environment["FTCOMM_TRACKER"] = job.address
    environment["FTCOMM_TOKEN_FILE"] = str(job.token_file)
    if job.durable.world_size > 1 and "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = "1"
        console.say(
            "OMP_NUM_THREADS is not set: each worker gets 1, so that they do not fight for"
            " cores; set it to tune"
        )
    return with_tuned_copies(with_prompt_output(environment))


def _tells_of_trouble(job: OpenJob, status: int) -> bool:
    """True if the state directory, should we have made it up, is worth keeping."""
    return status != 0 or (job.state_dir / INCIDENTS_FILE).exists()
