"""`ftcomm.Tracker`: a tracker in a thread, and workers that others start."""

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import ftcomm
from tests.unit.tracker.test_launcher import environment

pytestmark = pytest.mark.process

WORK = """
import ftcomm
with ftcomm.init() as comm:
    print(comm.rank, comm.allreduce(comm.rank + 1))
"""
WAIT = """
import ftcomm
with ftcomm.init() as comm:
    print("up", flush=True)
    comm.recv(1 - comm.rank) if comm.load_checkpoint(default=1) else None
"""


def worker(tracker: ftcomm.Tracker, worker_id: int, script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment(**tracker.environment(worker_id)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.smoke
def test_workers_find_it_by_its_environment_and_it_tells_their_state() -> None:
    with ftcomm.Tracker(workers=2) as tracker:
        assert tracker.status()["state"] == "FORMING"
        assert tracker.wait(timeout=0) is False
        workers = [worker(tracker, rank, WORK) for rank in range(2)]
        outputs = [process.communicate(timeout=60) for process in workers]
        assert tracker.wait(timeout=30) is True
        assert tracker.status()["address"] == tracker.address
        folder = tracker.state_dir
    assert outputs == [("0 3\n", ""), ("1 3\n", "")]
    assert (tracker.status()["state"], folder.exists()) == ("OVER", False)
    assert "ftcomm-tracker" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (None, "JobStoppedError", "the `with` block of its tracker has ended"),
        (lambda tracker: tracker.stop("enough"), "JobStoppedError", "enough"),
        (lambda tracker: tracker.give_up(1, "no node"), "RankLostError", "no node"),
    ],
)
def test_workers_are_told_why_the_job_ends(act: Any, error: str, text: str) -> None:
    with ftcomm.Tracker(2) as tracker:
        workers = [worker(tracker, rank, WAIT) for rank in range(2)]
        lines = [process.stdout.readline() for process in workers if process.stdout]
        if act is not None:
            act(tracker)
            with pytest.raises(getattr(ftcomm, error), match=text):
                tracker.wait(30)
    errors = [process.communicate(timeout=60)[1] for process in workers]
    assert lines == ["up\n"] * 2
    assert [(error in said, text in said) for said in errors] == [(True, True)] * 2


def test_a_used_port_and_a_directory_of_another_job_are_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ftcomm.ConfigError, match=r"give another host or port$") as caught,
            ftcomm.Tracker(2, port=port),
        ):
            pass
    assert caught.value.cause == f"cannot listen on 127.0.0.1:{port}: Address already in use"
    with ftcomm.Tracker(2, state_dir=tmp_path):
        pass
    with (
        pytest.raises(ftcomm.ConfigError, match="has -n 2, 3 was asked for"),
        ftcomm.Tracker(3, state_dir=tmp_path),
    ):
        pass
    with ftcomm.Tracker(None, state_dir=tmp_path) as tracker:
        assert tracker.status()["world_size"] == 2


@pytest.mark.smoke
def test_it_serves_one_block() -> None:
    tracker = ftcomm.Tracker(1)
    with pytest.raises(RuntimeError, match="in its `with` block alone"):
        tracker.status()
    with tracker, pytest.raises(RuntimeError, match="make another one"):
        tracker.__enter__()


def test_an_exception_leaves_the_block_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), ftcomm.Tracker(1):
        raise ZeroDivisionError


def test_a_process_that_has_closed_its_job_is_told_so_by_init(tmp_path: Path) -> None:
    """Without waiting for a tracker that has ended; another job may have its address."""
    token = tmp_path / "token"
    with ftcomm.Tracker(workers=1) as tracker:
        address, given = tracker.address, {"worker_id": "0", "token_file": token}
        token.write_bytes(tracker.token_file.read_bytes())
        token.chmod(0o600)
        with ftcomm.init(address, **given) as comm:
            comm.barrier()
        with pytest.raises(ftcomm.JobFinishedError, match=r"has closed its job.*ftcomm\.launch"):
            ftcomm.init(address, **given)
    with pytest.raises(ftcomm.JobFinishedError, match=r"has closed its job.*ftcomm\.launch"):
        ftcomm.init(address, **given, tracker_timeout=20)


def test_a_process_that_has_left_its_job_may_dial_it_again() -> None:
    with ftcomm.Tracker(workers=1) as tracker:
        given = {"worker_id": "0", "token_file": tracker.token_file}
        ftcomm.init(tracker.address, **given).abort("another try")
        with pytest.raises(ftcomm.JobLostError, match="left: another try"):  # it was the only one
            ftcomm.init(tracker.address, **given)
