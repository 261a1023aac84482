"""Rows that all ranks know before the call: no exchange of sizes, and alike through a restart."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

LIMIT_S = 60.0
# Rank 1 dies once, with the second of three rounds of version 1; inputs are arrays or functions.
JOB = """\
import os, signal
import numpy as np, ftcomm
COUNTS = [3, 0, 1]
def given(array, as_function):
    return (lambda: array) if as_function else array
with ftcomm.init() as comm:
    version, total = comm.load_checkpoint(0.0)
    for step in range(version, 2):
        for call in range(3):
            rows = np.full((COUNTS[comm.rank], 2), 10.0 * step + call + comm.rank)
            joined = comm.allgatherv(given(rows, call % 2), COUNTS)
            assert (joined == comm.allgatherv(rows)).all()
            out = np.empty((4, 2))
            assert comm.iallgatherv(rows, COUNTS, out=out).wait() is out
            assert (out == joined).all()
            mine = comm.reduce_scatter(given(joined, call % 2), counts=COUNTS)
            assert (mine == 3 * joined[sum(COUNTS[:comm.rank]):][:COUNTS[comm.rank]]).all()
            total += joined.sum()
            if comm.rank == 1 and (comm.incarnation, step, call) == (1, 1, 1):
                os.kill(os.getpid(), signal.SIGKILL)
        comm.checkpoint(total)
print("total", total)
"""
DIFFER = """\
import numpy as np, ftcomm
with ftcomm.init() as comm:
    comm.allgatherv(np.zeros(2), COUNTS)
"""


def run(script: str, ranks: int, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(script)
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(ranks), "--"]
    return subprocess.run(
        [*command, sys.executable, "job.py"],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_given_counts_give_the_same_rows_and_are_replayed(tmp_path: Path) -> None:
    done = run(JOB, 3, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    totals = {line.split("total ")[1] for line in done.stdout.splitlines() if "total" in line}
    expected = sum(2 * (4 * (10.0 * step + call) + 2) for step in range(2) for call in range(3))
    assert totals == {str(expected)}


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ("[2, 2] if comm.rank else None", "counts: none given, or equal ones and #"),
        ("[2, 2 + (comm.rank == 0)]", "counts: #"),
    ],
)
def test_counts_that_differ_are_found_and_named(counts: str, words: str, tmp_path: Path) -> None:
    done = run(DIFFER.replace("COUNTS", counts), 2, tmp_path)
    assert done.returncode == 72, done.stdout + done.stderr
    assert f"they differ in {words}" in done.stderr + done.stdout


def test_counts_that_do_not_fit_the_input_are_refused_by_one_rank(tmp_path: Path) -> None:
    done = run(DIFFER.replace("COUNTS", "[3, 2]"), 2, tmp_path)
    assert "ValueError: counts[0] is 3, x has 2 rows" in done.stderr + done.stdout
