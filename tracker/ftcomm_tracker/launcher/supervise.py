"""`ftcomm-tracker supervise`: one worker on this machine, for a tracker that is elsewhere."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import trio

from ftcomm.config.environment import (
    WorkerOptions,
    process_environment,
    read_token,
    with_prompt_output,
)
from ftcomm.errors import ConfigError, FtcommError
from ftcomm_tracker.launcher.console import Console
from ftcomm_tracker.launcher.console_session import LogOptions, tell_failure, with_console
from ftcomm_tracker.launcher.launcher import Launcher, LaunchOptions
from ftcomm_tracker.launcher.memcpy_tuning import with_tuned_copies
from ftcomm_tracker.launcher.processes.departure import GRACE_S
from ftcomm_tracker.launcher.remote_tracker import RemoteJob
from ftcomm_tracker.launcher.restart_policy import RestartLimits
from ftcomm_tracker.server.connections.listener import join_address

TOKEN_LOOK_S = 0.2  # between two looks for a token file that does not exist yet


@dataclass(frozen=True, slots=True)
class SuperviseOptions:
    """The command `supervise` as it was given, with what the environment says."""

    worker: WorkerOptions
    command: tuple[str, ...]
    restarts: RestartLimits
    log: LogOptions = field(default_factory=LogOptions)
    grace_s: float = GRACE_S


async def supervise_worker(options: SuperviseOptions) -> int:
    """Run one worker to the job's end and return the exit status for this process.

    Raises:
        ConfigError: no tracker or no worker id is named, or the command cannot be run.
        AuthenticationError, ProtocolVersionError: what answers is not our tracker.
        TrackerLostError: the worker ended, and there was no tracker to say what that means.
    """
    name = f"supervise-{quote(options.worker.worker_id or '', safe='')}"
    return await with_console(options.log, name, lambda console: _supervise(options, console))


async def _supervise(options: SuperviseOptions, console: Console) -> int:
    worker = options.worker
    if worker.routes is None:
        raise ConfigError("no tracker is named", remedy="give --tracker HOST:PORT")
    if worker.worker_id is None:
        raise ConfigError(
            "no worker id: none is given, and no scheduler has numbered this process",
            remedy="give --worker-id, the same at each start of this worker",
        )
    await _wait_for_token(worker, console)
    token = read_token(worker.token_file)
    job = RemoteJob(worker.routes, token, worker.worker_id, patience_s=worker.tracker_timeout)
    launch = LaunchOptions(
        workers=(worker.worker_id,),
        command=options.command,
        restarts=options.restarts,
        grace_s=options.grace_s,
    )
    launcher = Launcher(launch, job, console, _environment(worker, worker.routes))
    job.on_kill = launcher.kill
    failures: list[FtcommError] = []
    status = FtcommError.exit_code
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_keep_in_touch, job, nursery.cancel_scope, failures)
        status = await launcher.run()
        nursery.cancel_scope.cancel()
    if failures:
        raise failures[0]
    if job.outcome is not None and not job.outcome.ok:
        tell_failure(console, job.outcome, status)
    elif status == 0:
        console.announce("the job has ended well")
    return status


async def _wait_for_token(worker: WorkerOptions, console: Console) -> None:
    """Wait for a token file that a tracker has yet to write, or that somebody has yet to copy.

    It has as long to come as a tracker that is not up yet; then reading it says what is wrong.
    """
    path, said = worker.token_file, False
    with trio.move_on_after(worker.connect_timeout):
        while path is not None and not _has_content(path):
            if not said:
                console.announce(
                    f"token file {path} does not exist yet: waiting up to"
                    f" {worker.connect_timeout:g} s for it (FTCOMM_TRACKER_TIMEOUT)"
                )
                said = True
            await trio.sleep(TOKEN_LOOK_S)


def _has_content(path: Path) -> bool:
    """False while `path` is absent or empty; True where only reading it says what it is."""
    try:
        return path.stat().st_size > 0 or not path.is_file()
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True


async def _keep_in_touch(
    job: RemoteJob, whole: trio.CancelScope, failures: list[FtcommError]
) -> None:
    """A tracker that refuses us would refuse the worker too: end it."""
    try:
        await job.run()
    except FtcommError as error:
        failures.append(error)
        whole.cancel()


def _environment(worker: WorkerOptions, routes: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """This process's environment, and the options that it was given in place of variables."""
    environment = process_environment()
    environment["FTCOMM_TRACKER"] = ",".join(join_address(*route) for route in routes)
    if worker.token_file is not None:
        environment["FTCOMM_TOKEN_FILE"] = str(worker.token_file.absolute())
    return with_tuned_copies(with_prompt_output(environment))
