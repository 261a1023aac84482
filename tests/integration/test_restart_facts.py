"""Facts of its own restart and its own end that a script can ask for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

LIMIT_S = 60.0
# Rank 1 dies once, when it has the third of five results of version 1.
RESTARTED = """\
import json, os, signal
import numpy as np, ftcomm
with ftcomm.init() as comm:
    version, _ = comm.load_checkpoint(0)
    seen = []
    for step in range(version, 2):
        for call in range(5):
            seen.append((step, call, comm.is_replaying))
            comm.allreduce(np.ones(2), tag=call)
            if comm.rank == 1 and (comm.incarnation, step, call) == (1, 1, 2):
                os.kill(os.getpid(), signal.SIGKILL)
        comm.checkpoint(step)
    with open(f"rank{comm.rank}.json", "w") as file:
        json.dump({"incarnation": comm.incarnation, "seen": seen}, file)
    assert comm.error is None
assert comm.error is None
"""
# A framework that raises its own error, of a job that was stopped by a mismatch.
WRAPPED = """\
import sys
import numpy as np, ftcomm
comm = ftcomm.init()
try:
    try:
        comm.allreduce(np.zeros(2 + comm.rank))
    except ftcomm.FtcommError as error:
        raise RuntimeError("the trainer failed") from error
except RuntimeError:
    print("ended by", type(comm.error).__name__, flush=True)
    sys.exit(comm.error.exit_code)
"""


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(script)
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", "2", "--"]
    return subprocess.run(
        [*command, sys.executable, "job.py"],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_a_restarted_worker_knows_its_number_and_what_it_replays(tmp_path: Path) -> None:
    done = run(RESTARTED, tmp_path)
    assert done.returncode == 0, done.stderr
    restarted = json.loads((tmp_path / "rank1.json").read_text())
    assert restarted["incarnation"] == 2
    served = [call for step, call, is_replaying in restarted["seen"] if is_replaying and step == 1]
    assert served[:3] == [0, 1, 2]
    assert restarted["seen"][-1][2] is False
    other = json.loads((tmp_path / "rank0.json").read_text())
    assert other["incarnation"] == 1
    assert [is_replaying for step, _, is_replaying in other["seen"] if step == 0] == [False] * 5


def test_the_error_is_there_behind_that_of_a_framework(tmp_path: Path) -> None:
    done = run(WRAPPED, tmp_path)
    said = done.stdout.count("ended by CollectiveMismatchError")
    assert (done.returncode, said) == (72, 2), done.stderr
