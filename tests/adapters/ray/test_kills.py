"""Ranks in Ray: whoever is lost, the results are those of a run without losses, to the bit."""

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("ray")

import ftcomm.ray
from tests.adapters.observed_ranks import train

pytestmark = [pytest.mark.process, pytest.mark.heavy, pytest.mark.timeout(600)]

RANKS, STEPS = 3, 6
Results = list[tuple[int, bytes]]
OF_A_RANK = {"rank": "self", "actor": "parent"}


@pytest.fixture(scope="module")
def undisturbed(cluster: None) -> Callable[[], Results]:
    @cache
    def results() -> Results:
        found: Results = ftcomm.ray.run(train, RANKS, (STEPS,))
        assert [rank for rank, _ in found] == list(range(RANKS))
        assert len({model for _, model in found}) == 1
        return found

    return results


def check(undisturbed: Callable[[], Results], folder: Path, *kills: str) -> None:
    found = ftcomm.ray.run(train, RANKS, (STEPS, kills, str(folder)))
    assert found == undisturbed()
    assert len(list(folder.iterdir())) == len(kills), "each has been killed"


@pytest.mark.parametrize("victim", OF_A_RANK)
def test_a_kill_changes_nothing(
    victim: str, undisturbed: Callable[[], Results], tmp_path: Path
) -> None:
    check(undisturbed, tmp_path, f"1.3.{OF_A_RANK[victim]}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "ranks", "step"), [*itertools.product(OF_A_RANK, ("0", "1", "02"), (0, 3, 5))]
)
def test_nothing_changes_whoever_is_killed_and_when(
    victim: str, ranks: str, step: int, undisturbed: Callable[[], Results], tmp_path: Path
) -> None:
    check(undisturbed, tmp_path, *(f"{rank}.{step}.{OF_A_RANK[victim]}" for rank in ranks))
