"""Names of processes that stay true: a process id and the start of the process that had it.

The kernel gives the number of a process that has ended to another one.  The start tells them apart.
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

UNKNOWN_START = 0  # where the system has no /proc: the number alone must do


@dataclass(frozen=True, slots=True)
class ProcessName:
    """One process of this host."""

    pid: int  # its number
    # When it began, in ticks since the machine did; `UNKNOWN_START` where the system does not say.
    start: int

    @classmethod
    def of(cls, pid: int) -> "ProcessName":
        """The process that has this number now."""
        return cls(pid, start_of(pid) or UNKNOWN_START)

    def is_running(self) -> bool:
        """True if this very process exists and has not ended."""
        if self.start == UNKNOWN_START:
            return _has_number(self.pid)
        stat = read_proc_stat(self.pid)
        if stat is None:  # it has ended, or its file cannot be read: of another user's by hidepid
            return _has_number(self.pid)
        return stat.start == self.start and not stat.has_ended

    def signal(self, number: int) -> bool:
        """Send a signal to this very process, never to one that got its number later.

        Returns:
            False if it has ended.

        Raises:
            PermissionError: it belongs to another user.
        """
        if sys.platform == "linux":
            return self._signal_by_descriptor(number)
        else:  # noqa: RET505 - mypy looks at one branch for each system
            return self.is_running() and _sent(lambda: os.kill(self.pid, number))

    if sys.platform == "linux":

        def _signal_by_descriptor(self, number: int) -> bool:
            try:
                descriptor = os.pidfd_open(self.pid)
            except ProcessLookupError:
                return False
            try:
                sent = partial(signal.pidfd_send_signal, descriptor, number)
                return self.is_running() and _sent(sent)
            finally:
                os.close(descriptor)


def this_process() -> ProcessName:
    """The process that calls."""
    return ProcessName.of(os.getpid())


def process_space() -> str:
    """Name the boot of this machine and the namespace in which process numbers count here.

    Two machines may have one host name, and a container may have that of its host: numbers of
    processes say nothing from one to another.  Empty where the system does not say.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def is_another_container(space: str) -> bool:
    """True of what `process_space` gives on this machine, since its last boot, somewhere else.

    Of another boot this cannot be said: it was of this machine, or is of one of the same name.
    """
    here = process_space()
    boot = here.partition("/")[0]
    return bool(boot) and space != here and space.partition("/")[0] == boot


def start_of(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot; None if it is not found."""
    stat = read_proc_stat(pid)
    return None if stat is None else stat.start


class ProcStat(NamedTuple):
    """Facts of the kernel about a process, from ``/proc/PID/stat``."""

    pid: int
    name: str  # of the program, cut
    state: str  # a letter
    parent: int
    group: int
    ticks: int  # of the processor, used so far
    start: int  # in clock ticks since boot

    @property
    def has_ended(self) -> bool:
        """True of a process that is only yet to be reaped."""
        return self.state in "ZX"


def stat_in(line: str) -> ProcStat:
    """Return the parts of a line of ``/proc/PID/stat``; raises ValueError, IndexError."""
    # The second field is the name in parentheses and may hold spaces and parentheses.
    head, _, tail = line.rpartition(")")
    pid, _, name = head.partition(" (")
    rest = tail.split()
    ticks = int(rest[11]) + int(rest[12])
    return ProcStat(int(pid), name, rest[0], int(rest[1]), int(rest[2]), ticks, int(rest[19]))


def read_proc_stat(pid: int) -> ProcStat | None:
    """Return the facts about `pid`; None if it is gone, or the system has no /proc."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return stat_in(line)


def _has_number(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _sent(send: Callable[[], None]) -> bool:
    try:
        send()
    except ProcessLookupError:
        return False
    return True
