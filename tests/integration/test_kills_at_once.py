"""All workers but one are killed at one moment: the model is that of a run without kills."""

from pathlib import Path

import pytest

from tests.conformance.kills import SMALL, run_all

pytestmark = pytest.mark.process


def moments(folder: Path, count: int, seed: int) -> None:
    """All but one of two to eight workers die at each of `count` moments; results are small."""
    rows = run_all(folder, count, tuple(range(2, 9)), seed, SMALL)
    assert sum(row.moments for row in rows.values()) == count


def test_any_one_member_is_enough_where_results_are_small(tmp_path: Path) -> None:
    moments(tmp_path, 3, seed=5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_any_one_member_is_enough_at_fifty_moments(tmp_path: Path) -> None:
    moments(tmp_path, 50, seed=50)
