"""Processes that a worker leaves running in its group when the one that was started has ended.

A start script dies of a SIGTERM that the worker below it still handles, and a script may leave an
upload behind at its good end.  After a death nothing may stay: it would hold the worker's pipes,
and perhaps its device, which the next process wants.
"""

import contextlib
import math
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import trio

from ftcomm.config.plurals import counted
from ftcomm.config.process_identity import ProcStat, read_proc_stat
from ftcomm_tracker.launcher.processes.child_process import Child, wait_for_exit

NAMED_AFTER_S = 2.0  # helpers of a library that see their parent's end go by themselves within that
LOOK_AGAIN_S = 0.5
MAX_NAMED = 3  # processes in one line


def remaining_grace_s(status: int, *, closed: bool, terminated: bool, grace_s: float) -> float:
    """Seconds for which remaining processes are left alone. Pure.

    Args:
        status: of the process that was started, as `subprocess.Popen.returncode`.
        closed: the worker's rank has completed its close().
        terminated: SIGTERM was sent to all; who sends it sends SIGKILL when its time is over.
        grace_s: for a good end.
    """
    if terminated:
        return math.inf
    return grace_s if status == 0 and closed else 0.0


async def leave_remaining(
    child: Child,
    status: int,
    grace_s: float,
    closed: Callable[[], Awaitable[bool]],
    warn: Callable[[str], None],
) -> None:
    """Wait for what `child` has left running, as long as it may run; the caller ends the rest.

    Args:
        child: its leader has ended, and has not been reaped: the group's number is still its own.
        status: of the leader.
        grace_s: for a good end.
        closed: tells whether the worker's rank has closed; asked only if something remains.
        warn: takes one line.
    """
    group = child.process.pid
    if not any(_members(group)):
        return
    has_closed = not child.was_terminated and status == 0 and await closed()
    limit_s = remaining_grace_s(
        status, closed=has_closed, terminated=child.was_terminated, grace_s=grace_s
    )
    with trio.move_on_after(limit_s):
        if has_closed:
            with trio.move_on_after(NAMED_AFTER_S):
                await _wait_for(group)
            if left := list(_members(group)):
                warn(
                    f"worker {child.worker_id} has ended well and left {_names(left)} running:"
                    f" what still runs {grace_s:g} s after its end is killed"
                )
        await _wait_for(group)


async def _wait_for(group: int) -> None:
    while (member := next(_members(group), None)) is not None:
        try:
            await wait_for_exit(member.pid)
        except ProcessLookupError:
            continue
        except OSError:  # no descriptor is left
            await trio.sleep(LOOK_AGAIN_S)


def _members(group: int) -> Iterator[ProcStat]:
    """The running processes of a group but its leader; none where the system has no /proc."""
    with contextlib.suppress(FileNotFoundError):
        for path in Path("/proc").iterdir():
            if path.name.isdecimal() and _is_in(group, int(path.name)):
                stat = read_proc_stat(int(path.name))
                if stat is not None and not stat.has_ended:
                    yield stat


def _is_in(group: int, pid: int) -> bool:
    """True of members but the leader, by one system call; a file of /proc takes three."""
    try:
        return pid != group and os.getpgid(pid) == group
    except ProcessLookupError:
        return False


def _names(left: list[ProcStat]) -> str:
    shown = ", ".join(f"{stat.name} (pid {stat.pid})" for stat in left[:MAX_NAMED])
    more = len(left) - MAX_NAMED
    return shown if more <= 0 else f"{shown} and {counted(more, 'process', 'processes')} more"
