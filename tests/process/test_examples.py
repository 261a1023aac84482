"""The examples under `ftcomm-tracker run`: two workers die, and the model is the same."""

import importlib
import importlib.util
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ftcomm
from tests.conformance.forker import die_with_parent
from tests.conformance.plans import ROOT, worker_environment

pytestmark = pytest.mark.process

WORKERS = 3
WALL_S = 60.0  # a job takes about two seconds on two idle cores
POINTS = ("enter", "half_sent", "half_received", "done")
needs_sklearn = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None,
    reason="the digits come with scikit-learn: pip install 'ftcomm[examples]'",
)
# Each with options for a short run, and how many versions and collectives a version it has.
DIGITS = pytest.param("digits", ("--epochs", "4"), 4, 24, marks=needs_sklearn, id="digits")
KMEANS = pytest.param("kmeans", (), 12, 1, marks=needs_sklearn, id="kmeans")
LBFGS = pytest.param("lbfgs", ("--steps", "15"), 15, 1, id="lbfgs")


def run(name: str, *options: str, **extra: str) -> str:
    """Run an example to its good end; returns what it and the launcher said."""
    command = [sys.executable, "-m", "ftcomm_tracker.cli", "run", "-n", str(WORKERS), "--"]
    done = subprocess.run(
        [*command, sys.executable, str(ROOT / "examples" / f"{name}.py"), *options],
        env={**worker_environment(), **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WALL_S,
        check=False,
        preexec_fn=die_with_parent,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def model_in(said: str) -> str:
    """The one model that rank 0 told."""
    (model,) = re.findall(r"^\[0\] model ([0-9a-f]{64})$", said, re.MULTILINE)
    return str(model)


def random_faults(versions: int, calls: int, dice: random.Random) -> Iterator[str]:
    """Addresses of two deaths, of two workers, in one version each."""
    ranks = dice.sample(range(WORKERS), 2)
    for rank, version in zip(ranks, sorted(dice.sample(range(versions), 2)), strict=True):
        yield f"{rank}.{version}.{dice.randrange(calls)}.0@{dice.choice(POINTS)}"


@pytest.mark.parametrize(("name", "options", "versions", "calls"), [DIGITS, KMEANS, LBFGS])
def test_two_deaths_at_random_steps_change_nothing(
    name: str, options: tuple[str, ...], versions: int, calls: int
) -> None:
    calm = run(name, *options)
    faults = list(random_faults(versions, calls, random.Random(f"examples {name}")))
    killed = run(name, *options, FTCOMM_FAULTS=",".join(faults))
    victims = sorted(re.findall(r"worker (\d) was killed by SIGKILL: starting it again", killed))
    assert victims == sorted(fault[0] for fault in faults), faults
    assert model_in(killed) == model_in(calm), faults


@needs_sklearn
def test_training_goes_on_from_a_saved_state_in_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All workers may die at once; what is on a disk is what they left."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    digits = importlib.import_module("digits")

    def model(*options: str) -> bytes:
        with ftcomm.init(tracker="none") as comm:
            return bytes(digits.train(comm, digits.parse(list(options))).tobytes())

    saved = str(tmp_path / "state.npz")
    whole = model("--epochs", "3")
    model("--epochs", "2", "--save", saved)
    capsys.readouterr()
    assert model("--epochs", "3", "--resume", saved) == whole
    assert re.findall(r"^epoch (\d):", capsys.readouterr().out) == ["3"]
