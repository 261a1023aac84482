"""A second process under a worker's id: children of a worker that call `init`, forked and spawned.

Real workers under ``run`` and ``supervise``; rank 1 has the child.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.tracker.serving import serve, supervise
from tests.unit.tracker.test_launcher import environment

pytestmark = pytest.mark.process

# As users write it: the script is imported again in a child that is spawned (multiprocessing,
# joblib, a DataLoader's workers), and what joins the job is not behind the guard.
SPAWNS = """
import multiprocessing
import ftcomm

comm = ftcomm.init()
comm.load_checkpoint(default=0)
comm.allreduce(1)
if __name__ == "__main__":
    if comm.rank == 1:
        child = multiprocessing.get_context("spawn").Process(target=print)
        child.start()
        child.join()
        print("its child ended with", child.exitcode)
    print("sum", comm.allreduce(comm.rank + 1))
    comm.close()
"""
FORKS = """
import os
import ftcomm

comm = ftcomm.init()
comm.load_checkpoint(default=0)
comm.allreduce(1)
if comm.rank == 1:
    child = os.fork()
    if child == 0:
        comm = ftcomm.init({arguments})
        comm.close()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("its child ended with", status)
print("sum", comm.allreduce(comm.rank + 1))
comm.close()
"""
# A child that does not inherit the note, as of a fork server that was there before.
USURPS = """
import os
import ftcomm

comm = ftcomm.init()
version, mine = comm.load_checkpoint(default=0)
comm.allreduce(1)
if comm.rank == 1 and not os.path.exists(MARK):
    open(MARK, "w").close()
    joined, has_joined = os.pipe()
    child = os.fork()
    if child == 0:
        del os.environ["FTCOMM_JOINED"]
        ftcomm.init()
        {then}
    {meanwhile}
print("sum", comm.allreduce(comm.rank + 1))
comm.close()
"""
ENDS = {"then": "os._exit(0)", "meanwhile": "os.waitpid(child, 0)"}
STAYS = {
    "then": "os.write(has_joined, b'yes'); import signal; signal.pause()",
    "meanwhile": "os.read(joined, 3)",
}


def run_file(tmp_path: Path, text: str) -> "subprocess.CompletedProcess[str]":
    """As ``run``, of a script that children can import again."""
    path = tmp_path / "train.py"
    path.write_text(text)
    head = [sys.executable, "-m", "ftcomm_tracker", "run", "-v", "-n", "2", "--"]
    return subprocess.run(
        [*head, sys.executable, str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def said(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return sorted(line for line in done.stdout.splitlines() if line.strip("[]01 "))


@pytest.mark.parametrize("text", [SPAWNS, FORKS.format(arguments="")], ids=["spawned", "forked"])
def test_a_child_that_inherits_the_worker_id_is_refused_and_the_job_goes_on(
    text: str, tmp_path: Path
) -> None:
    done = run_file(tmp_path, text)
    wanted = ["[0] sum 3", "[1] its child ended with 64", "[1] sum 3"]
    assert (done.returncode, said(done)) == (0, wanted), done.stderr
    assert "which runs; process" in done.stderr
    assert "if __name__ == '__main__':" in done.stderr
    assert "epoch 2" not in done.stderr


def test_a_child_that_computes_alone_says_so_and_may(tmp_path: Path) -> None:
    done = run_file(tmp_path, FORKS.format(arguments='"none"'))
    wanted = ["[0] sum 3", "[1] its child ended with 0", "[1] sum 3"]
    assert (done.returncode, said(done)) == (0, wanted), done.stderr


def test_a_worker_whose_place_was_taken_by_a_process_that_has_ended_is_restarted(
    tmp_path: Path,
) -> None:
    text = USURPS.replace("MARK", repr(str(tmp_path / "mark")))
    done = run_file(tmp_path, text.format(**ENDS))
    assert (done.returncode, said(done)) == (0, ["[0] sum 3", "[1] sum 3"]), done.stderr
    words = "worker 1 exited with status 75 (FencedError), and the process that took its place"
    assert done.stderr.count(f"{words} has ended: starting it again") == 1, done.stderr


def test_its_supervisor_restarts_one_whose_successor_is_killed_with_it(tmp_path: Path) -> None:
    text = USURPS.replace("MARK", repr(str(tmp_path / "mark"))).format(**STAYS)
    with serve(tmp_path / "state", "-n", "2") as (tracker, ready):
        with (
            supervise(ready, "--worker-id", "0", script=text) as first,
            supervise(ready, "--worker-id", "1", script=text) as second,
        ):
            outputs = [first.communicate(timeout=60), second.communicate(timeout=60)]
        statuses = [first.returncode, second.returncode, tracker.wait(timeout=60)]
    assert (statuses, [out for out, _ in outputs]) == ([0, 0, 0], ["[0] sum 3\n", "[1] sum 3\n"])
    assert "the process that took its place has ended: starting it again" in outputs[1][1]
