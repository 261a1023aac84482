"""Processes that are not our children: found by a note, told apart by their start, watched."""

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from ftcomm.config.process_identity import read_proc_stat, start_of
from ftcomm_chaos.faults.fault import NotDeliveredError
from ftcomm_tracker.launcher.restart_policy import describe_exit

_PR_SET_CHILD_SUBREAPER = 36
_STOPS_WITHIN_S = 10.0  # between the record of a stop and the stop are some microseconds
_LOOK_EVERY_S = 0.005
_LAST_GASP_S = 10.0  # for the kernel to take down a killed process; it needs milliseconds


@dataclass(slots=True)
class JobProcess:
    """One process of the job.

    Attributes:
        who: the worker's id, or ``tracker``.
        number: which process of that name in this run; the first is 1, as `status` counts.
        pid: its process id, and that of its process group.
        start: when the kernel began it, which tells it from others of that number.
        began_at: seconds since the run began.
        pidfd: tells of its end; -1 once that has been seen.
        ended_at: when its end was seen, None while it runs.
        has_reaper: somebody in this process waits for it as for a child.
        how: how it ended, in the words of whoever reaped it; empty while that is not known.
    """

    who: str
    number: int
    pid: int
    start: int
    began_at: float
    pidfd: int
    ended_at: float | None = None
    has_reaper: bool = False
    how: str = ""
    _gone: trio.Event = field(default_factory=trio.Event)

    @property
    def runs(self) -> bool:
        """True until its end has been seen."""
        return self.pidfd >= 0

    def signal(self, number: int) -> None:
        """Send a signal to this very process, never to one that got its number later.

        Raises:
            NotDeliveredError: it has ended.
        """
        ended = NotDeliveredError(f"{self} has ended")
        if not self.runs:
            raise ended
        try:
            _send(self.pidfd, number)
        except ProcessLookupError:
            raise ended from None

    async def stopped(self) -> None:
        """Return when the process stands still or has ended: a SIGCONT before would be lost."""
        with trio.move_on_after(_STOPS_WITHIN_S):
            while self._goes_on():  # noqa: ASYNC110 - the kernel tells of a stop to the parent alone
                await trio.sleep(_LOOK_EVERY_S)

    def _goes_on(self) -> bool:
        look = read_proc_stat(self.pid) if self.runs else None
        return look is not None and look.state not in "TtZX"

    async def gone(self) -> None:
        """Return when the process has ended."""
        await self._gone.wait()

    async def watch(self) -> None:
        """Wait for the end; one task of the job does so for each incarnation."""
        if self.runs:
            await trio.lowlevel.wait_readable(self.pidfd)
            self.reap()
            self._close()
        self._gone.set()

    def end(self) -> None:
        """Kill it with its whole process group if it still runs, and wait until it is gone."""
        if self.runs:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            poll.poll(_LAST_GASP_S * 1000)
            self.reap()
            self._close()
        self._gone.set()

    def reap(self) -> None:
        """If who would have reaped it died first, it is our child now (`adopt_orphans`).

        A parent with several threads dies thread by thread: until the last one is gone the process
        is not ours, and this is to be called again.
        """
        if self.has_reaper or self.how:
            return
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.how = describe_exit(os.waitstatus_to_exitcode(status))

    def _close(self) -> None:
        descriptor, self.pidfd = self.pidfd, -1
        os.close(descriptor)

    def __str__(self) -> str:
        name = self.who if self.who == "tracker" else f"worker {self.who}"
        return f"{name} (incarnation {self.number}, process {self.pid})"


def adopt_orphans() -> None:
    """Become the parent of what our descendants leave behind, so that its end can be confirmed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> frozenset[int]:
    """Numbers of this process's children, also of those that have ended; none without ``/proc``."""
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return frozenset(pid for pid in pids if _parent_of(pid) == os.getpid())


def end_orphans(before: Iterable[int]) -> None:
    """Kill and reap every child but those of `before`, and what these leave in turn.

    To be called when all that we have started since is reaped: what is left was adopted, as a
    process that a worker has put into a session of its own.
    """
    passed_over = set(before)
    while found := children() - passed_over:
        passed_over |= {pid for pid in found if not _end_child(pid)}


def _end_child(pid: int) -> bool:
    """Kill and reap a child; False if this user may not, or the kernel does not let it go."""
    try:
        os.kill(pid, signal.SIGKILL)
        pidfd = open_pidfd(pid)
    except OSError:
        return False
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(_LAST_GASP_S * 1000)
        return bool(os.waitpid(pid, os.WNOHANG)[0])
    except ChildProcessError:
        return False
    finally:
        os.close(pidfd)


def _parent_of(pid: int) -> int | None:
    stat = read_proc_stat(pid)
    return None if stat is None else stat.parent  # it has just ended


def open_process(pid: int, start: int) -> int:
    """A pidfd of the process with this number and start; -1 if it has ended."""
    try:
        pidfd = open_pidfd(pid)
    except (ProcessLookupError, OverflowError):
        return -1
    if start_of(pid) == start:
        return pidfd
    os.close(pidfd)  # the number belongs to another process by now
    return -1


def open_pidfd(pid: int) -> int:
    """A descriptor of the process.

    Raises:
        OSError: it has ended, or the system has none.
    """
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    raise OSError(errno.ENOSYS, "pidfd_open")


def _send(pidfd: int, number: int) -> None:
    if sys.platform == "linux":
        signal.pidfd_send_signal(pidfd, number)
