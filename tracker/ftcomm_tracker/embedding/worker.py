"""A worker's process of `launch`: calls the function, and reports what it returned or raised."""

import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from ftcomm import errors
from ftcomm.api.open_communicators import COMMUNICATORS
from ftcomm.config.environment import WorkerOptions
from ftcomm.diagnostics.error_text import text_of
from ftcomm.diagnostics.exit_hook import to_the_last_line_of_the_script, use_exit_codes
from ftcomm_tracker.embedding.launch_folder import LaunchFolder, WorkerReport
from ftcomm_tracker.embedding.pickled import dump, load, load_call, name_of

FAILED = 1  # exit status of the interpreter after an uncaught error
# Errors that a rank raises because the job, or its place in it, is lost: their cause is elsewhere.
_OF_THE_JOB = (
    errors.CollectiveMismatchError,
    errors.CollectiveTimeoutError,
    errors.EvictedError,
    errors.FencedError,
    errors.JobFinishedError,
    errors.JobLostError,
    errors.JobStoppedError,
    errors.LogLimitError,
    errors.RankLostError,
    errors.RolledBackError,
    errors.ScriptFailedError,
    errors.StateChangedError,
    errors.TrackerLostError,
)


def main(path: str) -> None:
    """Do one process's work in the folder `path`."""
    use_exit_codes()
    folder = LaunchFolder(Path(path))
    options = WorkerOptions.load()
    worker_id = options.worker_id or ""
    COMMUNICATORS.follow(options.routes or ())
    folder.remove_report(worker_id)
    try:
        _call(folder, worker_id)
    except BaseException as error:
        if options.spare and _was_never_needed(error):
            raise
        for comm in COMMUNICATORS.usable():
            comm.abort(error)
        error.with_traceback(_of_function(error))  # no attribute: a class may refuse those
        folder.write_report(_of_error(error, worker_id))
        _end_by(error)


def _was_never_needed(error: BaseException) -> bool:
    """True of the exit of a spare that has waited in `init` while the others finished the job."""
    is_exit = isinstance(error, SystemExit) and error.code == errors.JobFinishedError.exit_code
    return is_exit and COMMUNICATORS.newest is None


def _call(folder: LaunchFolder, worker_id: str) -> None:
    """Call the function, and close its communicator if it has left that to us.

    The result is reported before: if this process is killed in the close, the next one reports the
    same again.
    """
    call = load_call(folder.read_call())
    result = call()
    comm = COMMUNICATORS.newest
    if comm is None:
        raise errors.ConfigError(
            f"{name_of(call)} has returned and never called ftcomm.init()",
            remedy="open the communicator in the function: with ftcomm.init() as comm",
        )
    body = _dump_result(result)
    folder.write_report(WorkerReport(worker_id, comm.rank, "", "", "", False, time.time(), body))
    if comm.is_usable:
        comm.close()


def _dump_result(result: Any) -> bytes:
    try:
        return dump(result)
    except Exception as error:  # whatever the user's objects raise
        raise TypeError(f"the result cannot be sent to the caller of launch: {error}") from error


def _of_error(error: BaseException, worker_id: str) -> WorkerReport:
    comm = COMMUNICATORS.newest
    lines = traceback.format_exception(error)
    return WorkerReport(
        worker_id,
        None if comm is None else comm.rank,
        type(error).__name__,
        text_of(error),
        "".join(lines),
        not isinstance(error, _OF_THE_JOB),
        time.time(),
        _dump_error(error),
    )


def _dump_error(error: BaseException) -> bytes:
    """The error's bytes if its caller can read them: not every class of errors allows that."""
    try:
        data = dump(error)
        return data if type(load(data)) is type(error) else b""
    except Exception:  # noqa: BLE001 - whatever the user's objects raise; the text remains
        return b""


def _of_function(error: BaseException) -> TracebackType | None:
    """The error's traceback, without the frames of this file and those of the library.

    Where nothing else is left, the last frame of this file stays: an error without any is printed
    without a header, and no launcher would see that it is the script's.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        if trace.tb_next is None:
            return trace
        trace = trace.tb_next
    return to_the_last_line_of_the_script(trace) if isinstance(error, errors.FtcommError) else trace


def _end_by(error: BaseException) -> NoReturn:
    """End as the interpreter would by an error, with its traceback as it is now.

    `SystemExit` too: a function of launch returns, and a worker that just ends would be started
    again, as often as one that was killed.
    """
    sys.excepthook(type(error), error, error.__traceback__)  # the function may have set its own
    raise SystemExit(error.exit_code if isinstance(error, errors.FtcommError) else FAILED)
