"""Kills in a fit of Keras: weights, optimizer and history are those of a run without kills."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="the package tensorflow is not installed")

from tests.adapters.jobs import (
    lose_all,
    model_in,
    run,
    runs_without_kills,
    victims_in,
)

pytestmark = [pytest.mark.process, pytest.mark.heavy, pytest.mark.timeout(300)]

Runs = Callable[..., str]
SCRIPT = Path(__file__).parent / "scripts" / "train.py"
WAYS = [
    (f"--model={model}", f"--average={average}")
    for model, average in itertools.product(["dnn", "cnn"], ["gradients", "weights"])
]
VICTIMS = {"rank 0": "0", "another": "1", "two at once": "02"}
# An epoch has four steps, and a checkpoint before each second one: step 7 is made again from 6 on.
MOMENTS = [
    *("0.begin", "0.end", "4.save", "6.save", "7.begin", "7.equal", "11.end"),
    *("0.reduce", "4.reduce", "7.reduce", "11.reduce"),  # of gradients alone
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return runs_without_kills(tmp_path_factory)


def check(undisturbed: Runs, folder: Path, way: tuple[str, ...], victims: str, moment: str) -> None:
    said = run(SCRIPT, folder / "job", *way, kills=[f"{rank}.{moment}" for rank in victims])
    assert victims_in(said) == list(victims), said[-3000:]
    assert model_in(said) == model_in(undisturbed(SCRIPT, *way))


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_a_kill_inside_of_an_epoch_changes_nothing(
    way: tuple[str, ...], undisturbed: Runs, tmp_path: Path
) -> None:
    moment = "7.reduce" if "--average=gradients" in way else "7.begin"
    check(undisturbed, tmp_path, way, "1", moment)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_a_kill_of_all_at_once_changes_nothing(
    way: tuple[str, ...], undisturbed: Runs, tmp_path: Path
) -> None:
    """The next attempt begins from a durable checkpoint."""
    said = lose_all(SCRIPT, tmp_path / "job", *way, at="7.begin")
    assert re.search(r"attempt 2 begins from checkpoint \d", said), said[-3000:]
    assert model_in(said) == model_in(undisturbed(SCRIPT, *way))


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victims", VICTIMS.values(), ids=VICTIMS)
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_nothing_changes_whoever_is_killed_and_when(
    way: tuple[str, ...], victims: str, moment: str, undisturbed: Runs, tmp_path: Path
) -> None:
    if moment.endswith("reduce") and "--average=weights" in way:
        pytest.skip("no gradients are averaged")
    check(undisturbed, tmp_path, way, victims, moment)
