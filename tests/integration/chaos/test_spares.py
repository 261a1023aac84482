"""Real jobs with spares: they take lost workers' ranks, and their own deaths cost nothing."""

import json
import sys
from pathlib import Path

import pytest

from tests.integration.chaos.scripts import GOOD
from tests.integration.chaos.test_run import chaos, command, output

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd"),
]


def test_a_spare_takes_the_rank_of_a_killed_worker_and_the_bytes_are_the_same(
    tmp_path: Path,
) -> None:
    plan = [{"at": {"position": "1.5.0.0@enter"}, "kind": "sigkill"}]
    status, report, said = chaos(tmp_path, GOOD.replace("0.02", "0.2"), plan, "--spares", "1")
    assert status == 0, said + json.dumps(report)
    (run,) = report["runs"]
    assert [delivery["spares"] for delivery in run["deliveries"]] == [[]]
    told = (tmp_path / "kept" / "run-1" / "output.txt").read_text()
    assert told.count("spare spare-0 takes the place of rank 1") == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("own_tracker", [False, True])
def test_spares_and_members_die_at_random(tmp_path: Path, own_tracker: bool) -> None:
    """Members and spares are both hit, and no recovery is awaited for a spare."""
    options = ["--spares", "2", "--kill-every", "1s", "--seed", "4"]
    options += ["--tracker-kill-every", "6s"] if own_tracker else []
    script = GOOD.replace("0.02", "0.4").replace("range(version, 12)", "range(version, 40)")
    status, report, said = output(command(tmp_path, script, *options))
    assert status == 0, said + json.dumps(report["reasons"])
    kills = [x for x in report["runs"][0]["deliveries"] if x["kind"] == "sigkill"]
    assert {bool(kill["spares"]) for kill in kills} == {True, False}
    assert all(kill["epoch"] is None for kill in kills if kill["spares"])
