"""The launcher on real processes: small scripts that do not know ftcomm."""

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcomm_tracker.launcher.memcpy_tuning import with_tuned_copies

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[3]


def command(*options: str, script: str, n: int = 2) -> list[str]:
    head = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(n), *options]
    return [*head, "--", sys.executable, "-c", script]


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
    *options: str, script: str, n: int = 2, under: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A launcher whose output is read line by line, started by the command `under`."""
    with subprocess.Popen(
        [*under, *command(*options, script=script, n=n)],
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


def test_a_users_own_omp_num_threads_stays() -> None:
    script = "import os, sys; print(os.environ['OMP_NUM_THREADS']); sys.exit(64)"
    done = run(script=script, OMP_NUM_THREADS="3")
    assert "[0] 3\n" in done.stdout
    assert "is not set" not in done.stderr


def test_workers_have_large_copies_streamed_where_the_library_would_not() -> None:
    script = "import os, sys; print('has', os.environ.get('GLIBC_TUNABLES')); sys.exit(64)"
    clean = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    wanted = with_tuned_copies(clean).get("GLIBC_TUNABLES")
    assert f"[0] has {wanted}\n" in run(script=script).stdout


def test_only_the_worker_that_dies_is_restarted_and_given_up_after_its_last_restart() -> None:
    script = """
import os, signal, sys
me = os.environ["FTCOMM_WORKER_ID"]
print("start of", me, flush=True)
if me == "1":
    print("my last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.pause()
"""
    with started("--max-restarts", "2", script=script) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        lines = [launcher.stdout.readline() for _ in range(7)]
        assert sorted(lines) == sorted(
            ["[0] start of 0\n"] + ["[1] start of 1\n", "[1] my last words\n"] * 3
        )
        said = ""
        while "RankLostError" not in said:
            said += launcher.stderr.readline()
        assert "worker 1 was killed by SIGKILL: starting it again\n" in said
        assert "starting it again in 0.5 s\n" in said
        assert "ftcomm: the last lines of worker 1:\n" in said
        assert "ftcomm:   | start of 1\n" in said
        assert "worker 1 died 3 times within 3600 s while the job stood at -1.0" in said
        launcher.send_signal(signal.SIGTERM)  # worker 0 would be waited for
        launcher.communicate(timeout=30)
        assert launcher.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("status", "ends_with"), [(0, 83), (1, 73), (64, 73), (74, 73), (75, 73), (77, 77)]
)
def test_ends_non_zero_unless_every_rank_has_closed(status: int, ends_with: int) -> None:
    done = run("--max-restarts", "1", script=f"raise SystemExit({status})")
    assert done.returncode == ends_with
    starts_again = done.stderr.count("starting it again\n")
    assert (starts_again > 0) == (status in (0, 1, 75))  # 75: fenced, by nobody who is there
    if status == 0:
        assert "ended with status 0 and never called ftcomm.init(): giving it up" in done.stderr
        assert "never closed" not in done.stderr


def test_max_restarts_ends_the_job() -> None:
    done = run("--max-restarts", "0", script="raise SystemExit(1)", n=1)
    assert done.returncode == 73
    assert "worker 0 died 1 time within 3600 s while the job stood at -1.0" in done.stderr


def test_deaths_that_are_further_apart_than_the_window_do_not_end_the_job(
    tmp_path: Path,
) -> None:
    """The delays before the later restarts are longer than the window."""
    script = f"""
import ftcomm, os, signal
path = {str(tmp_path / "starts")!r}
open(path, "a").write("x")
if len(open(path).read()) < 5:
    os.kill(os.getpid(), signal.SIGKILL)
with ftcomm.init() as comm:
    comm.barrier()
"""
    done = run("--max-restarts", "1", "--restart-window", "0.001", script=script, n=1)
    assert (done.returncode, done.stderr.count("starting it again\n")) == (0, 4), done.stderr


TAKES_THE_FILES = """
import os, resource, ftcomm
with ftcomm.init() as comm:
    comm.load_checkpoint()
    comm.barrier()
    if comm.rank == 1 and comm.incarnation == 1:
        launcher = os.getppid()
        hard = resource.prlimit(launcher, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(launcher, resource.RLIMIT_NOFILE, (8, hard))
        os._exit(9)
    comm.barrier()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="another process's limits need Linux")
def test_a_worker_that_cannot_be_started_just_now_is_started_later() -> None:
    with started(script=TAKES_THE_FILES) as launcher:
        assert launcher.stderr is not None
        before = resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE)
        for line in launcher.stderr:
            if "worker 1 cannot be started (" in line:
                break
        resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE, (before[1], before[1]))
        rest = launcher.stderr.read()
        assert launcher.wait(60) == 0, rest
    assert "as many files and sockets open as it may" in line


def test_a_command_that_cannot_be_run_is_said() -> None:
    head = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", "2", "--", "/nonexistent"]
    done = subprocess.run(
        head, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "cannot run '/nonexistent'" in done.stderr) == (64, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_worker(number: signal.Signals) -> None:
    with started(script=SAY_PID_AND_WAIT, n=3) as launcher:
        pids = said_pids(launcher, 3)
        launcher.send_signal(number)
        launcher.communicate(timeout=30)
        assert launcher.returncode == 128 + number
        wait_gone(pids)


def test_a_job_under_nohup_outlives_its_terminal() -> None:
    with started(script=SAY_PID_AND_WAIT, under=("nohup",)) as launcher:
        pids = said_pids(launcher, 2)
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
    with started(script=script, n=2) as launcher:
        said_pids(launcher, 2)
        launcher.send_signal(signal.SIGUSR1)
        assert launcher.stdout is not None
        lines = sorted(launcher.stdout.readline() for _ in range(2))
        assert lines == ["[0] warned\n", "[1] warned\n"]


def test_a_second_signal_does_not_wait_for_workers_that_ignore_the_first() -> None:
    script = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: print("ignored", flush=True))
print("pid", os.getpid(), flush=True)
while True:
    signal.pause()
"""
    with started(script=script, n=1) as launcher:
        pids = said_pids(launcher, 1)
        launcher.send_signal(signal.SIGINT)
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "[0] ignored\n"
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=30)
        assert launcher.returncode == 130
        wait_gone(pids)


def test_workers_die_with_a_launcher_that_is_killed() -> None:
    with started(script=SAY_PID_AND_WAIT, n=2) as launcher:
        pids = said_pids(launcher, 2)
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
        while b"pid" not in seen or b"0/1 ranks up" not in seen.split(b"pid")[-1]:
            seen += os.read(leader, 4096)
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(timeout=30)
    os.close(leader)
    assert b"\r\x1b[Kforming, epoch 0, 0/1 ranks up, at -1.0, 0 restarts" in seen
    # What follows a status line begins by clearing it.
    assert all(part.startswith(b"\r\x1b[K") for part in seen.split(b"0 restarts")[1:] if part)


SAY_BUFFERING = """
import sys
import ftcomm
with ftcomm.init():
    print(*((s.line_buffering, s.write_through) for s in (sys.stdout, sys.stderr)))
    print("no newline", end="")
"""


@pytest.mark.parametrize(
    ("extra", "seen"),
    [
        ({"PYTHONUNBUFFERED": ""}, "[0] (True, False) (True, False)\n[0] no newline\n"),
        ({"PYTHONUNBUFFERED": "1"}, "[0] (False, True) (False, True)\n[0] no newline\n"),
    ],
)
def test_a_worker_writes_whole_lines_unless_the_user_says_unbuffered(
    extra: dict[str, str], seen: str
) -> None:
    done = run(script=SAY_BUFFERING, n=1, **extra)
    assert (done.returncode, done.stdout) == (0, seen), done.stderr
