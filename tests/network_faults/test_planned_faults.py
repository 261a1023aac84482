"""Resets and partitions in plans that ``ftcomm-chaos run`` carries out."""

import json
from pathlib import Path
from typing import Any

import pytest

from ftcomm_chaos.faults import network_namespaces, socket_reset
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
def test_a_job_goes_through_resets(tmp_path: Path) -> None:
    if lacking := socket_reset.missing():
        pytest.skip(lacking)
    passes(tmp_path, [at("0.4.0.0@done", "link_reset")])


@pytest.mark.slow
@pytest.mark.process
def test_a_job_goes_through_partitions(tmp_path: Path) -> None:
    if lacking := network_namespaces.missing():
        pytest.skip(lacking)
    passes(
        tmp_path,
        [
            {**at("1.6.0.0@done", "partition", **{"from": "tracker"}), "for": 2.0},
            {**at("0.8.0.0@done", "partition"), "for": 2.0},
        ],
        *("--detect-within", "1"),
    )
