"""The launcher on real processes: small scripts that do not know ftcomm."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcomm_tracker.launcher.launcher import LaunchOptions

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[3]


def command(
    *options: str, script: str, n: int = 2, start_script: tuple[str, ...] = ()
) -> list[str]:
    head = [sys.executable, "-m", "ftcomm_tracker", "run", "-v", "-n", str(n), *options]
    return [*head, "--", *start_script, sys.executable, "-c", script]


def environment(**extra: str) -> dict[str, str]:
    path = os.pathsep.join(str(ROOT / part) for part in ("", "tracker", "chaos"))
    clean = {name: text for name, text in os.environ.items() if not name.startswith("FTCOMM_")}
    clean.pop("OMP_NUM_THREADS", None)
    return {**clean, "PYTHONPATH": path, **extra}


def run(*options: str, script: str, n: int = 2, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*options, script=script, n=n),
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextlib.contextmanager
def started(
    *options: str,
    script: str,
    n: int = 2,
    under: tuple[str, ...] = (),
    start_script: tuple[str, ...] = (),
) -> Iterator[subprocess.Popen[str]]:
    """A launcher whose output is read line by line, started by the command `under`."""
    with subprocess.Popen(
        [*under, *command(*options, script=script, n=n, start_script=start_script)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


def said_pids(launcher: subprocess.Popen[str], count: int) -> list[int]:
    """The numbers in the next lines of output: workers say their process ids."""
    assert launcher.stdout is not None
    return [int(launcher.stdout.readline().split()[-1]) for _ in range(count)]


def wait_gone(pids: list[int]) -> None:
    """Wait for the kernel to end processes that are not our children."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            try:
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
            except ChildProcessError:
                wait_readable(pidfd)
            finally:
                os.close(pidfd)


def wait_readable(fd: int) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    assert poller.poll(30_000), "a worker outlived its launcher"


SAY_PID_AND_WAIT = """
import os, signal
print("pid", os.getpid(), flush=True)
signal.pause()
"""


def test_output_has_the_rank_in_front_and_streams_stay_apart() -> None:
    script = """
import os, sys
print("out of", os.environ["FTCOMM_WORKER_ID"], os.environ["OMP_NUM_THREADS"])
print("err", file=sys.stderr)
sys.stdout.write("no newline")
sys.exit(64)
"""
    done = run(script=script)
    assert len(done.stdout.splitlines()) == 4
    for rank in ("0", "1"):
        own = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert own == [f"[{rank}] out of {rank} 1", f"[{rank}] no newline"]
        assert f"[{rank}] err\n" in done.stderr
    assert done.stderr.count("OMP_NUM_THREADS is not set") == 1


def ignoring(name: str) -> tuple[str, ...]:
    """A command that runs another one with a signal ignored."""
    script = (
        f"import os, signal, sys; signal.signal(signal.{name}, signal.SIG_IGN);"
        " os.execv(sys.argv[1], sys.argv[1:])"
    )
    return (sys.executable, "-c", script)


def test_exit_statuses_are_seen_where_a_parent_ignores_sigchld() -> None:
    with started(script="raise SystemExit(64)", n=1, under=ignoring("SIGCHLD")) as launcher:
        _, said = launcher.communicate(timeout=30)
    assert launcher.returncode == 73, said
    assert "worker 0 exited with status 64 (ConfigError): giving it up" in said


def test_a_signal_ends_every_worker() -> None:
    with started(script=SAY_PID_AND_WAIT, n=2) as launcher:
        pids = said_pids(launcher, 2)
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=30)
        assert launcher.returncode == 128 + signal.SIGINT
        wait_gone(pids)


def test_a_job_under_nohup_outlives_its_terminal() -> None:
    with started(script=SAY_PID_AND_WAIT, n=1, under=("nohup",)) as launcher:
        pids = said_pids(launcher, 1)
        launcher.send_signal(signal.SIGHUP)
        launcher.send_signal(signal.SIGTERM)
        _, said = launcher.communicate(timeout=30)
        assert (launcher.returncode, "SIGHUP" in said) == (128 + signal.SIGTERM, False)
        wait_gone(pids)


def test_a_users_signal_is_passed_on_to_the_workers() -> None:
    script = """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: print("warned", flush=True))
print("pid", os.getpid(), flush=True)
while True:
    signal.pause()
"""
    with started(script=script, n=1) as launcher:
        said_pids(launcher, 1)
        launcher.send_signal(signal.SIGUSR1)
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "[0] warned\n"


IGNORE_SIGTERM = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: print("ignored", flush=True))
print("pid", os.getpid(), flush=True)
while True:
    signal.pause()
"""


def test_the_time_to_end_after_sigterm_can_be_set() -> None:
    assert LaunchOptions((), ()).grace_s == 30.0
    with started("--term-grace", "0.2s", script=IGNORE_SIGTERM, n=1) as launcher:
        pids = said_pids(launcher, 1)
        launcher.send_signal(signal.SIGTERM)
        launcher.communicate(timeout=20)
        assert launcher.returncode == 143
        wait_gone(pids)


def test_a_second_signal_does_not_wait_for_workers_that_ignore_the_first() -> None:
    with started(script=IGNORE_SIGTERM, n=1) as launcher:
        pids = said_pids(launcher, 1)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "[0] ignored\n"
        launcher.send_signal(signal.SIGTERM)
        launcher.communicate(timeout=30)
        assert launcher.returncode == 143
        wait_gone(pids)


def test_workers_die_with_a_launcher_that_is_killed() -> None:
    with started(script=SAY_PID_AND_WAIT, n=1) as launcher:
        pids = said_pids(launcher, 1)
        launcher.kill()
        wait_gone(pids)


def test_what_a_dead_worker_left_running_is_ended_before_its_next_process() -> None:
    script = """
import os, signal
if os.fork() == 0:
    print("pid", os.getpid(), flush=True)
    signal.pause()
signal.pause()
"""
    with started(script=script, n=1) as launcher:
        orphan = said_pids(launcher, 1)[0]
        parent = int(Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        wait_gone([orphan])
        again = said_pids(launcher, 1)
        os.kill(again[0], signal.SIGKILL)  # when the launcher is killed, nobody ends it
        assert again != [orphan]


def test_a_closed_reader_of_its_output_does_not_stop_the_job() -> None:
    script = "print('x' * 100_000); raise SystemExit(1)"
    with started("--max-restarts", "1", script=script, n=1) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.close()
        launcher.stdout = None
        launcher.communicate(timeout=30)
        assert launcher.returncode == 73


def test_a_terminal_gets_a_live_status_line_that_other_lines_do_not_break() -> None:
    leader, follower = os.openpty()
    with subprocess.Popen(
        command(script=SAY_PID_AND_WAIT, n=1), env=environment(), stdout=follower, stderr=follower
    ) as launcher:
        os.close(follower)
        seen = b""
        while b"pid" not in seen or b"0/1 workers up" not in seen.split(b"pid")[-1]:
            seen += os.read(leader, 4096)
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(timeout=30)
    os.close(leader)
    assert b"\r\x1b[Kwaiting for workers, 0/1 workers up, no durable checkpoint yet, 0 re" in seen
    # What follows a status line begins by clearing it: one row, or two while half of a line of the
    # worker stands above it as a bar.
    cleared = (b"\r\x1b[K", b"\r\x1b[1A\x1b[J")
    assert all(part.startswith(cleared) for part in seen.split(b"0 restarts")[1:-1])


SAY_BUFFERING = """
import sys
import ftcomm
with ftcomm.init():
    print(*((s.line_buffering, s.write_through) for s in (sys.stdout, sys.stderr)))
    print("no newline", end="")
"""


def test_a_worker_writes_whole_lines() -> None:
    done = run(script=SAY_BUFFERING, n=1, PYTHONUNBUFFERED="")
    seen = "[0] (True, False) (True, False)\n[0] no newline\n"
    assert (done.returncode, done.stdout) == (0, seen), done.stderr
