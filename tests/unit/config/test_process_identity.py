"""Processes by number and start: a number that another process has got is not taken for it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ftcomm.config import process_identity
from ftcomm.config.process_identity import ProcessName, start_of, this_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only /proc says when it began")


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that runs until it is ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def test_a_signal_reaches_the_process_that_is_named(process: "subprocess.Popen[bytes]") -> None:
    name = ProcessName.of(process.pid)
    assert (name.is_running(), name.signal(signal.SIGTERM)) == (True, True)
    assert process.wait() == -signal.SIGTERM
    assert (name.is_running(), name.signal(signal.SIGTERM)) == (False, False)


def test_whoever_got_the_number_later_gets_no_signal(process: "subprocess.Popen[bytes]") -> None:
    earlier = ProcessName(process.pid, (start_of(process.pid) or 0) - 1)
    sent = earlier.signal(signal.SIGKILL)
    assert process.stdin is not None
    process.stdin.close()
    assert (sent, earlier.is_running(), process.wait()) == (False, False, 1)


def test_this_process_runs() -> None:
    assert this_process().is_running()


def test_a_process_of_which_nothing_can_be_read_runs_until_its_number_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one of another user, where /proc is mounted with hidepid."""
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        ended = ProcessName(process.pid, 7)
    monkeypatch.setattr(process_identity, "read_proc_stat", lambda _: None)
    assert [ProcessName(os.getpid(), 7).is_running(), ended.is_running()] == [True, False]
