"""Processes that have left their job, or seen its end, and do not end by themselves."""

from pathlib import Path

import pytest

from tests.unit.tracker.serving import serve
from tests.unit.tracker.test_launcher import run
from tests.unit.tracker.test_supervise import ended, supervised

pytestmark = pytest.mark.process

# A prefetch that hangs: the interpreter waits for its thread, whatever ends the main one.
HANGS = """
import os, threading
import ftcomm

threading.Thread(target=threading.Event().wait).start()
mark = os.path.join(FOLDER, os.environ["FTCOMM_WORKER_ID"])
with ftcomm.init() as comm:
    version, _ = comm.load_checkpoint(default=0)
    for step in range(version, 6):
        comm.allreduce(1.0)
        comm.checkpoint(step)
        if step == 2 and comm.rank in RAISING and not os.path.exists(mark):
            open(mark, "w").close()
            raise TimeoutError("no data")
os._exit(0)
"""
KILLED = ") has left the job, and its process has not ended within 10 s"


def script(folder: Path, *raising: int) -> str:
    return f"FOLDER, RAISING = {str(folder)!r}, {raising!r}\n{HANGS}"


def test_a_worker_that_left_and_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    done = run("--replace-within", "30", script=script(tmp_path, 1))
    assert done.returncode == 0, done.stderr
    assert "worker 1 left: TimeoutError: no data" in done.stderr
    assert (done.stderr.count(KILLED), done.stderr.count(": starting it again\n")) == (1, 1)


def test_processes_that_hang_over_the_beginning_of_an_attempt_are_killed_too(
    tmp_path: Path,
) -> None:
    done = run("--replace-within", "15", script=script(tmp_path, 0, 1))
    assert done.returncode == 0, done.stderr
    assert "attempt 2 begins" in done.stderr


def test_a_supervisor_kills_its_worker_that_left_and_hangs(tmp_path: Path) -> None:
    with serve(tmp_path / "state", "-n", "2", "--replace-within", "30") as (tracker, ready):
        with supervised(ready, 2, script=script(tmp_path, 1)) as supervisors:
            found = ended(supervisors)
        assert [status for status, _, _ in found] == [0, 0], found
        assert tracker.wait(timeout=60) == 0
    assert [said.count(KILLED) for _, _, said in found] == [0, 1]
