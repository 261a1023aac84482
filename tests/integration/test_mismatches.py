"""Scripts that are not one program: the error names the first calls that differ, on every rank."""

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

LIMIT_S = 60.0  # for a job of a second on a machine that is busy with others
HEAD = """\
import os, signal
import numpy as np, ftcomm
def job():
    with ftcomm.init() as comm:
        run(comm)
"""
ODD_BROADCAST = """\
def run(comm):
    for step in range(5):
        if comm.rank == 0 or step != 3:
            comm.broadcast(np.zeros(3))
"""
IN_A_VERSION = ODD_BROADCAST.replace(
    "def run(comm):\n", "def run(comm):\n    comm.load_checkpoint()\n"
)
SKIPS = """\
def run(comm):
    for step in range(8):
        comm.allreduce(np.zeros(3))
        if comm.rank != 1 or step != 4:
            comm.allgather(np.zeros(2))
"""
ONE_MORE = """\
def run(comm):
    for step in range(8 + (comm.rank == 1)):
        comm.allreduce(np.zeros(3))
"""
NONBLOCKING = """\
def run(comm):
    for step in range(4):
        comm.iallreduce(np.zeros(3)).wait() if comm.rank == 1 else comm.allreduce(np.zeros(3))
    if comm.rank == 1:
        comm.iallgather(np.zeros(2)).wait()
    else:
        comm.allreduce(np.zeros(3))
"""
ROOT = """\
def run(comm):
    comm.broadcast(np.zeros(4), root=comm.rank % 2)
"""
# Each host agrees with itself, and what is left of both on links nobody reads.
ROOTS_OF_HOSTS = """\
os.environ["FTCOMM_HOST"] = "ab"[int(os.environ["FTCOMM_WORKER_ID"]) // 2]
def run(comm):
    comm.load_checkpoint()
    for root in range(4):
        comm.broadcast(np.zeros(4), root=root)
        comm.alltoall(np.zeros(4))
    comm.allreduce(np.zeros(4))
    comm.broadcast(np.full(4, comm.rank), root=comm.rank // 2 * 2 + 1)
    comm.allreduce(np.zeros(4))
    comm.checkpoint(None)
"""
TAGS = """\
def run(comm):
    for step in range(20):  # those before have gone the fast path
        comm.allreduce(np.zeros(4), tag="bias" if (comm.rank, step) == (1, 12) else "weight")
"""
FUNCTIONS = """\
def average(a, b):
    return a + b
def run(comm):
    name = "average" if comm.rank == 0 else "sum of both"
    comm.allreduce(np.zeros(3), op=ftcomm.reduction(average, name=name))
"""
STATE = """\
def run(comm):
    comm.load_checkpoint()
    w1 = np.zeros(4)
    w1[2] = comm.rank == 1
    comm.checkpoint({"w": np.ones(3), "momentum": {"w1": w1}})
"""
# Dies once, in version 5; its momentum is not in the checkpoint.
FORGETS = """\
def run(comm):
    version, state = comm.load_checkpoint({"w": np.zeros(4)})
    w = state["w"]
    momentum = np.zeros(4)
    for step in range(version, 10):
        if comm.rank == 1 and step == 5 and version == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        momentum = 0.9 * momentum + comm.allreduce(np.ones(4))
        w = w - 0.1 * momentum
        comm.checkpoint({"w": w})
"""
# Dies once, when all have the first result of version 5; its flag is not in the checkpoint.
REPLAYS = """\
def run(comm):
    version, w = comm.load_checkpoint(0)
    warm = version == 0
    for step in range(version, 10):
        comm.allreduce(np.zeros(2), op="max" if warm else "sum")
        if step == 5 and version == 0:
            open(f"has_5.{comm.rank}", "w").close()
            while comm.rank == 1:
                if os.path.exists("has_5.0") and os.path.exists("has_5.2"):
                    os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()
        comm.checkpoint(0)
"""
RESTARTED = (
    "rank 1 (worker 1) was restarted from checkpoint 5: the usual cause is a variable, an"
    " optimizer or a random generator that is not in the checkpoint: add it to the state"
)
CAST = "broadcast(float64[3], root=0) at job.py:9"
SUM = "allreduce(op=sum, float64[3]) at job.py"


def cause_of(script: str, ranks: int, folder: Path) -> str:
    """The words of the error that ends a job of `script`, the same on every rank."""
    (folder / "job.py").write_text(f"{HEAD}{script}job()\n")
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(ranks)]
    done = subprocess.run(
        [*command, "--", sys.executable, "job.py"],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    out = done.stdout + done.stderr
    line = re.compile(r"^\[([\d, -]+)\] ftcomm.errors.CollectiveMismatchError: (.*)$", re.MULTILINE)
    said = line.findall(out)
    causes = {text.partition(" [rank ")[0] for _, text in said}
    assert done.returncode == 72, out
    who = itertools.chain.from_iterable(_ranks(prefix) for prefix, _ in said)
    assert sorted(who) == [*range(ranks)], out
    assert len(causes) == 1, out
    return causes.pop()


def _ranks(prefix: str) -> Iterator[int]:
    """The workers of a line that several have said: 0-2, 4."""
    for part in prefix.split(","):
        first, _, last = part.strip().partition("-")
        yield from range(int(first), int(last or first) + 1)


def compare(cause: str, wanted: str, perhaps: str = "") -> None:
    """`<0 2>` stands for any of these ranks: who has not come so far when asked is not named.

    For the same reason the end `perhaps` may be missing.
    """
    end = _pattern(perhaps)
    found = re.fullmatch(f"{_pattern(wanted)}(?:{end})?", cause)
    assert found, cause
    may_be = re.findall("<([0-9 ]+)>", wanted + perhaps)
    for ranks, all_ranks in zip(found.groups(), may_be, strict=True):
        assert set((ranks or all_ranks).replace(",", "").split()) <= set(all_ranks.split()), cause


def without_hashes(cause: str) -> str:
    """A user function's hash depends on the version of Python."""
    return re.sub(r"op=function#[0-9a-f]+", "op=function", cause)


def _pattern(text: str) -> str:
    return re.sub("<[0-9 ]+>", r"ranks? ([0-9, ]+)", re.escape(text).replace(r"\ ", " "))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    ("script", "position", "line", "then"),
    [
        (ODD_BROADCAST, "-1.4", "close() at job.py:4", ""),
        (IN_A_VERSION, "0.4", "checkpoint() at job.py:11", "    comm.checkpoint({'a': 1})\n"),
        (ODD_BROADCAST, "-1.4", "barrier() at job.py:10", "    comm.barrier()\n"),
    ],
    ids=["close", "checkpoint", "barrier"],
)
def test_a_broadcasts_root_that_is_ahead_is_named_with_the_broadcast(
    ranks: int, script: str, position: str, line: str, then: str, tmp_path: Path
) -> None:
    cast = CAST if script is ODD_BROADCAST else CAST.replace(":9", ":10")
    others = " ".join(map(str, range(1, ranks)))
    compare(
        cause_of(script + then, ranks, tmp_path),
        f"ranks disagree about collective {position}: rank 0 called {cast} but <{others}> called"
        f" {line}",
        perhaps=f"; rank 0 is 1 call ahead, in {line}",
    )


SKIPPED = f"-1.9: <0 2> called allgather(float64[2]) at job.py:10 but rank 1 called {SUM}:8"
MORE = f"-1.8: <0 2> called close() at job.py:4 but rank 1 called {SUM}:8"
OTHER_KIND = f"-1.4: rank 0 called {SUM}:12 but rank 1 called allgather(float64[2]) at job.py:10"
OTHER_ROOT = (
    "-1.0: rank 0 called broadcast(float64[4], root=0) at job.py:7 but rank 1 called"
    " broadcast(float64[4], root=1) at job.py:7; they differ in root: 0 and 1"
)
OTHER_ROOTS_OF_HOSTS = (
    "0.9: ranks 0, 1 called broadcast(int64[4], root=1) at job.py:13 but ranks 2, 3 called"
    " broadcast(int64[4], root=3) at job.py:13; they differ in root: 1 and 3"
)
OTHER_TAG = (
    "-1.12: rank 0 called allreduce(op=sum, float64[4], tag='weight') at job.py:8 but rank 1 called"
    " allreduce(op=sum, float64[4], tag='bias') at job.py:8; they differ in tag: 'weight' and"
    " 'bias'"
)
OTHER_FUNCTION = (
    "-1.0: rank 0 called allreduce(op=function, float64[3]) at job.py:10 (op average) but rank 1"
    " called allreduce(op=function, float64[3]) at job.py:10 (op sum of both); they differ in op:"
    " function average and function sum of both"
)
OTHER_STATE = (
    "0.0: ranks 0, 2, 3 and rank 1 passed different states to checkpoint() at job.py:10;"
    " state['momentum']['w1'] (float64[4]) has other values on rank 1 than on ranks 0, 2, 3;"
    " what each rank has of its own is passed apart: checkpoint(state, local)"
)
FORGOTTEN = (
    "5.1: rank 0 and rank 1 passed different states to checkpoint() at job.py:15; state['w']"
    f" (float64[4]) has other values on rank 1 than on rank 0; {RESTARTED}"
)
REPLAYED = (
    "5.0: ranks 0, 2 and the earlier process of rank 1 called allreduce(op=max, float64[2]) at"
    " job.py:10 but rank 1 called allreduce(op=sum, float64[2]) at job.py:10; they differ in op:"
    " max and sum; rank 0 is 1 call ahead, in barrier() at job.py:16; rank 2 is 1 call ahead, in"
    f" barrier() at job.py:16; {RESTARTED}"
)


@pytest.mark.parametrize(
    ("script", "ranks", "cause"),
    [
        (SKIPS, 3, SKIPPED),
        (ONE_MORE, 3, MORE),
        (NONBLOCKING, 2, OTHER_KIND),
        (ROOT, 2, OTHER_ROOT),
        (TAGS, 2, OTHER_TAG),
        (FUNCTIONS, 2, OTHER_FUNCTION),
        (ROOTS_OF_HOSTS, 4, OTHER_ROOTS_OF_HOSTS),
        (STATE, 4, OTHER_STATE),
        (FORGETS, 2, FORGOTTEN),
        (REPLAYS, 3, REPLAYED),
    ],
    ids=[
        "skips",
        "one-more",
        "nonblocking",
        "root",
        "tags",
        "functions",
        "roots-of-hosts",
        "state",
        "forgets",
        "replays",
    ],
)
def test_the_first_calls_that_differ_are_named(
    script: str, ranks: int, cause: str, tmp_path: Path
) -> None:
    # each rank is the root of its own broadcast, so either may be done with it
    perhaps = "; <0 1> is 1 call ahead, in close() at job.py:4" if script is ROOT else ""
    found = without_hashes(cause_of(script, ranks, tmp_path))
    compare(found, f"ranks disagree about collective {cause}", perhaps)
