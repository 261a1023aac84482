"""A variable that is not in the checkpoint, and a loss of everything: nobody is left to compare."""

import subprocess
import sys
from pathlib import Path

import pytest

from ftcomm.protocol.signature import USUAL_CAUSE

pytestmark = pytest.mark.process

LIMIT_S = 90.0
DIFFERS = (
    "checkpoint 6 has other values than in attempt 1, which went on from checkpoint 5 too;"
    f" {USUAL_CAUSE}"
)
# Rank 0 of the first attempt ends all when the store has the digest behind checkpoint 5.  Of two
# that end themselves behind a barrier one may be late, and meet the other's next process in it.
SCRIPT = """\
import os, signal, sys, time
from pathlib import Path
import numpy as np, ftcomm
from ftcomm.durable.records import decode_record

def follows_5(path):
    try:
        link = decode_record(path.read_bytes(), int(path.name[:8]), path.name)
    except FileNotFoundError:  # replaced just now
        return False
    return link.record.version == 6

def end_all(comm):
    if comm.rank:
        signal.pause()
    while not any(map(follows_5, Path("state/store/next").glob("*.rec"))):
        time.sleep(0.02)
    if sys.argv[1] == "launcher":
        os.kill(os.getppid(), signal.SIGKILL)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGKILL)

with ftcomm.init() as comm:
    pids = comm.allgather_object(os.getpid())
    version, state = comm.load_checkpoint({"w": np.zeros(4), "momentum": np.zeros(4)})
    w = state["w"]
    momentum = state["momentum"] if sys.argv[2] == "kept" else np.zeros(4)
    for step in range(version, 10):
        momentum = 0.9 * momentum + comm.allreduce(np.ones(4))
        w = w - 0.1 * momentum
        comm.checkpoint({"w": w, "momentum": momentum} if sys.argv[2] == "kept" else
                        {"w": w, "momentum": np.zeros(4)}, durable=step == 4)
        if version == 0 and step == 5:
            end_all(comm)
print("model", w[0])
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", "2", "--state-dir", "state"]
    return subprocess.run(
        [*command, "--checkpoint-every", "1h", "--", sys.executable, "job.py", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_a_loss_of_all_workers_shows_it_and_ends_the_job(tmp_path: Path) -> None:
    done = run(tmp_path, "workers", "forgotten")
    assert done.returncode == 72, done.stdout + done.stderr
    assert f"CollectiveMismatchError: {DIFFERS}" in done.stderr


@pytest.mark.parametrize("variable", ["forgotten", "kept"])
def test_the_command_given_again_warns_of_it_and_goes_on(tmp_path: Path, variable: str) -> None:
    """The script may have been edited in between."""
    assert run(tmp_path, "launcher", variable).returncode == -9
    done = run(tmp_path, "launcher", variable)
    assert done.returncode == 0, done.stdout + done.stderr
    warnings = done.stdout.count(DIFFERS) + done.stderr.count(DIFFERS)
    assert warnings == (variable == "forgotten"), done.stderr
