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

from ftcomm.config.process_identity import UNKNOWN_START, ProcessName, read_proc_stat
from ftcomm.errors import ConfigError, ProtocolVersionError
from ftcomm_tracker.launcher.processes.departure import Departure
from ftcomm_tracker.launcher.processes.script_errors import ScriptError, TracebackReader
from ftcomm_tracker.launcher.signals import user_signals

TAIL_LINES = 20  # of a worker's last words; a traceback is rarely longer
# What a system is short of for a while: memory or processes, descriptors.
_SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_PR_SET_PDEATHSIG = 1
# loaded here: nothing may be imported after a fork
if sys.platform != "win32":  # in a forked child it is too late for an import
    import fcntl
    import termios

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
        joined: the process that has said hello, where a start script has started it.
        cpu_ticks: processor time at the last look, for liveness assertions.
        stopped: it was stopped (SIGSTOP, not a debugger) at the last look.
        departure: since when it has been out of the job, if it has.
        ended: set once its end has been seen.
        was_ended: the launcher has killed it because it had left the job.
        was_terminated: it was sent SIGTERM or SIGINT, and has its time to end.
        script_status: by which a start script has told how the worker ended; 0 for none.
        has_input: it reads the launcher's standard input.
    """

    worker_id: str
    process: WorkerProcess
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    traceback: TracebackReader = field(default_factory=TracebackReader)
    joined: ProcessName | None = None
    cpu_ticks: int = 0
    stopped: bool = False
    departure: Departure = field(default_factory=Departure)
    ended: trio.Event = field(default_factory=trio.Event)
    was_ended: bool = False
    was_terminated: bool = False
    script_status: int = 0
    has_input: bool = False

    @property
    def running(self) -> bool:
        """True until its end has been seen."""
        return self.process.returncode is None

    @property
    def pid(self) -> int:
        """Number of the worker: of the process that has joined while it runs, else of `process`."""
        joined = self.joined
        return joined.pid if joined is not None and joined.is_running() else self.process.pid

    @property
    def has_lost_worker(self) -> bool:
        """True of a start script that goes on after the process that has joined has ended."""
        return self.joined is not None and self.pid != self.joined.pid

    def note_joined(self, pid: int, start: int) -> None:
        """Process `pid` has said hello for the worker: take it if this child has started it.

        In another namespace of processes the number may be that of anybody here.
        """
        if pid and pid != self.process.pid and start != UNKNOWN_START:
            stat = read_proc_stat(pid)
            if stat is not None and (stat.start, stat.group) == (start, self.process.pid):
                self.joined = ProcessName(pid, start)

    def signal(self, number: int) -> None:
        """Send a signal to the worker alone: neither to its start script nor to what it started."""
        with contextlib.suppress(PermissionError):  # by sudo it may run as another user
            if self.joined is not None and self.joined.signal(number):
                return
            if self.running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.process.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the worker, its start script and everything that they started."""
        self.was_terminated |= number in (signal.SIGINT, signal.SIGTERM)
        if self.running:  # not reaped: the group's number is still ours
            _signal_group(self.process.pid, number)

    async def wait(self) -> int:
        """Wait until `process` has ended, without reaping it, and return its status."""
        await _wait_exit(self.process)
        return _status_of(self.process)

    def end(self) -> None:
        """End what `process` has left running, and reap it."""
        # Still a zombie, so the number cannot belong to others (without waitid, it is free for as
        # long as it takes to come here, unless the group has members left).
        _signal_group(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.ended.set()

    def is_computing(self) -> bool:
        """True if it is neither stopped nor dead and has used the processor since the last look."""
        look = read_proc_stat(self.pid)
        if look is None:
            return False
        moved = look.ticks > self.cpu_ticks
        self.cpu_ticks = look.ticks
        self.stopped = look.state == "T"
        return moved and look.state not in "TtZX"


def start_child(
    worker_id: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    has_input: bool = False,
) -> Child:
    """Start `command` as worker `worker_id`; with `has_input` it reads our standard input.

    It leads a process group, so that a terminal's signals reach the launcher alone.  The scheduler
    shares a processor by sessions, so workers that wait for each other stay in the launcher's.

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
            stdin=None if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            preexec_fn=partial(_prepare_worker, os.getpid()),  # noqa: PLW1509 - forks from one thread
        )
    except OSError as error:
        if error.errno in _SCARCE:
            raise
        raise cannot_run(command[0], error.strerror or str(error)) from error
    return Child(worker_id, process, has_input=has_input)


def cannot_run(
    program: str, cause: str, remedy: str = "check the command after the options"
) -> ConfigError:
    """The error of a command whose `program` cannot be run; a script may lack its x bit."""
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


def can_hand_on_input() -> bool:
    """True unless standard input is closed, or a terminal of which we are in the background."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError as error:
        return error.errno != errno.EBADF  # else it is no terminal


def _give_up_terminal() -> None:
    assert sys.platform != "win32", "which has no workers"
    with contextlib.suppress(OSError):  # there is none
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        with contextlib.suppress(OSError):
            fcntl.ioctl(terminal, termios.TIOCNOTTY)
        os.close(terminal)


def _prepare_worker(parent: int) -> None:
    """In a forked child: ignore some signals, and end with the thread that is its parent.

    A scheduler's warning must not end a script that has no handler for it, nor its start script.
    Its group is in the background of a terminal, so it has none: a shell in it, or what asks for a
    password, would stop there or try for ever.  An only worker may read its input all the same.
    """
    for number in user_signals():
        signal.signal(number, signal.SIG_IGN)
    _give_up_terminal()
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _signal_group(number: int, what: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone; macOS: zombies only
        os.killpg(number, what)


async def wait_for_exit(pid: int) -> None:
    """Wait until the process `pid` has ended.

    Raises:
        OSError: the system cannot tell, or has no descriptor left.
    """
    pidfd = _open_pidfd(pid)
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


async def _wait_exit(process: WorkerProcess) -> None:
    """Wait until `process` has ended, without reaping it where the system can do that."""
    try:
        await wait_for_exit(process.pid)
    except OSError:  # not Linux, a kernel older than 5.3, or a sandbox without the call
        # Not one of the 40 threads that trio lends to all: a job has more workers, and then nobody
        # could write to the console or look up a name until one of them ends.
        limiter = trio.CapacityLimiter(1)
        await trio.to_thread.run_sync(_status_of, process, abandon_on_cancel=True, limiter=limiter)


def _status_of(process: WorkerProcess) -> int:
    """Status of a process at its end, without reaping it where the system can do that."""
    if process.returncode is not None or not hasattr(os, "waitid"):  # macOS before Python 3.13
        return process.wait()
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    status: int = found.si_status
    return status if found.si_code == os.CLD_EXITED else -status


def _open_pidfd(pid: int) -> int:
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    raise OSError(errno.ENOSYS, "pidfd_open")
