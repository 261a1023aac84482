"""Whatever dies, the example's model is the one of its world size."""

from pathlib import Path

import pytest

from tests.conformance.kills import Told, run_all

pytestmark = pytest.mark.process


def test_the_model_is_the_same_whoever_is_killed(tmp_path: Path) -> None:
    rows = run_all(tmp_path, kills=6, sizes=(2, 4), seed=2)  # one more than one job may have
    assert sum(len(row.kills) for row in rows.values()) == 6
    assert rows[2].model != rows[4].model  # of sums in another order: or nothing was compared


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_model_survives_a_hundred_kills(tmp_path: Path) -> None:
    rows = run_all(tmp_path, kills=100, sizes=(2, 3, 4, 5), seed=100)
    assert sum(len(row.kills) for row in rows.values()) == 100


def test_a_line_that_was_on_its_way_when_the_kill_came_does_not_end_the_wait() -> None:
    told = Told()
    told.kill()
    told.hear("ftcomm: epoch 1 runs: frontier -1.0 (rank 0 stands at -1.0)")
    told.hear("ftcomm: worker 0 was killed by SIGKILL: starting it again")
    assert not told.calm
    told.hear("ftcomm: recovered, epoch 2: lost worker 0; 310.2 ms")
    assert told.calm


def test_who_was_killed_before_the_group_formed_is_recovered_from_once_it_has() -> None:
    told = Told()
    told.kill()
    told.hear("ftcomm: worker 0 was killed by SIGKILL: starting it again")
    told.hear("ftcomm: epoch 2 runs: frontier -1.0 (rank 0 stands at -1.0)")
    assert told.calm
