"""Real jobs that lose everything: they go on from their store, and return the same."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ftcomm_chaos.history import read_history
from tests.integration.chaos.scripts import GOOD
from tests.integration.chaos.test_run import chaos, command, output

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd"),
]
SLOW = GOOD.replace("0.02", "0.3")


def attempts(run: dict[str, Any]) -> list[tuple[int, str]]:
    return [(row["attempt"], row["origin"]) for row in run["attempts"]]


def test_a_job_that_loses_everything_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    plan = [{"at": {"position": "1.5.1.0@enter"}, "kind": "lose_all"}]
    status, report, said = chaos(tmp_path, GOOD.replace("0.02", "0.1"), plan)
    assert status == 0, said + json.dumps(report)
    (run,) = report["runs"]
    assert [delivery["what"] for delivery in run["deliveries"]] == [
        "everything lost: 2 processes killed at once"
    ]
    harness = read_history(tmp_path / "kept" / "run-1" / "history").harness
    assert harness is not None
    (loss,) = harness.losses
    assert loss.event.version is not None
    assert attempts(run) == [(2, f"checkpoint {loss.event.version}")]
    assert run["attempts"][0]["lost_versions"] <= 1


def test_a_trace_that_takes_all_machines_ends_with_the_same_and_a_goodput(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("0,add,a\n0,add,b\n1500,remove,a\n1501,remove,b\n1600,add,c\n1700,add,d\n")
    options = ["--trace", str(trace), "--trace-speed", "1"]
    status, report, said = output(command(tmp_path, SLOW, *options))
    assert status == 0, said + json.dumps(report)
    assert [attempt for attempt, _ in attempts(report["runs"][0])] == [2]
    assert 0 < report["goodput"] < 1


def test_a_job_whose_tracker_loses_its_disk_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    """Of two moments, the second one is in an epoch that the first has not seen."""
    plan = [
        {"at": {"position": "1.1@plan_sent"}, "kind": "tracker_disk_lost", "for": 0.1},
        {"at": {"position": "1.9.0.0@enter"}, "kind": "sigkill"},
    ]
    status, report, said = chaos(tmp_path, GOOD.replace("0.02", "0.2"), plan)
    assert status == 0, said + json.dumps(report)
    (run,) = report["runs"]
    assert [delivery["what"].split(" (")[0] for delivery in run["deliveries"]] == [
        "tracker_disk_lost at 1.1@plan_sent#1",
        "SIGKILL for worker 1",
    ]
    told = (tmp_path / "kept" / "run-1" / "output.txt").read_text()
    assert told.count(" goes on in generation ") == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_disks_are_lost_between_kills(tmp_path: Path) -> None:
    options = ["--lose-tracker-disk", "4s", "--kill-every", "2s", "--seed", "5"]
    script = SLOW.replace("range(version, 12)", "range(version, 40)")
    status, report, said = output(command(tmp_path, script, *options))
    assert status == 0, said + json.dumps(report["reasons"])
    kinds = {delivery["kind"] for delivery in report["runs"][0]["deliveries"]}
    assert kinds == {"tracker_disk_lost", "sigkill"}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_losses_of_everything_come_between_other_faults(tmp_path: Path) -> None:
    """With an own tracker, which is lost with its directory."""
    options = [
        "--lose-all",
        "6s",
        "--kill-every",
        "3s",
        "--tracker-kill-every",
        "5s",
        "--seed",
        "3",
    ]
    script = SLOW.replace("range(version, 12)", "range(version, 40)")
    status, report, said = output(command(tmp_path, script, *options))
    assert status == 0, said + json.dumps(report["reasons"])
    kinds = {delivery["kind"] for delivery in report["runs"][0]["deliveries"]}
    assert kinds == {"lose_all", "sigkill", "tracker_kill"}
    assert attempts(report["runs"][0])
