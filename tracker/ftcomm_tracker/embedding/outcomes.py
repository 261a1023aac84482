"""Results of a launched job in the order of the ranks, or the error that it is to raise."""

import linecache
import re
from collections.abc import Sequence
from typing import Any

from ftcomm.diagnostics.error_text import add_note
from ftcomm.errors import FtcommError, RankLostError, ScriptFailedError, error_named
from ftcomm_tracker.embedding.arguments import as_arguments
from ftcomm_tracker.embedding.launch_folder import HostEnd, WorkerReport
from ftcomm_tracker.embedding.pickled import load
from ftcomm_tracker.launcher.restart_policy import describe_exit

_PLAIN = "return what can be unpickled, plain data at best"
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+)')


def results_of(
    end: HostEnd | None, status: int, reports: Sequence[WorkerReport], workers: int
) -> list[Any]:
    """The ranks' results.

    Args:
        end: of the host; None if it was cut short.
        status: exit status of the host.
        reports: of the workers, the earliest first.
        workers: number of ranks.

    Raises:
        Exception: what a rank's call has raised, with a note that names the rank and has its
            traceback; else the job's error.
    """
    returned = {report.rank: report for report in reports if not report.error}
    if end is not None and end.ok and len(returned) == workers:
        return [_result_of(returned[rank], workers) for rank in range(workers)]
    failed = [report for report in reports if report.error]
    own = next((report for report in failed if report.is_own), None)
    if own is not None:
        raise _with_note(_raised(own), own, workers, end)
    if end is None or (not end.ok and not end.error):
        how = describe_exit(status)
        raise FtcommError(f"the process that ran the job {how}, before the job had ended")
    if end.ok:
        raise _of_missing(min(set(range(workers)) - returned.keys()))
    raise _error_of(end, failed, workers)


def _result_of(report: WorkerReport, workers: int) -> Any:
    try:
        return load(report.body)
    except Exception as error:  # whatever the user's class does
        add_note(error, f"while the result of {_who(report, workers)} was read: {_PLAIN}")
        raise


def _error_of(end: HostEnd, failed: Sequence[WorkerReport], workers: int) -> BaseException:
    """The job's error, as a rank has raised it if one has."""
    told = next((report for report in failed if report.error == end.error and report.body), None)
    if told is not None:
        return _with_note(_raised(told), told, workers)
    kind = error_named(end.error) or FtcommError
    if end.refused:
        return kind(as_arguments(end.cause), remedy=as_arguments(end.remedy))
    return kind(end.cause)


def _of_missing(rank: int) -> RankLostError:
    return RankLostError(
        f"the process of rank {rank} ended after its close() and before its result was kept",
        rank=rank,
        remedy="return with the communicator open: launch closes it once the result is kept",
    )


def _raised(report: WorkerReport) -> BaseException:
    """The error of a report; one of ours with its text if it cannot be had itself."""
    error: Any = None
    if report.body:
        try:
            error = load(report.body)
        except Exception:  # noqa: BLE001 - whatever the user's class does; the text remains
            error = None
    if isinstance(error, Exception):
        return error
    return ScriptFailedError(f"{report.error}: {report.text}", rank=report.rank)


def _with_note(
    error: BaseException, report: WorkerReport, workers: int, end: HostEnd | None = None
) -> BaseException:
    """Add what the caller's own traceback does not show."""
    who = _who(report, workers)
    add_note(error, f"in {who}:\n{_with_source(report.traceback).rstrip()}")
    is_repeated = isinstance(error, FtcommError) and end is not None and error.cause in end.cause
    if end is not None and end.error and not is_repeated:
        add_note(error, f"the job ended by it: {end.error}: {end.cause}")
    return error


def _who(report: WorkerReport, workers: int) -> str:
    who = f"worker {report.worker_id}"
    return who if report.rank is None else f"rank {report.rank} of {workers} ({who})"


def _with_source(text: str) -> str:
    """A traceback with the lines of code that the worker did not have: those of a notebook."""
    lines = text.splitlines()
    followed = [*lines[1:], ""]
    shown = []
    for line, after in zip(lines, followed, strict=True):
        shown.append(line)
        frame = _FRAME.match(line)
        if frame is not None and not after.startswith("    "):
            code = linecache.getline(frame["file"], int(frame["line"])).strip()
            shown += [f"    {code}"] if code else []
    return "\n".join(shown)
