"""A rank of a job in a process of its own, beside the task or actor of a framework that waits.

The framework starts the task, and starts it again elsewhere when it loses it.  The rank's process
ends with the process of the task.  Its next one has the same worker id and replays.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from ftcomm.api.open_communicators import COMMUNICATORS
from ftcomm.config.environment import process_environment, with_prompt_output
from ftcomm.errors import (
    EvictedError,
    JobFinishedError,
    JobStoppedError,
    RankLostError,
    RolledBackError,
    TrackerLostError,
)
from ftcomm_tracker.embedding import worker
from ftcomm_tracker.embedding.caller import take_input, wait_for_end_of_caller
from ftcomm_tracker.embedding.launch_folder import LaunchFolder, WorkerReport
from ftcomm_tracker.launcher.memcpy_tuning import with_tuned_copies
from ftcomm_tracker.launcher.restart_policy import describe_exit

MAX_DEATHS = 3  # of a rank's process in one task; Dask lets a task lose as many of its workers
END_WITHIN_S = 2.0  # to raise an error and report it; then the process is killed
TOKEN = "token"  # noqa: S105 - the name of a file
_LEFT = "the task of this rank was cancelled, or the process that runs it has ended"
# How a process learns that one before it has closed with all ranks: the tracker may have ended.
_OVER = (JobFinishedError.__name__, TrackerLostError.__name__)
_UNKEPT = "worker {} was lost behind its close(), and before its result was kept"

_running: dict[str, set["asyncio.Task[object]"]] = {}  # in this process, by the job's tracker


@dataclass(frozen=True, slots=True)
class RankCall:
    """One rank's call, as a framework carries it to where the rank runs.

    Attributes:
        worker_id: names the rank over its restarts.
        tracker: address of the job's tracker.
        token: content of its token file.
        call: the pickled call.
    """

    worker_id: str
    tracker: str
    token: bytes = field(repr=False)  # nor its text in the log of a framework
    call: bytes = field(repr=False)


async def run_rank(rank: RankCall) -> WorkerReport:
    """Run a rank's call to its end, and return its report.

    A process that dies is started again, `MAX_DEATHS` times in all.  When this is cancelled, and
    when this process ends, the rank raises `JobStoppedError`.
    """
    task = asyncio.current_task()
    assert task is not None
    running = _running.setdefault(rank.tracker, set())
    running.add(task)
    try:
        with LaunchFolder.made() as folder:
            folder.write_path(sys.path)
            folder.write_call(rank.call)
            return await _run_to_report(rank, folder)
    finally:
        running.discard(task)
        if not running:
            _running.pop(rank.tracker, None)


def cancel_ranks(tracker: str) -> None:
    """Cancel `run_rank` for all ranks of a job in this process, in the thread of its event loop."""
    for task in _running.pop(tracker, ()):
        task.cancel()


async def _run_to_report(rank: RankCall, folder: LaunchFolder) -> WorkerReport:
    environment = _environment(rank, folder)
    kept: WorkerReport | None = None
    status = deaths = 0
    while deaths < MAX_DEATHS:
        status = await _run_process(folder.boot_words(__name__), environment)
        report = next(iter(folder.reports()), None)
        if report is None or status < 0 or report.error == EvictedError.__name__:
            deaths += 1
            kept = report if report is not None and not report.error else kept
        elif deaths and report.rank is None and report.error in _OVER:
            return kept or report_of_loss(rank.worker_id, _UNKEPT.format(rank.worker_id))
        elif report.error != RolledBackError.__name__:
            return report
    how = f"worker {rank.worker_id} {describe_exit(status)}, {deaths} times in all"
    return report_of_loss(rank.worker_id, how)


def report_of_loss(worker_id: str, cause: str) -> WorkerReport:
    """Report of a worker that nobody starts again."""
    lost = RankLostError.__name__
    return WorkerReport(worker_id, None, lost, cause, "", False, time.time(), b"")


def main(path: str) -> None:
    """Do the work of the rank's process in the folder `path`, and end with its caller."""
    signal.signal(signal.SIGTERM, _leave)
    parent, watched = os.getppid(), take_input()
    threading.Thread(target=_end_with_caller, args=(parent, watched), daemon=True).start()
    try:
        worker.main(path)
    finally:
        if os.getppid() != parent:  # nobody else is left to do it
            LaunchFolder(Path(path)).remove()


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End the rank by a typed error, in a call or between two."""
    for comm in COMMUNICATORS.usable():
        comm.abort(_LEFT)
    raise JobStoppedError(_LEFT, remedy="nothing to do here: a lost task is started again")


def _end_with_caller(parent: int, watched: int) -> None:
    wait_for_end_of_caller(parent, watched)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_WITHIN_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _environment(rank: RankCall, folder: LaunchFolder) -> dict[str, str]:
    token = folder.path / TOKEN
    token.touch(mode=0o600)
    token.write_bytes(rank.token)
    environment = {
        **process_environment(),
        "FTCOMM_TRACKER": rank.tracker,
        "FTCOMM_TOKEN_FILE": str(token),
        "FTCOMM_WORKER_ID": rank.worker_id,
    }
    return with_tuned_copies(with_prompt_output(environment))


async def _run_process(words: list[str], environment: dict[str, str]) -> int:
    """Exit status of a process, negative for a signal; it ends with this task."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, env=environment, stdin=asyncio.subprocess.PIPE
    )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), END_WITHIN_S)
    except TimeoutError:
        process.kill()
        await process.wait()
