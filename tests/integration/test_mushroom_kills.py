"""Example under kills: its model is that of its world size, whichever process dies."""

import os
import random
from pathlib import Path

import pytest

from tests.conformance import kills
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
    assert not told.is_quiescent
    told.hear("ftcomm: recovered, epoch 2: lost worker 0; 310.2 ms")
    assert told.is_quiescent


def test_who_was_killed_before_the_group_formed_is_recovered_from_once_it_has() -> None:
    told = Told()
    told.kill()
    told.hear("ftcomm: worker 0 was killed by SIGKILL: starting it again")
    told.hear("ftcomm: epoch 2 runs: frontier -1.0 (rank 0 stands at -1.0)")
    assert told.is_quiescent


def test_who_has_just_ended_was_not_killed_by_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    def kill(pid: int, _: int) -> None:
        if pid == 11:
            raise ProcessLookupError
        sent.append(pid)

    monkeypatch.setattr(os, "kill", kill)
    job = kills.Job.__new__(kills.Job)  # of no processes
    job.folder, job.told, job.killed, job._world_size = tmp_path, Told(), [], 3
    (tmp_path / "1").write_text("11")
    job.kill(random.Random(1), at_once=2)
    assert (sent, job.killed, job.told.is_quiescent) == ([], [], True)
    (tmp_path / "1").write_text("11 21")
    (tmp_path / "2").write_text("22")
    (tmp_path / "0").write_text("11")
    job.kill(random.Random(1), at_once=3)
    assert job.told.killed == len(sent) == len(job.killed[0])
    assert sorted(sent) == sorted(job.killed[0].values())
    assert not job.told.is_quiescent
