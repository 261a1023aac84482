"""Whatever dies, the example's model is the one of its world size."""

from pathlib import Path

import pytest

from tests.conformance.kills import run_all

pytestmark = pytest.mark.process


def test_the_model_is_the_same_whoever_is_killed(tmp_path: Path) -> None:
    rows = run_all(tmp_path, kills=4, sizes=(2, 4), seed=2)
    assert sum(len(row.kills) for row in rows.values()) == 4
    assert rows[2].model != rows[4].model  # of sums in another order: or nothing was compared


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_model_survives_a_hundred_kills(tmp_path: Path) -> None:
    rows = run_all(tmp_path, kills=100, sizes=(2, 3, 4, 5), seed=100)
    assert sum(len(row.kills) for row in rows.values()) == 100
