"""The benchmarks run, measure what they say, and name a peer that cannot take part."""

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PATHS = os.pathsep.join(map(str, (BENCHMARKS, ROOT, ROOT / "tracker", ROOT / "chaos")))


def run(*command: str) -> list[dict[str, Any]]:
    """The JSON lines of a benchmark."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


FAILING_PEER = """
import json, pathlib, sys, tempfile
import _groups

peer = _groups.Peer("failing", lambda *_: [[sys.executable, "-c", "raise OSError('no peer')"]])
with tempfile.TemporaryDirectory() as folder:
    try:
        _groups.Group(peer, 2, pathlib.Path(folder, "group"))
    except _groups.PeerFailed as failed:
        print(json.dumps({"reason": str(failed)}))
"""


def test_a_peer_that_does_not_start_says_why() -> None:
    assert run("-c", FAILING_PEER) == [{"reason": "OSError: no peer"}]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["allreduce", "reduce_scatter", "alltoall", "send_recv"])
def test_calls_are_measured_beside_what_is_installed(kind: str) -> None:
    machine, shm, tcp, *absent = run(
        str(BENCHMARKS / "compare.py"),
        *("--quick", "--json", "-n", "2", "--kinds", kind, "--sizes", "64"),
    )
    assert (machine["quick"], {"date", "command", "core"} <= {*machine["machine"]}) == (True, True)
    assert ([line["transport"] for line in (shm, tcp)], shm["kind"]) == (["shm", "tcp"], kind)
    missing = {line["peer"].removesuffix(" shm").removesuffix(" tcp") for line in absent}
    variants = {"ftcomm", "ftcomm copy=False"} if kind == "allreduce" else {"ftcomm"}
    others = {"Open MPI", "gloo", "XGBoost"} if kind == "allreduce" else {"Open MPI", "gloo"}
    for line in (shm, tcp):
        assert {*line["peers"]} | (missing & others) == variants | others
        assert line["peers"]["ftcomm"]["us"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["allreduce", "send_recv"])
def test_a_commit_is_compared_with_this_tree(kind: str) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository, to have a commit to compare with")
    _, *lines = run(
        str(BENCHMARKS / "compare.py"),
        *("--base", "HEAD", "--quick", "--kinds", kind, "--json", "-n", "2", "--sizes", "64"),
    )
    for line in lines:
        base = line["peers"]["base"]
        assert base["low"] <= base["ratio"] <= base["high"]


def test_a_base_that_is_no_commit_is_named() -> None:
    command = [sys.executable, str(BENCHMARKS / "compare.py"), "--base", "no-such-commit"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "--base no-such-commit: this repository has no such commit\n",
    )


@pytest.mark.slow
def test_several_connections_are_measured_where_each_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    lacking = pytest.importorskip("_capped_flows").missing()
    if lacking:
        pytest.skip(lacking)
    command = ("--json", "--streams", "1,4", "--mbit", "20", "--nbytes", "2000000", "--rounds", "3")
    _, one, four = run(str(BENCHMARKS / "streams.py"), *command)
    assert (one["streams"], one["gain"], four["streams"]) == (1, 1.0, 4)
    assert four["gain"] > 1.5  # 4 where nothing but the network takes time


@pytest.mark.slow
def test_a_large_message_is_measured_between_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what is installed; what is not, or does not start, is named."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    lacking = pytest.importorskip("_capped_flows").missing()
    if lacking:
        pytest.skip(lacking)
    command = ("--quick", "--json", "--streams", "1,4", "--mbit", "40", "--bytes", "2000000")
    _, free, capped, *absent = run(str(BENCHMARKS / "between_hosts.py"), *command)
    assert (free["mbit_per_s"], capped["mbit_per_s"], capped["nbytes"]) == (None, 40, 2000000)
    others = {*capped["peers"], *(line["peer"] for line in absent)}
    ours = {"ftcomm --streams 1", "ftcomm --streams 4"}
    assert others == {"bare TCP", "gloo", "Open MPI TCP", "Ray"} | ours
    assert {"bare TCP"} | ours <= {*capped["peers"]}
    least_us = 2000000 * 8 / 40  # of one connection; its first packets are sent at once
    assert capped["peers"]["bare TCP"]["us"] > 0.9 * least_us
    assert capped["peers"]["ftcomm --streams 4"]["ratio"] < 0.6  # 0.25 if only the network counts


@pytest.mark.slow
def test_every_kind_of_fault_is_measured() -> None:
    _, *lines = run(
        str(BENCHMARKS / "recovery.py"),
        "--json",
        "-n",
        "3",
        "--faults",
        "2",
        "--detect-within",
        "1",
    )
    totals = {line["fault"]: line["n"] for line in lines if line["phase"] == "total"}
    assert totals == {
        "start of an interpreter": 9,
        "SIGKILL and restart": 2,
        "SIGKILL with a spare": 2,
        "SIGKILL with a spare, 100 MB": 2,
        "link reset": 2,
        "SIGSTOP past the limit": 2,
        "tracker restart": 2,
    }


@pytest.mark.slow
def test_hidden_communication_is_measured_for_both_kinds_of_work() -> None:
    """Check that hidden communication is reported; its amount depends on the machine."""
    sizes = ("--nbytes", "40000", "--layers", "3")
    _, *lines = run(str(BENCHMARKS / "hidden.py"), "--quick", "--json", *sizes)
    assert [(line["compute"], line["rounds"]) for line in lines] == [("matmul", 4), ("away", 4)]
    assert all(isinstance(line["hidden"], float) for line in lines)


@pytest.mark.slow
def test_the_cost_of_durable_checkpoints_is_measured_beside_a_job_without() -> None:
    _, *lines = run(str(BENCHMARKS / "durable_cost.py"), "--quick", "--json")
    assert [(line["store"], line["turns"]) for line in lines] == [
        (store, 4) for store in ("good", "slow", "errors", "full")
    ]
    versions = {line["store"]: line["versions"] for line in lines}
    assert (versions["good"] > 0, versions["errors"], versions["full"]) == (True, 0, 0)


@pytest.mark.slow
def test_a_tracker_is_measured_with_simulated_workers() -> None:
    _, line = run(
        str(BENCHMARKS / "tracker_scale.py"),
        "--quick",
        "--json",
        "--workers",
        "70",
        "--losses",
        "1",
    )
    assert (line["workers"], line["dials_per_worker"] >= 1) == (70, True)
    assert line["form_bytes_per_worker"] > 10 * line["epoch_bytes_per_worker"]


@pytest.mark.slow
def test_training_is_measured_and_compared() -> None:
    _, *lines = run(str(BENCHMARKS / "training.py"), "--quick", "--json")
    assert [line["ranks"] for line in lines] == [1, 2, 4]
    assert all(0 < line["communication"] < 1 for line in lines)


@pytest.mark.parametrize("average", [pytest.param("gradients", marks=pytest.mark.slow), "weights"])
def test_the_papers_training_gives_the_same_model_after_kills(
    average: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two ranks dies in the middle of an average, each in an epoch of its own."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("PYTHONPATH", PATHS)
    papers = importlib.import_module("papers")
    arguments = argparse.Namespace(epochs=2, kills=2, ranks=[2], processors=2)
    costs = papers.Costs(1e-4, 1e-9, 0.0)
    *lines, kill = papers.train("DNN, mushrooms", average, arguments, costs)
    assert [line["ranks"] for line in lines] == [1, 2]
    assert (kill["killed"], kill["model"]) == (["0", "1"], kill["undisturbed"])
    assert min(line["right"] for line in lines) > 0.9  # something was learned


@pytest.mark.slow
def test_the_kernel_carries_what_the_schedules_send() -> None:
    _, line = run(
        str(BENCHMARKS / "floor.py"), "--quick", "--json", "-n", "2", "--nbytes", "4000000"
    )
    assert line["sent_per_rank"] == line["least_bytes"] == 4_000_000
    assert line["carried_per_rank"] >= line["sent_per_rank"]


@pytest.mark.slow
def test_memory_of_results_is_measured_for_both_kinds_of_sizes() -> None:
    machine, *jobs = run(
        str(BENCHMARKS / "result_memory.py"), "--quick", "--transport", "tcp", "--json"
    )
    assert machine["machine"]["cpus"] == os.cpu_count()
    assert [(job["copy"], job["sizes"]) for job in jobs] == [
        (True, "fixed"),
        (True, "varying"),
        (False, "fixed"),
        (False, "varying"),
    ]
    assert all(0 < job["start_mb"] < job["most_mb"] == max(job["versions_mb"]) for job in jobs)
