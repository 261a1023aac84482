"""Commands whose standard streams are closed, full or unread, and Ctrl-C at any early moment."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.tracker.serving import serve
from tests.unit.tracker.test_launcher import environment

pytestmark = pytest.mark.process

CLOSES = "import ftcomm\nwith ftcomm.init() as comm:\n    print('a line')\n"
FULL = "standard output cannot be written: No space left on device"
RUN = f"{sys.executable} -m ftcomm_tracker run -n 1 -- {sys.executable} -u script.py"
CHAOS = f"{sys.executable} -m ftcomm_chaos"
HELP = f"{sys.executable} -m ftcomm_tracker help exit-codes"


def shell(line: str, folder: Path, **extra: str) -> tuple[int, list[str]]:
    """The status of `line` under bash, and the last line of what it says on the error stream."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=environment(**extra),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    told = [text for text in done.stderr.splitlines() if "Traceback" in text or FULL in text]
    return done.returncode, told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(CLOSES)
    return tmp_path


@pytest.mark.parametrize(
    "redirected", [">&-", "2>&-", ">&- 2>&- <&-", "2>/dev/full", "| head -c 1"]
)
@pytest.mark.parametrize("command", [RUN, HELP, f"{CHAOS} sim --seed 1"])
def test_a_stream_that_nobody_reads_changes_nothing(
    command: str, redirected: str, folder: Path
) -> None:
    assert shell(f"{command} {redirected}", folder) == (0, [])


@pytest.mark.parametrize("command", [HELP, f"{CHAOS} sim --seed 1", f"{CHAOS} --help"])
def test_output_that_cannot_be_written_is_an_error_of_the_command(
    command: str, folder: Path
) -> None:
    name = command.split()[2].replace("_", "-")
    assert shell(f"{command} > /dev/full", folder) == (1, [f"{name}: {FULL}"])


def test_workers_whose_output_cannot_be_written_run_to_their_end(folder: Path) -> None:
    (folder / "script.py").write_text(f"{CLOSES}open(f'{{comm.rank}} is done', 'w')\n")
    status, told = shell(f"{RUN} > /dev/full", folder)
    assert (status, len(told), "lost from here on" in told[0]) == (1, 1, True)
    assert sorted(path.name for path in folder.glob("* is done")) == ["0 is done"]


@pytest.mark.parametrize("command", ["status", "explain", "doctor", "stop"])
def test_commands_that_ask_a_tracker_say_that_their_output_is_lost(
    command: str, folder: Path
) -> None:
    with serve(folder / "state", "-n", "1"):
        ask = f"{sys.executable} -m ftcomm_tracker {command} --state-dir state"
        assert shell(f"{ask} > /dev/full", folder) == (1, [f"ftcomm-tracker: {FULL}"])


def test_a_tracker_whose_first_line_is_lost_does_not_serve(folder: Path) -> None:
    start = f"{sys.executable} -m ftcomm_tracker serve -n 1"
    assert shell(f"{start} > /dev/full", folder) == (1, [f"ftcomm-tracker: {FULL}"])


def test_a_job_whose_workers_are_killed_after_all_have_closed_ends_well(folder: Path) -> None:
    killed = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    (folder / "script.py").write_text(CLOSES + killed)
    assert shell(RUN, folder) == (0, [])


def test_a_job_whose_workers_fail_after_all_have_closed_does_not(folder: Path) -> None:
    (folder / "script.py").write_text(f"{CLOSES}raise SystemExit(5)\n")
    assert shell(RUN, folder) == (5, [])


def test_a_watcher_ends_when_its_reader_has_left(folder: Path) -> None:
    with serve(folder / "state", "-n", "1"):
        watch = f"{sys.executable} -m ftcomm_tracker status --watch 0.1 --state-dir state"
        assert shell(f"{watch} | head -1", folder) == (0, [])


# An audit hook sees each import, each socket and each process that begins.
INTERRUPTING = """
import os, signal, sys
wanted = os.environ.pop("INTERRUPT_AT")
def hook(event, arguments):
    global wanted
    if wanted and wanted == f"{event} {(*arguments, '')[0]}"[: len(wanted)]:
        wanted = ""
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(hook)
"""


@pytest.mark.parametrize(
    ("command", "moment"),
    [
        (RUN, "import click"),
        (RUN, "import ftcomm_tracker.cli.main"),
        (RUN, "socket.bind"),
        (RUN, "subprocess.Popen"),
        (f"{CHAOS} run --kill-every 2s -n 2 -- true", "import trio"),
        (f"{CHAOS} sim --seed 1", "import numpy"),
    ],
)
def test_an_early_interrupt_is_quiet(moment: str, command: str, folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(INTERRUPTING)
    path = os.pathsep.join((str(folder), environment()["PYTHONPATH"]))
    status, told = shell(f"exec {command}", folder, PYTHONPATH=path, INTERRUPT_AT=moment)
    assert (status, told) == (128 + signal.SIGINT, [])
