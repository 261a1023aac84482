"""Kills in a training of XGBoost: the booster's bytes are those of a run without kills."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("xgboost")

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
    "sampled": ('--params={"subsample": 0.5, "colsample_bynode": 0.6, "num_parallel_tree": 2}',),
    "quantile": ("--quantile",),
    "approx": ('--params={"tree_method": "approx", "colsample_bytree": 0.5}',),
    "dart": ('--params={"booster": "dart", "rate_drop": 0.3, "subsample": 0.5}',),
}
VICTIMS = {"rank 0": "0", "another": "1", "two at once": "12", "two, rank 0 too": "02"}
MOMENTS = [
    "0.joining",
    "0.data",
    *(f"{index}.{part}" for index in (0, 7, 19) for part in ("before", "inside", "after")),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return runs_without_kills(tmp_path_factory)


def check(undisturbed: Runs, folder: Path, way: str, *kills: str) -> None:
    said = run(SCRIPT, folder / "job", *WAYS[way], kills=kills)
    assert victims_in(said) == sorted(kill[0] for kill in kills), said[-3000:]
    assert model_in(said) == model_in(undisturbed(SCRIPT, *WAYS[way]))


@pytest.mark.parametrize("kill", ["0.7.inside", "1.0.joining", "2.19.after"])
def test_a_kill_changes_nothing(kill: str, undisturbed: Runs, tmp_path: Path) -> None:
    check(undisturbed, tmp_path, "sampled", kill)


def test_a_kill_of_all_at_once_changes_nothing(undisturbed: Runs, tmp_path: Path) -> None:
    """The next attempt begins from a durable checkpoint."""
    said = lose_all(SCRIPT, tmp_path / "job", *WAYS["sampled"], at="7.before")
    assert re.search(r"attempt 2 begins from checkpoint \d", said), said[-3000:]
    assert model_in(said) == model_in(undisturbed(SCRIPT, *WAYS["sampled"]))


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
    check(undisturbed, tmp_path, "sampled", "0.7.inside", "2.7.inside")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_dies_while_a_group_forms_again_changes_nothing(
    way: str, undisturbed: Runs, tmp_path: Path
) -> None:
    """One of the ranks that were not lost: its number of rounds is that of its process."""
    check(undisturbed, tmp_path, way, "1.7.inside", "0.7.joining")
    check(undisturbed, tmp_path / "data", way, "0.7.inside", "2.7.data")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_loss_of_all_changes_nothing(way: str, undisturbed: Runs, tmp_path: Path) -> None:
    said = lose_all(SCRIPT, tmp_path / "job", *WAYS[way], at="19.after")
    assert model_in(said) == model_in(undisturbed(SCRIPT, *WAYS[way]))
