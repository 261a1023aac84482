"""Launchers on a terminal: Ctrl-C, Ctrl-Z and `fg`, hang-ups, and who may read it."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import termios
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ftcomm.config.process_identity import read_proc_stat
from tests.unit.tracker.test_launcher import command, environment, ignoring, wait_gone

pytestmark = pytest.mark.process

CTRL_C, CTRL_Z = b"\x03", b"\x1a"
# A shell with job control: says how its job stopped or ended, and continues it after Enter.
SHELL = (
    "sh",
    "-mc",
    '"$@"; echo returned $?; for n in 1 2; do read line; fg > /dev/null; echo returned $?; done',
    "sh",
)
STOPPED = f"returned {128 + signal.SIGTSTP}\n"
ENDED = f"returned {128 + signal.SIGINT}\n"


@dataclass
class Terminal:
    """A terminal as its user has it, and what runs on it.

    Attributes:
        keyboard: a descriptor; closing it hangs up.
        leader: of the session; its output is no terminal.
    """

    keyboard: int
    leader: subprocess.Popen[str]

    def press(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def line(self) -> str:
        assert self.leader.stdout is not None
        return self.leader.stdout.readline()

    def lines(self, count: int) -> list[str]:
        """The next lines, of several workers in their order."""
        return sorted(self.line() for _ in range(count))

    def hang_up(self) -> None:
        keyboard, self.keyboard = self.keyboard, -1
        os.close(keyboard)


@contextlib.contextmanager
def on_terminal(
    script: str, n: int, *options: str, under: tuple[str, ...] = ()
) -> Iterator[tuple[Terminal, list[int]]]:
    """A launcher with `n` workers on a terminal with `stty tostop`, under the command `under`.

    Yields:
        the terminal, and the numbers of the launcher and its workers, when all of them are up.
    """
    keyboard, own = os.openpty()
    modes = termios.tcgetattr(own)
    modes[3] |= termios.TOSTOP
    termios.tcsetattr(own, termios.TCSANOW, modes)

    def take_terminal() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        [*under, *command(*options, script=TOOLS + script, n=n)],
        env=environment(),
        stdin=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=take_terminal,  # noqa: PLW1509 - one thread
    ) as leader:
        os.close(own)
        terminal = Terminal(keyboard, leader)
        pids: list[int] = []
        try:
            for line in terminal.lines(n):
                worker, launcher = map(int, line.split()[-2:])
                pids = [launcher, *pids[1:], worker]
            yield terminal, pids
        finally:
            leader.kill()
            if terminal.keyboard >= 0:
                terminal.hang_up()
            for pid in pids[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


TOOLS = """
import os, signal
def say(text):
    print(text, flush=True)
def say_at(name, text):
    signal.signal(getattr(signal, name), lambda *_: say(text))
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)  # `pause()` would miss a signal just before it
def say_up():
    say(f"up {os.getpid()} {os.getppid()}")
def wait():
    say_up()
    while True:
        os.read(reader, 1)
say_at("SIGCONT", "goes on")
"""
BOTH_ARE_CAUGHT = """
say_at("SIGINT", "interrupted")
say_at("SIGTERM", "terminated")
wait()
"""


def wait_stopped(pids: list[int]) -> None:
    """A process that was sent the signal has yet to run to stop."""
    for pid in pids:
        while (look := read_proc_stat(pid)) is not None and look.state != "T":
            os.sched_yield()


@pytest.mark.parametrize("n", [1, 2])
def test_ctrl_z_stops_all_until_the_shell_continues_them(n: int) -> None:
    with on_terminal("wait()", n, under=SHELL) as (terminal, pids):
        for _ in range(2):
            terminal.press(CTRL_Z)
            assert terminal.line() == STOPPED
            wait_stopped(pids)
            terminal.press(b"\n")
            assert terminal.lines(n) == [f"[{rank}] goes on\n" for rank in range(n)]
        terminal.press(CTRL_C)
        assert terminal.line() == ENDED
        wait_gone(pids)


@pytest.mark.parametrize("n", [1, 2])
def test_ctrl_z_stops_nothing_that_nobody_continues(n: int) -> None:
    """As under `ssh -t`: the launcher leads the session, so its group is an orphaned one."""
    with on_terminal("wait()", n) as (terminal, pids):
        for _ in range(2):
            terminal.press(CTRL_Z)
            assert terminal.lines(n) == [f"[{rank}] goes on\n" for rank in range(n)]
        terminal.press(CTRL_C)
        assert terminal.leader.wait() == 130
        wait_gone(pids[1:])


def test_ctrl_z_stays_ignored_where_a_parent_ignores_it() -> None:
    with on_terminal("wait()", 2, under=(*SHELL, *ignoring("SIGTSTP"))) as (terminal, pids):
        terminal.press(CTRL_Z)
        terminal.press(CTRL_C)
        assert terminal.line() == ENDED
        wait_gone(pids)


def test_an_only_worker_reads_the_terminal() -> None:
    script = 'say_up()\nsay("heard " + input("name? "))\ninput("more? ")'
    with on_terminal(script, 1, under=SHELL) as (terminal, pids):
        terminal.press(b"me\n")
        assert terminal.line() == "[0] name? heard me\n"
        terminal.press(CTRL_C)
        assert terminal.lines(2) == ["[0] more? \n", ENDED]
        wait_gone(pids)
        terminal.leader.kill()
        assert terminal.leader.stderr is not None
        assert "[0] KeyboardInterrupt\n" in terminal.leader.stderr.readlines()


@pytest.mark.parametrize(("grace", "times"), [("0.2s", 1), ("1h", 2)])
def test_ctrl_c_interrupts_an_only_worker_once(grace: str, times: int) -> None:
    """Then its grace period ends it, or a second Ctrl-C."""
    with on_terminal(BOTH_ARE_CAUGHT, 1, "--term-grace", grace) as (terminal, pids):
        terminal.press(CTRL_C)
        assert terminal.line() == "[0] interrupted\n"
        if times == 2:
            terminal.press(CTRL_C)
        assert (terminal.line(), terminal.leader.wait()) == ("", 130)
        wait_gone(pids[1:])


def test_ctrl_c_reaches_several_workers_as_sigterm_alone() -> None:
    with on_terminal(BOTH_ARE_CAUGHT, 2, "--term-grace", "0.2s") as (terminal, pids):
        terminal.press(CTRL_C)
        assert terminal.lines(3) == ["", "[0] terminated\n", "[1] terminated\n"]
        assert terminal.leader.wait() == 130
        wait_gone(pids[1:])


@pytest.mark.parametrize("under", [(), SHELL], ids=["alone", "shell"])
@pytest.mark.parametrize("n", [1, 2])
def test_a_hang_up_ends_launcher_and_workers(n: int, under: tuple[str, ...]) -> None:
    with on_terminal("wait()", n, "--term-grace", "0.2s", under=under) as (terminal, pids):
        terminal.hang_up()
        terminal.leader.wait()
        wait_gone(pids)


LOOKS_FOR_THE_TERMINAL = """
import subprocess
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError as error:
    assert error.errno == 6  # ENXIO
    for shell in ("sh", "bash"):
        done = subprocess.run([shell, "-ic", "exit 7"], stdin=subprocess.DEVNULL)
        assert done.returncode == 7
    wait()
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("n", [1, 2])
def test_a_worker_has_no_terminal_and_an_interactive_shell_in_it_does_not_stop(n: int) -> None:
    """It would stop itself, or try for ever, as its group is in the background."""
    with on_terminal(LOOKS_FOR_THE_TERMINAL, n) as (_, pids):
        assert len(pids) == 1 + n
