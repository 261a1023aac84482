"""Jobs of training scripts that kill themselves, and the model that each rank tells."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.conformance.forker import die_with_parent
from tests.conformance.plans import worker_environment

WORKERS = 3
WALL_S = 110.0  # three workers import torch on two cores, some of them twice


def run(
    script: Path, folder: Path, *options: str, kills: Iterable[str] = (), verify: bool = True
) -> str:
    """Run a script to its good end in `folder`; returns what it and the launcher said.

    Args:
        script: takes ``--kill rank.step.moment``, once for each.
        folder: new; marks of kills are in it.
        options: of the script.
        kills: for the script.
        verify: compare the inputs of replayed collectives with those of the first run.
    """
    folder.mkdir(parents=True)
    checked = ["--verify", "inputs"] if verify else []
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(WORKERS), *checked, "--"]
    done = subprocess.run(
        [*command, sys.executable, str(script), *options, *(f"--kill={kill}" for kill in kills)],
        env=worker_environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WALL_S,
        check=False,
        preexec_fn=die_with_parent,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def model_in(said: str) -> str:
    """The one model that all ranks told."""
    told = re.findall(r"^\[(\d)\] model ([0-9a-f]{64})$", said, re.MULTILINE)
    assert sorted(rank for rank, _ in told) == [str(rank) for rank in range(WORKERS)], said
    (model,) = {model for _, model in told}
    return str(model)


def victims_in(said: str) -> list[str]:
    """The workers that SIGKILL ended, sorted."""
    return sorted(re.findall(r"worker (\d) was killed by SIGKILL: starting it again", said))
