"""A worker process of the launcher: started, watched, signalled and never left behind.

On Linux the kernel kills a worker whose launcher is gone (PR_SET_PDEATHSIG), tells of an exit
through a pidfd, and shows in /proc whether a silent worker is computing.  Elsewhere a worker may
outlive a launcher that was killed, a thread waits for each exit, and no liveness is asserted.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Protocol

import trio

from ftcomm.errors import ConfigError, ProtocolVersionError
from ftcomm_tracker.launcher.processes.departure import Departure
from ftcomm_tracker.launcher.processes.script_errors import ScriptError, TracebackReader

TAIL_LINES = 20  # of a worker's last words; a traceback is rarely longer
# What a system is short of for a while: memory or processes, descriptors.
_SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_PR_SET_PDEATHSIG = 1
# loaded here: nothing may be imported after a fork
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class WorkerProcess(Protocol):
    """A process that the launcher has started or adopted; a `subprocess.Popen` is one."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def returncode(self) -> int | None:
        """Status as of a `subprocess.Popen`; None until it has been reaped."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """Its output."""

    @property
    def stderr(self) -> IO[bytes] | None:
        """Its error output."""

    def wait(self) -> int:
        """Reap it, and return its status."""


@dataclass(slots=True)
class Child:
    """One incarnation of a worker.

    Attributes:
        worker_id: which worker it is.
        process: the running process, leader of its own process group.
        tail: its last lines of output, both streams.
        traceback: the newest one that it printed.
        cpu_ticks: processor time at the last look, for liveness assertions.
        stopped: it was stopped (SIGSTOP, not a debugger) at the last look.
        departure: since when it has been out of the job, if it has.
        ended: set once its end has been seen.
        was_ended: the launcher has killed it because it had left the job.
    """

    worker_id: str
    process: WorkerProcess
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    traceback: TracebackReader = field(default_factory=TracebackReader)
    cpu_ticks: int = 0
    stopped: bool = False
    departure: Departure = field(default_factory=Departure)
    ended: trio.Event = field(default_factory=trio.Event)
    was_ended: bool = False

    @property
    def running(self) -> bool:
        """True until its end has been seen."""
        return self.process.returncode is None

    def signal(self, number: int) -> None:
        """Send a signal to the worker alone, not to what it started."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the worker and everything that it started."""
        if self.running:  # not reaped: the group's number is still ours
            _signal_group(self.process.pid, number)

    async def wait(self) -> int:
        """Wait until the worker ends, end what it left running, and return its status."""
        await _wait_exit(self.process)
        # Still a zombie, so the number cannot belong to others (without waitid, it is free for as
        # long as it takes to come here, unless the group has members left).  What it leaves behind
        # would hold its pipes and perhaps its device, which the next incarnation wants.
        _signal_group(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        self.ended.set()
        return status

    def is_computing(self) -> bool:
        """True if it is neither stopped nor dead and has used the processor since the last look."""
        look = read_proc_stat(self.process.pid)
        if look is None:
            return False
        state, ticks = look
        moved = ticks > self.cpu_ticks
        self.cpu_ticks = ticks
        self.stopped = state == "T"
        return moved and state not in "TtZX"


def start_child(worker_id: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Start `command` as worker `worker_id`.

    To be called from the main thread only: the kernel's parent-death signal fires when the
    creating *thread* ends.

    Raises:
        ConfigError: the command cannot be run.
        OSError: the system has no process, memory or descriptor left for it just now.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - running the user's command is the purpose
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=partial(_die_with_parent, os.getpid()),  # noqa: PLW1509 - forks from one thread
        )
    except OSError as error:
        if error.errno in _SCARCE:
            raise
        raise cannot_run(command[0], error.strerror or str(error)) from error
    return Child(worker_id, process)


def cannot_run(program: str, cause: str) -> ConfigError:
    """The error of a command whose `program` cannot be run; a script may lack its x bit."""
    remedy = "check the command after the options"
    if Path(program).is_file():
        if not os.access(program, os.X_OK):
            cause = "this file is not executable"
        remedy = f"name its interpreter: python {program}"
    return ConfigError(f"cannot run {program!r}: {cause}", remedy=remedy)


def interpreter_hint(error: ScriptError, program: str) -> str:
    """Words for a user whose `program` ran with another Python than this one; empty elsewhere."""
    if error.text.startswith("ModuleNotFoundError: No module named 'ftcomm"):
        what = "has no ftcomm"
    elif error.text.startswith(f"ftcomm.errors.{ProtocolVersionError.__name__}:"):
        what = "has another version of ftcomm"
    else:
        return ""
    return (
        f"the workers ran {shutil.which(program) or program}, which {what}; this command's is that"
        f" of {sys.executable}: activate its environment, or name that Python in the command"
    )


def _die_with_parent(parent: int) -> None:
    """In a forked child: have the kernel kill it when the thread that is its parent ends."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _signal_group(number: int, what: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone; macOS: zombies only
        os.killpg(number, what)


async def _wait_exit(process: WorkerProcess) -> None:
    """Wait until `process` has ended, without reaping it where the system can do that."""
    try:
        pidfd = _open_pidfd(process.pid)
    except OSError:  # not Linux, a kernel older than 5.3, or a sandbox without the call
        # Not one of the 40 threads that trio lends to all: a job has more workers, and then nobody
        # could write to the console or look up a name until one of them ends.
        limiter = trio.CapacityLimiter(1)
        await trio.to_thread.run_sync(
            _block_until_exit, process, abandon_on_cancel=True, limiter=limiter
        )
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def _open_pidfd(pid: int) -> int:
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    raise OSError(errno.ENOSYS, "pidfd_open")


def _block_until_exit(process: WorkerProcess) -> None:
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:  # macOS before Python 3.13
        process.wait()


def read_proc_stat(pid: int) -> tuple[str, int] | None:
    """State letter and processor time in ticks of `pid`; None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The second field is the command in parentheses and may hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[11]) + int(fields[12])
