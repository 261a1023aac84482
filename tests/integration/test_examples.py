"""The examples, and the script of docs/porting.md: two workers die, and the model is the same."""

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
from tests.conformance.plans import ROOT, worker_environment
from tests.helpers.forker import die_with_parent

pytestmark = pytest.mark.process

EXAMPLES = ROOT / "examples"
PORTING = ROOT / "docs" / "porting.md"
WORKERS = 3
WALL_S = 180.0  # a job takes about two seconds on two idle cores
POINTS = ("enter", "half_sent", "half_received", "done")
needs_sklearn = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None,
    reason="the digits come with scikit-learn: pip install 'ftcomm[examples]'",
)
# Each with options for a short run, and how many versions and collectives a version it has.
DIGITS = pytest.param("digits", ("--epochs", "4"), 4, 24, marks=needs_sklearn, id="digits")
KMEANS = pytest.param("kmeans", (), 12, 1, marks=[needs_sklearn, pytest.mark.slow], id="kmeans")
SGD = pytest.param("sgd_classifier", ("--epochs", "5"), 5, 1, marks=needs_sklearn, id="sgd")
LBFGS = pytest.param("lbfgs", ("--steps", "15"), 15, 1, marks=pytest.mark.slow, id="lbfgs")
OVERLAP = pytest.param(
    "overlap", ("--steps", "8", "--hidden", "96", "--rows", "64"), 8, 2, id="overlap"
)
HOGWILD = pytest.param(
    "hogwild", ("--threads", "1", "--epochs", "3"), 3, 1, marks=pytest.mark.slow, id="hogwild"
)
SHARES = pytest.param(
    "shares", ("--rates", "1,2,3", "--steps", "8"), 8, 1, marks=pytest.mark.slow, id="shares"
)
# Large enough that its alltoallv logs contributions.
SORT = pytest.param("sample_sort", ("--batches", "5", "--count", "4000"), 5, 4, id="sample_sort")
# Messages between ranks, and few collectives.
WITH_MESSAGES = ("pipeline", "jacobi", "wave")
PIPELINE = pytest.param("pipeline", ("--steps", "6"), 6, 1, id="pipeline")
JACOBI = pytest.param("jacobi", ("--size", "60", "--rounds", "6"), 6, 1, id="jacobi")
WAVE = pytest.param("wave", ("--waves", "6"), 6, 2, marks=pytest.mark.slow, id="wave")
MESSAGE_FAULTS = ["1.1.0.0@sent", "2.2.0.0@receiving", "1.4.0.1@received"]


def run(
    script: Path, *options: str, workers: int = WORKERS, faults: str = "", cwd: Path = ROOT
) -> str:
    """Run a script to its good end; returns what it and the launcher said."""
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-v", "-n", str(workers), "--"]
    done = subprocess.run(
        [*command, sys.executable, str(script), *options],
        env={**worker_environment(), "FTCOMM_FAULTS": faults},
        cwd=cwd,
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


def victims_in(said: str) -> list[str]:
    """The workers that SIGKILL ended, sorted."""
    return sorted(re.findall(r"worker (\d) was killed by SIGKILL: starting it again", said))


def random_faults(versions: int, calls: int, dice: random.Random) -> Iterator[str]:
    """Addresses of two deaths, of two workers, in one version each."""
    ranks = dice.sample(range(WORKERS), 2)
    for rank, version in zip(ranks, sorted(dice.sample(range(versions), 2)), strict=True):
        yield f"{rank}.{version}.{dice.randrange(calls)}.0@{dice.choice(POINTS)}"


@pytest.mark.parametrize(
    ("name", "options", "versions", "calls"),
    [DIGITS, KMEANS, SGD, LBFGS, OVERLAP, HOGWILD, SHARES, SORT, PIPELINE, JACOBI, WAVE],
)
def test_two_deaths_at_random_steps_change_nothing(
    name: str, options: tuple[str, ...], versions: int, calls: int
) -> None:
    """In the examples with messages also two deaths around messages, and one more."""
    script = EXAMPLES / f"{name}.py"
    undisturbed = model_in(run(script, *options))
    faults = list(random_faults(versions, calls, random.Random(f"examples {name}")))
    around = MESSAGE_FAULTS if name in WITH_MESSAGES else []
    for deaths in filter(None, (faults, around)):
        killed = run(script, *options, faults=",".join(deaths))
        assert victims_in(killed) == sorted(fault[0] for fault in deaths), deaths
        assert model_in(killed) == undisturbed, deaths


def test_overlap_gives_the_same_model_as_waiting() -> None:
    script, options = EXAMPLES / "overlap.py", ("--steps", "4", "--hidden", "64", "--rows", "32")
    assert model_in(run(script, *options)) == model_in(run(script, *options, "--wait"))


@needs_sklearn
def test_training_goes_on_from_a_saved_state_in_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All workers may die at once; what is on a disk is what they left."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
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


@needs_sklearn
def test_the_ported_script_writes_the_same_weights_whoever_dies(tmp_path: Path) -> None:
    _, after, *_ = re.findall(
        r"```python\n(.*?)```", PORTING.read_text(encoding="utf-8"), re.DOTALL
    )
    script = tmp_path / "train.py"
    script.write_text(after)
    weights = tmp_path / "weights.npy"
    run(script, workers=2, cwd=tmp_path)
    undisturbed = weights.read_bytes()
    weights.unlink()
    killed = run(script, workers=2, cwd=tmp_path, faults="1.2.17.0@half_sent")
    assert victims_in(killed) == ["1"]
    assert weights.read_bytes() == undisturbed
