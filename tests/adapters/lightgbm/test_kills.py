"""Kills in a training of LightGBM: the model's text is that of a run without kills."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("lightgbm")

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
WAYS = {
    "plain": (),
    "sampled": (
        '--params={"subsample": 0.6, "subsample_freq": 2, "colsample": 0.6, "extra_trees": true}',
    ),
    "multiclass": ('--params={"objective": "multiclass", "num_class": 3}',),
    "quantized": ('--params={"use_quantized_grad": true, "stochastic_rounding": false}',),
}
VICTIMS = {"rank 0": "0", "another": "1", "two at once": "12", "two, rank 0 too": "02"}
MOMENTS = [
    *(f"-1.gather{call}" for call in range(3)),  # the last one has the bins
    *(f"{index}.before" for index in (0, 7, 19)),
    *(f"{index}.scatter3" for index in (0, 7, 19)),
    *("7.gather4", "7.after", "19.after"),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return runs_without_kills(tmp_path_factory)


def check(undisturbed: Runs, folder: Path, way: str, *kills: str) -> None:
    said = run(SCRIPT, folder / "job", *WAYS[way], kills=kills)
    assert victims_in(said) == sorted(kill[0] for kill in kills), said[-3000:]
    assert model_in(said) == model_in(undisturbed(SCRIPT, *WAYS[way]))


@pytest.mark.parametrize(
    ("way", "kill"),
    [("plain", "1.-1.gather2"), ("plain", "0.0.before"), ("sampled", "1.7.scatter3")],
)
def test_a_kill_changes_nothing(way: str, kill: str, undisturbed: Runs, tmp_path: Path) -> None:
    check(undisturbed, tmp_path, way, kill)


def test_a_kill_of_all_at_once_changes_nothing(undisturbed: Runs, tmp_path: Path) -> None:
    """The next attempt begins from a durable checkpoint."""
    said = lose_all(SCRIPT, tmp_path / "job", at="7.scatter3")
    assert re.search(r"attempt 2 begins from checkpoint \d", said), said[-3000:]
    assert model_in(said) == model_in(undisturbed(SCRIPT))


@pytest.mark.slow
@pytest.mark.parametrize(("way", "victims", "moment"), [*itertools.product(WAYS, VICTIMS, MOMENTS)])
def test_nothing_changes_whoever_is_killed_and_when(
    way: str, victims: str, moment: str, undisturbed: Runs, tmp_path: Path
) -> None:
    check(undisturbed, tmp_path, way, *(f"{rank}.{moment}" for rank in VICTIMS[victims]))


@pytest.mark.slow
@pytest.mark.parametrize("time", range(1, 21))
def test_two_deaths_at_once_change_nothing_twenty_times(
    time: int, undisturbed: Runs, tmp_path: Path
) -> None:
    """A death meets the other ranks at another point each time."""
    check(undisturbed, tmp_path, "plain", "0.7.scatter3", "2.7.scatter3")
