"""The note of who has joined: whom it refuses, and whom it does not."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ftcomm.config.environment import JOINED, process_environment
from ftcomm.config.joined_process import note_joined
from ftcomm.config.process_identity import ProcessName, this_process
from ftcomm.errors import ConfigError

ROUTES = [("10.0.0.1", 7000), ("tracker", 7000)]


@pytest.fixture(autouse=True)
def no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOINED, "")  # put back as it was, whatever the test leaves
    del os.environ[JOINED]


@pytest.fixture
def other() -> Iterator[ProcessName]:
    """A process that runs, and is not this one."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield ProcessName.of(process.pid)
        process.kill()


def note_of(process: ProcessName, worker_id: str = "3") -> str:
    return f"{process.pid} {process.start} 10.0.0.1:7000,other:7000 {worker_id}"


def test_a_process_that_joins_leaves_its_name_and_takes_it_away() -> None:
    forget_joined = note_joined("worker three", ROUTES)
    me = this_process()
    left = os.environ[JOINED]
    forget_joined()
    wanted = f"{me.pid} {me.start} 10.0.0.1:7000,tracker:7000 worker three"
    assert (left, JOINED in os.environ) == (wanted, False)


def test_who_inherits_the_id_of_a_process_that_runs_is_refused(other: ProcessName) -> None:
    os.environ[JOINED] = note_of(other)
    with pytest.raises(ConfigError) as caught:
        note_joined("3", ROUTES)
    assert caught.value.cause == (
        f"worker 3 of this job is process {other.pid}, which runs; process {os.getpid()} has only"
        " inherited that worker id and would take its place"
    )
    assert os.environ[JOINED] == note_of(other)


def test_another_id_another_job_and_the_same_process_may_join(other: ProcessName) -> None:
    for note, routes in (
        (note_of(other, "4"), ROUTES),
        (note_of(other), [("10.0.0.2", 7000)]),
        (note_of(this_process()), ROUTES),
    ):
        os.environ[JOINED] = note
        note_joined("3", routes)
        assert os.environ[JOINED].startswith(f"{os.getpid()} ")


@pytest.mark.skipif(sys.platform != "linux", reason="only /proc says when a process began")
def test_a_process_that_has_ended_keeps_nobody_out(other: ProcessName) -> None:
    for gone in (ProcessName(other.pid, other.start + 1), ProcessName((1 << 22) + 1, 7)):
        os.environ[JOINED] = note_of(gone)
        note_joined("3", ROUTES)


@pytest.mark.skipif(sys.platform != "linux", reason="only /proc says what state it is in")
def test_a_process_that_is_not_reaped_has_ended() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    ended = ProcessName.of(child)
    try:
        assert (ended.start > 0, ended.is_running()) == (True, False)
    finally:
        os.waitpid(child, 0)


def test_a_child_that_ends_does_not_take_the_note_of_its_parent_away(other: ProcessName) -> None:
    forget_joined = note_joined("4", ROUTES)
    os.environ[JOINED] = note_of(other)
    forget_joined()
    assert os.environ[JOINED] == note_of(other)


def test_a_process_that_joins_twice_has_a_note_for_each(other: ProcessName) -> None:
    os.environ[JOINED] = note_of(other, "7")
    forget = [note_joined(name, ROUTES) for name in ("0", "1")]
    left = [line.rpartition(" ")[2] for line in os.environ[JOINED].split("\n")]
    forget[0]()
    kept = os.environ[JOINED].rpartition(" ")[2]
    forget[1]()
    assert (left, kept, JOINED in os.environ) == (["0", "1"], "1", False)


def test_what_a_launcher_starts_does_not_inherit_it(other: ProcessName) -> None:
    os.environ[JOINED] = note_of(other)
    assert JOINED not in process_environment()


@pytest.mark.parametrize("text", ["x", "1 2 3", "a 2 h:1 3"])
def test_a_note_that_nobody_wrote_is_refused_by_name(text: str) -> None:
    os.environ[JOINED] = text
    with pytest.raises(ConfigError, match=f"FTCOMM_JOINED is '{text}'"):
        note_joined("3", ROUTES)
