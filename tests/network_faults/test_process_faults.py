"""Kinds of faults that need machinery, in plans that ``ftcomm-chaos run`` carries out."""

import json
from pathlib import Path
from typing import Any

import pytest

from ftcomm.errors import ConfigError
from ftcomm_chaos.faults import network_namespaces, small_disk, socket_reset
from ftcomm_chaos.runner.fault_plan import check_plan
from tests.integration.chaos.scripts import GOOD
from tests.integration.chaos.test_run import chaos


def passes(tmp_path: Path, plan: list[dict[str, Any]], *options: str) -> None:
    """All faults of the plan are delivered, and the job returns the same."""
    status, report, said = chaos(tmp_path, GOOD.replace("0.02", "0.1"), plan, *options)
    assert status == 0, said + json.dumps(report)
    (run,) = report["runs"]
    assert sorted(d["kind"] for d in run["deliveries"]) == sorted(entry["kind"] for entry in plan)


def at(position: str, kind: str, **parameters: object) -> dict[str, Any]:
    return {"at": {"position": position}, "kind": kind, "parameters": parameters}


@pytest.mark.process
def test_a_job_goes_through_bad_impairments_resets_and_a_held_lock(tmp_path: Path) -> None:
    if lacking := socket_reset.missing():
        pytest.skip(lacking)
    bad = {"latency_ms": 2, "jitter_ms": 3, "slice_bytes": 100}
    passes(
        tmp_path,
        [
            at("1.2.0.0@done", "impaired", **bad),
            at("0.4.0.0@done", "link_reset"),
            at("1.6.0.0@done", "gil_held", seconds=0.5),
            {"at": {"seconds": 0.1}, "kind": "impaired", "target": "tracker", "parameters": bad},
        ],
    )


@pytest.mark.process
def test_a_job_goes_on_when_the_disk_of_its_tracker_has_room_again(tmp_path: Path) -> None:
    """The tracker has to journal the epoch that the death needs, and ends."""
    if lacking := small_disk.missing():
        pytest.skip(lacking)
    plan = [
        {"at": {"seconds": 0.1}, "kind": "disk_full", "target": "tracker", "for": 3},
        {"at": {"seconds": 0.4}, "kind": "sigkill", "target": 1},
    ]
    script, patience = GOOD.replace("0.02", "0.3"), ("-o", "reattach-within=2")
    status, report, said = chaos(tmp_path, script, plan, *patience)
    assert status == 0, said + json.dumps(report)
    (run,) = report["runs"]
    trackers = [process["how"] for process in run["processes"] if process["who"] == "tracker"]
    assert trackers[0] == f"exited with status {ConfigError.exit_code}"
    assert len(trackers) == 2
    (incident,) = run["incidents"]
    assert incident["completed"]


@pytest.mark.slow
@pytest.mark.process
def test_a_job_goes_through_partitions_and_bad_links(tmp_path: Path) -> None:
    if lacking := network_namespaces.missing(loss=True, slow=True):
        pytest.skip(lacking)
    passes(
        tmp_path,
        [
            {**at("1.2.0.0@done", "slow_link", kbits_per_s=500), "for": 0.3},
            {**at("0.4.0.0@done", "lossy_link"), "for": 0.3},
            {**at("1.6.0.0@done", "partition", **{"from": "tracker"}), "for": 2.0},
            {**at("0.8.0.0@done", "partition"), "for": 2.0},
        ],
        *("-o", "detect-within=1"),
    )


def test_proxies_and_hosts_do_not_go_together() -> None:
    plan = [at("1.2.0.0@done", "impaired", paused=True), at("1.3.0.0@done", "partition")]
    with pytest.raises(ConfigError, match="fault 2 of the plan: kind is partition, which cannot"):
        check_plan(plan, 2)


def test_impairments_without_a_condition_would_test_nothing() -> None:
    with pytest.raises(ConfigError, match="parameters name no condition - set one of latency_ms"):
        check_plan([at("1.2.0.0@done", "impaired", direction="in")], 2)
