"""Jobs of training scripts that kill themselves, and the model that each rank tells."""

import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.conformance.forker import die_with_parent
from tests.conformance.plans import worker_environment

WORKERS = 3
WALL_S = 110.0  # a job takes some five seconds on two idle cores
# Most of a job would be imports of torch, of three workers on two cores.
PREFORK = ("--prefork", "--preload", "torch") if sys.platform == "linux" else ()


def launch(
    script: Path, folder: Path, *options: str, workers: int = WORKERS, faults: str = ""
) -> str:
    """Run a script to its good end in `folder`, which is new; returns all that was said.

    Inputs of replayed collectives are compared with those of the first run.

    Args:
        script: of the user.
        folder: where it runs.
        options: of the script.
        workers: how many.
        faults: addresses of deaths.
    """
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(workers)]
    command += ["--verify", "inputs", *PREFORK, "--", sys.executable, str(script), *options]
    done = subprocess.run(
        command,
        env={**worker_environment(), "FTCOMM_FAULTS": faults},
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


def run(script: Path, folder: Path, *options: str, kills: Iterable[str] = ()) -> str:
    """The same, of a script that takes ``--kill rank.step.moment`` for each of `kills`."""
    return launch(script, folder, *options, *(f"--kill={kill}" for kill in kills))


def runs_without_kills(factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Output of a script with its options, which runs once for all tests of a module."""

    @functools.cache
    def said(script: Path, *options: str) -> str:
        return run(script, factory.mktemp("undisturbed") / "job", *options)

    return said


def model_in(said: str) -> str:
    """The one model that all ranks told."""
    told = re.findall(r"^\[(\d)\] model ([0-9a-f]{64})$", said, re.MULTILINE)
    assert sorted(rank for rank, _ in told) == [str(rank) for rank in range(WORKERS)], said
    (model,) = {model for _, model in told}
    return str(model)


def victims_in(said: str) -> list[str]:
    """The workers that SIGKILL ended, sorted."""
    return sorted(re.findall(r"worker (\d) was killed by SIGKILL: starting it again", said))
