"""Other systems, as far as Linux can stand for them: with the pieces that they lack taken away."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="takes pieces of Linux away"),
]
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "tracker", ROOT / "chaos", HERE)))


def run_on(platform: str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python as if on `platform`."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FTCOMM_")}
    return subprocess.run(
        [sys.executable, str(HERE / "pretend.py"), platform, *command],
        env={**kept, "PYTHONPATH": PATHS, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_everything_imports_and_a_group_of_one_runs(platform: str) -> None:
    done = run_on(platform, str(HERE / "alone.py"))
    assert (done.stdout, done.stderr, done.returncode) == ("1 [0.0, 1.0]\n", "", 0)


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_help_is_given_everywhere(platform: str) -> None:
    done = run_on(platform, "-m", "ftcomm_tracker", "run", "--help")
    assert (done.stderr, done.returncode) == ("", 0)


LACKING = (
    "needs poll() on sockets and file descriptors, which win32 does not have - use Linux, macOS or"
    " WSL 2; a group of one works here: ftcomm.init(tracker='none') or FTCOMM_TRACKER=none\n"
)


def test_on_windows_joining_a_job_says_what_is_missing_and_what_to_do() -> None:
    done = run_on("win32", str(HERE / "member.py"), FTCOMM_TRACKER="127.0.0.1:1")
    last = done.stderr.splitlines(keepends=True)[-1]
    wanted = f"ftcomm.errors.ConfigError: joining a job's tracker {LACKING}"
    assert (last, done.returncode) == (wanted, 64)


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "-n", "2"),
        ("run", "-n", "2", "--", "python"),
        ("status", "--tracker", "127.0.0.1:1"),
        *(
            pytest.param((name, "--tracker", "127.0.0.1:1", *more), marks=pytest.mark.slow)
            for name, *more in (
                ("supervise", "--worker-id", "0", "--", "python"),
                ("stop",),
                ("explain",),
                ("doctor",),
            )
        ),
    ],
    ids=lambda command: command[0],
)
def test_on_windows_every_command_says_what_is_missing(command: tuple[str, ...]) -> None:
    done = run_on("win32", "-m", "ftcomm_tracker", *command)
    head, _, said = done.stderr.partition(": ")
    assert (done.stdout, said, done.returncode) == ("", f"ftcomm-tracker {LACKING}", 64)
    assert head in ("ftcomm-tracker", "ftcomm")  # the latter of what runs for long


def test_a_job_without_the_pieces_of_linux_runs_over_tcp_and_survives_a_kill(
    tmp_path: Path,
) -> None:
    worker = [sys.executable, str(HERE / "pretend.py"), "darwin", str(HERE / "member.py")]
    log = tmp_path / "faults"
    done = run_on(
        "darwin",
        *("-m", "ftcomm_tracker", "run", "-n", "2", "--state-dir", str(tmp_path / "job")),
        *("--", *worker),
        FTCOMM_FAULTS=f"1.1.1.0@half_sent=kill>{log}",
    )
    assert (done.stdout, done.returncode, len(log.read_text().splitlines())) == (
        "[0] 27.0 ['AF_INET'] True False\n",
        0,
        1,
    ), done.stderr
