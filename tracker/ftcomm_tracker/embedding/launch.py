"""`launch`: a function as a job of several workers on this machine."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ftcomm.config.environment import process_environment
from ftcomm.config.named_paths import absolute_path
from ftcomm.config.platforms import require_groups
from ftcomm.errors import ConfigError
from ftcomm_tracker.embedding import pickled
from ftcomm_tracker.embedding.arguments import (
    checked_call,
    checked_grace,
    checked_path,
    checked_restarts,
    checked_settings,
    checked_variables,
    checked_workers,
)
from ftcomm_tracker.embedding.host_process import HostProcess
from ftcomm_tracker.embedding.launch_folder import HostOptions, LaunchFolder
from ftcomm_tracker.embedding.outcomes import results_of
from ftcomm_tracker.launcher.processes.departure import GRACE_S
from ftcomm_tracker.launcher.restart_policy import MAX_RESTARTS, RESTART_WINDOW_S, RestartLimits

R = TypeVar("R")
HOST = "ftcomm_tracker.embedding.host"


def launch(
    function: Callable[..., R],
    workers: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    state_dir: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    max_restarts: int = MAX_RESTARTS,
    restart_window: float = RESTART_WINDOW_S,
    term_grace: float = GRACE_S,
    verbose: bool = False,
) -> list[R]:
    """Call a function in several worker processes of one job, and return the ranks' results.

    The function does what a script does: it opens the communicator with ``ftcomm.init()``. A worker
    that dies is started again, calls the function from its beginning and gets the results that it
    missed, as under ``ftcomm-tracker run``. If the function returns with its communicator open, the
    communicator is closed once the result is kept, so that no kill can lose the result.

    What the workers print is printed here, with the worker in front. When this call ends, by
    Ctrl-C too, its processes have ended.

    Args:
        function: is called as ``function(*args, **kwargs)``.
        workers: number of ranks.
        args: for the function.
        kwargs: likewise.
        settings: job settings by name, such as ``{"spares": 1, "log_limit": "512MiB"}``.
        state_dir: keeps the tracker's journal and the checkpoints, from which the same call goes
            on after a loss of everything; by default it is temporary.
        environment: variables of the workers, beside those of this process.
        max_restarts: restarts of one worker within `restart_window` without progress of the job.
        restart_window: seconds.
        term_grace: seconds that the workers have to end after SIGTERM, as when Ctrl-C ends this
            call, and before that when the job has failed.
        verbose: print what tracker and launcher say too, not their warnings alone.

    Returns:
        The results in the order of the ranks.

    Raises:
        ConfigError: an argument is wrong, or cannot be sent to the workers.
        TypeError: the function does not take `args` and `kwargs`.
        Exception: what the function has raised, with a note that has rank and traceback. A worker
            that fails is started again once; the second time the same error ends the job.
        FtcommError: the job's own error otherwise, as every rank raises it.
    """
    require_groups("ftcomm.launch")
    checked_call(function, args, kwargs)
    _refuse_an_import(function)
    restarts = checked_restarts(max_restarts, restart_window)
    grace = checked_grace(term_grace)
    options = _host_options(workers, settings, state_dir, restarts, grace, verbose=verbose)
    variables = {**process_environment(), **checked_variables(environment)}
    call = pickled.dump_call(function, args, kwargs or {})
    return _run(call, options, variables)


def _host_options(
    workers: int,
    settings: Mapping[str, Any] | None,
    state_dir: str | Path | None,
    restarts: RestartLimits,
    grace: float,
    *,
    verbose: bool,
) -> HostOptions:
    folder = checked_path("state_dir", state_dir)
    return HostOptions(
        parent=os.getpid(),
        workers=checked_workers(workers),
        settings=checked_settings(settings),
        state_dir=None if folder is None else str(absolute_path(folder, "state_dir")),
        max_restarts=restarts.max_restarts,
        restart_window=restarts.window_s,
        grace=grace,
        verbose=verbose,
    )


def _run(call: bytes, options: HostOptions, environment: Mapping[str, str]) -> list[Any]:
    with LaunchFolder.made() as folder:
        folder.write_path(sys.path)
        folder.write_options(options)
        folder.write_call(call)
        with HostProcess(folder.boot_words(HOST), environment, options.grace) as host:
            status = host.pass_on_output()
        return results_of(folder.read_end(), status, folder.reports(), options.workers)


def _refuse_an_import(function: Callable[..., Any]) -> None:
    """Refuse a call that a script makes when another process imports it: it would never end."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    is_child = getattr(multiprocessing and multiprocessing.current_process(), "_inheriting", False)
    if pickled.is_loading() or is_child:
        raise ConfigError(
            f"launch({pickled.name_of(function)}) was called while a worker imports the module"
            " that calls it",
            remedy="put the call behind `if __name__ == '__main__':`",
        )
