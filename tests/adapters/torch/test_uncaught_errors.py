"""Errors that end a script on the backend: the traceback is printed, and the status is the error's.

``torch.distributed.init_process_group`` wraps the hook that prints uncaught errors.
"""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")

from ftcomm.torch.requirement import has_backend  # noqa: E402 - skipped before, without torch
from tests.conformance.plans import worker_environment  # noqa: E402 - likewise

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not has_backend(torch), reason="torch is too old for the backend"),
]
WALL_S = 100
SCRIPT = """
import torch, torch.distributed as dist, ftcomm.torch as ft
with ft.init() as comm:
    comm.load_checkpoint(default=0)
    ft.init_process_group()
    dist.all_reduce(torch.ones(2))
    {fails}
"""


def ended(folder: Path, fails: str, *launcher: str) -> tuple[int, str]:
    script = folder / "train.py"
    script.write_text(SCRIPT.format(fails=fails))
    done = subprocess.run(
        [sys.executable, *launcher, str(script)],
        env=worker_environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WALL_S,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_script_alone_says_why_it_ends(tmp_path: Path) -> None:
    ddp = "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))"
    found, said = ended(tmp_path, ddp)
    text = "use ftcomm.torch.DDP, or pass find_unused_parameters=True"
    assert (found, "Traceback" in said, text in said) == (64, True, True), said


@pytest.mark.parametrize(
    ("fails", "status", "text"),
    [
        ("if comm.rank == 1: raise KeyError('nokey')\n    comm.barrier()", 83, "KeyError: 'nokey'"),
        ("dist.all_reduce(torch.ones(2 + comm.rank))", 72, "ranks disagree about collective 0.1"),
    ],
    ids=["script", "mismatch"],
)
def test_a_job_says_why_it_ends(fails: str, status: int, text: str, tmp_path: Path) -> None:
    launcher = ("-m", "ftcomm_tracker", "run", "-n", "2", sys.executable)
    found, said = ended(tmp_path, fails, *launcher)
    shown = [line for line in said.splitlines() if f"]: {text}" in line or f"Error: {text}" in line]
    assert (found, bool(shown)) == (status, True), said
    assert said.count("starting it again\n") <= 1
