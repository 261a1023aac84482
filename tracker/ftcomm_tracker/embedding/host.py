"""The host of a launched job: a process that does what ``ftcomm-tracker run`` does.

A process of its own, so that the workers' restarts and the tracker's answers do not depend on what
the caller's process is doing, and so that no process is forked from one with threads.
"""

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import trio

from ftcomm.errors import FtcommError
from ftcomm_tracker.core.events import JobEnded
from ftcomm_tracker.embedding.caller import take_input, wait_for_end_of_caller
from ftcomm_tracker.embedding.launch_folder import HostEnd, HostOptions, LaunchFolder
from ftcomm_tracker.launcher.console_session import LogOptions
from ftcomm_tracker.launcher.restart_policy import RestartLimits
from ftcomm_tracker.launcher.run_job import RunOptions, run_job
from ftcomm_tracker.launcher.signals import leaves_of
from ftcomm_tracker.server.open_job import ServeOptions

WORKER = "ftcomm_tracker.embedding.worker"
_BEGIN_WITHIN_S = 10.0  # a host that opens its job for longer, on a disk that hangs, say, just ends
_LOOK_AGAIN_S = 0.05


def main(path: str) -> None:
    """Run the job of the folder `path`."""
    folder = LaunchFolder(Path(path))
    options = folder.read_options()
    watched = take_input()
    threading.Thread(target=_end_with_caller, args=(options.parent, watched), daemon=True).start()
    end = _run(folder, options)
    folder.write_end(end)
    if os.getppid() != options.parent:  # nobody else is left to do it
        folder.remove()
    sys.exit(end.status)


def _run(folder: LaunchFolder, options: HostOptions) -> HostEnd:
    outcomes: list[JobEnded | None] = []
    run = RunOptions(
        serving=ServeOptions(
            world_size=options.workers,
            state_dir=None if options.state_dir is None else Path(options.state_dir),
            settings=options.settings,
        ),
        command=(sys.executable, *folder.boot_words(WORKER)),
        restarts=RestartLimits(options.max_restarts, options.restart_window),
        log=LogOptions(shown=logging.INFO if options.verbose else logging.WARNING),
        grace_s=options.grace,
        tell_end=outcomes.append,
        keeps_records=False,
    )
    try:
        status = trio.run(run_job, run)
    except (FtcommError, BaseExceptionGroup) as error:
        return _refused(leaves_of(error)[0])
    outcome = outcomes[0] if outcomes else None
    if outcome is None:
        return HostEnd(False, status)
    return HostEnd(outcome.ok, status, outcome.error, outcome.cause)


def _refused(error: BaseException) -> HostEnd:
    """End of a host whose job did not begin, or whose tracker failed."""
    if not isinstance(error, FtcommError):
        raise error
    return HostEnd(
        False, error.exit_code, type(error).__name__, error.cause, error.remedy, refused=True
    )


def _end_with_caller(parent: int, watched: int) -> None:
    """End the workers, and then this process, when the caller closes its pipe or is gone."""
    wait_for_end_of_caller(parent, watched)
    _wait_until_signals_are_taken()
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_until_signals_are_taken() -> None:
    """Return when the launcher takes SIGTERM; before, and behind it, that would end the process.

    Nobody would remove the state directory, which is made before the launcher begins.
    """
    until = time.monotonic() + _BEGIN_WITHIN_S
    while not callable(signal.getsignal(signal.SIGTERM)) and time.monotonic() < until:
        time.sleep(_LOOK_AGAIN_S)
