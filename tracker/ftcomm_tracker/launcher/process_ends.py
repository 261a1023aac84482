"""Ends of the processes of workers: how one ended, and whether one must end."""

import signal

from ftcomm_tracker.launcher.console import Console
from ftcomm_tracker.launcher.job import Job
from ftcomm_tracker.launcher.processes.child_process import Child
from ftcomm_tracker.launcher.processes.departure import leave_grace_s
from ftcomm_tracker.launcher.processes.script_errors import ScriptError
from ftcomm_tracker.launcher.restart_policy import NEVER_CLOSED, NEVER_JOINED


def script_error(child: Child, status: int) -> ScriptError | None:
    """The error by which the script ended, if one is known."""
    if status == 0:
        return ScriptError(NEVER_CLOSED if child.departure.has_joined else NEVER_JOINED)
    if not child.was_ended:
        return child.traceback.error_of(status)
    # It was killed while it waited for a thread, after its error.  One of this library's has its
    # cause elsewhere, and without an exit status it is no decision about this worker.
    return None if child.traceback.is_of_ftcomm else child.traceback.error_of(1)


def note_joined(job: Job, child: Child) -> None:
    """Take the process that has said hello for the worker, if `child` has started it."""
    standing = job.standing_of(child.worker_id, 0)
    child.note_joined(standing.pid, standing.start)


def own_status(job: Job, child: Child, status: int) -> int:
    """Status of the worker where its start script has told it as shells do: 128 + signal."""
    joined = child.joined.pid if child.joined else job.standing_of(child.worker_id, 0).pid
    if joined in (0, child.process.pid) or status - 128 not in signal.valid_signals():
        return status
    child.script_status = status
    return 128 - status


def end_departed(job: Job, console: Console, child: Child, now: float, *, computing: bool) -> None:
    """Kill a process that has left the job and does not end; it is started again."""
    worker_id, departure = child.worker_id, child.departure
    standing = job.standing_of(worker_id, 0)
    connected = job.is_connected(worker_id)
    departure.look(
        standing.process,
        connected=connected,
        computing=computing,
        failed=child.traceback.is_of_ftcomm or child.has_lost_worker,
        now=now,
    )
    grace_s = leave_grace_s(standing.replace_within_ms / 1000)
    if job.over.is_set() or job.has_closed(worker_id) or child.was_ended or child.was_terminated:
        return
    if departure.is_overdue(grace_s, now):
        child.was_ended = True
        what = "its start script" if child.has_lost_worker else "a thread of the script"
        console.warn(
            f"worker {worker_id} (pid {child.pid}) has left the job, and its process has not"
            f" ended within {grace_s:g} s ({what} may still run): killing it"
        )
        child.signal_group(signal.SIGKILL)
