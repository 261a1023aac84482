"""Processes that are not our children: found by a note, told apart by their start, watched."""

import errno
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import trio

from ftcomm_chaos.live.fault import NotDeliveredError


@dataclass(slots=True)
class Life:
    """One process of the job.

    Attributes:
        who: the worker's id, or ``tracker``.
        number: earlier lives of the same name in this run.
        pid: its process id.
        began_at: seconds since the run began.
        ended_at: when its end was seen, None while it runs.
        how: how it ended, in the words of whoever reaped it; empty while that is not known.
    """

    who: str
    number: int
    pid: int
    began_at: float
    ended_at: float | None = None
    how: str = ""
    pidfd: int = -1
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
        if not self.runs:
            raise NotDeliveredError(f"{self} has ended")
        try:
            _send(self.pidfd, number)
        except ProcessLookupError:
            raise NotDeliveredError(f"{self} has ended") from None

    async def gone(self) -> None:
        """Return when the process has ended."""
        await self._gone.wait()

    async def watch(self) -> None:
        """Wait for the end; one task of the runner does so for each life."""
        if self.runs:
            try:
                await trio.lowlevel.wait_readable(self.pidfd)
            finally:
                descriptor, self.pidfd = self.pidfd, -1
                os.close(descriptor)
        self._gone.set()

    def __str__(self) -> str:
        return f"{self.who} (process {self.pid})"


def open_process(pid: int, started: int) -> int:
    """A pidfd of process `pid`, which began at tick `started`; -1 if it has ended."""
    try:
        pidfd = _open(pid)
    except (ProcessLookupError, OverflowError):
        return -1
    if start_tick(pid) == started:
        return pidfd
    os.close(pidfd)  # the number belongs to another process by now
    return -1


def start_tick(pid: int) -> int:
    """When the process began, in ticks since the machine did; -1 if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return -1
    return tick_of(text)


def tick_of(stat: str) -> int:
    """The start in a line of ``/proc/PID/stat``; the name in it may hold spaces and brackets."""
    return int(stat.rpartition(")")[2].split()[19])


def _open(pid: int) -> int:
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    raise OSError(errno.ENOSYS, "pidfd_open")


def _send(pidfd: int, number: int) -> None:
    if sys.platform == "linux":
        signal.pidfd_send_signal(pidfd, number)
