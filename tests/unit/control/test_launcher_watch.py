"""A worker whose launcher has ended joins no job."""

import os
import subprocess
import sys

import pytest

import ftcomm
from ftcomm.config.environment import LAUNCHER, WorkerOptions, note_of_launcher
from ftcomm.config.process_identity import ProcessName, process_space, this_process
from ftcomm.errors import ConfigError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells containers apart")


def test_a_worker_reads_its_launcher() -> None:
    assert WorkerOptions.load(environ=note_of_launcher()).launcher == this_process()
    assert WorkerOptions.load(environ={}).launcher is None


def test_a_launcher_of_another_container_is_none_that_could_be_watched() -> None:
    note = f"{os.getpid()} 1 {process_space()}0"
    assert WorkerOptions.load(environ={LAUNCHER: note}).launcher is None


@pytest.mark.parametrize("text", ["7", "7 8", "a 8 x/1"])
def test_a_note_that_no_launcher_writes_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"{LAUNCHER} is '{text}', which no launcher writes"):
        WorkerOptions.load(environ={LAUNCHER: text})


def test_a_worker_that_starts_after_its_launchers_end_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        name = ProcessName.of(launcher.pid)
        launcher.communicate(b"")
    monkeypatch.setenv(LAUNCHER, f"{name.pid} {name.start} {process_space()}")
    with pytest.raises(ConfigError, match=f"launcher of this worker, process {name.pid}, has end"):
        ftcomm.init("127.0.0.1:1", worker_id="0")
