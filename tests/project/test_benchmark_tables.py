"""Printed output of the benchmarks."""

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return pytest.importorskip("_report")


def test_a_peer_without_figures_has_a_dash_and_its_reason(report: Any) -> None:
    both = {"ftcomm": {"us": 10.0, "calls": 9}, "gloo": {"us": 125.0, "calls": 9}}
    lines = [
        {"machine": {"cpus": 2, "torch": None}},
        {"world_size": 2, "nbytes": 4, "peers": both},
        {"world_size": 2, "nbytes": 1024, "peers": {"ftcomm": {"us": 1234.5, "calls": 9}}},
        {"world_size": 2, "peer": "gloo", "missing": "no answer in 300 s"},
    ]
    assert report.allreduce_table(lines).splitlines() == [
        "cpus 2",
        "",
        "2 ranks, microseconds, half the distance of the quartiles (and how many times ftcomm's)",
        "",
        "| bytes | ftcomm | gloo |",
        "| --- | --- | --- |",
        "| 4 | 10.0 | 125 (12.50) |",
        "| 1,024 | 1,234 | - |",
        "",
        "gloo: no answer in 300 s",
    ]


def test_each_phase_of_a_fault_has_a_row(report: Any) -> None:
    lines = [
        {"machine": {"cpus": 2}},
        {"fault": "link reset", "phase": "total", "p50": 15.04, "p99": 1053.0, "n": 20},
    ]
    assert report.recovery_table(lines).splitlines()[-1] == (
        "| link reset | total | 15.0 | 1,053.0 | 20 |"
    )


def test_what_is_hidden_is_a_share(report: Any) -> None:
    times = {"alone_ms": 100.0, "sync_ms": 180.04, "async_ms": 116.0}
    lines = [{"machine": {"cpus": 2}}, {"compute": "away", **times, "hidden": 0.8}]
    assert report.hidden_table(lines).splitlines()[-1] == "| away | 100.0 | 180.0 | 116.0 | 80 % |"


def test_a_job_that_could_not_be_measured_is_named_below_the_others(report: Any) -> None:
    figures = dict.fromkeys(
        ("stop_s", "epoch_s", "epoch_cpu_s", "idle_cpu_percent", "memory_kib_per_worker"), 0.5
    )
    counts = {"form_s": 1.25, "epoch_bytes_per_worker": 200, "peak_kib": 40000}
    lines = [
        {"machine": {"cpus": 2}},
        {"workers": 250, **figures, **counts},
        {"workers": 2000, "missing": "needs 2205 open files"},
    ]
    text = report.tracker_table(lines).splitlines()
    assert text[4] == "| 250 | 1.25 | 0.5 | 0.5 | 0.5 | 200 | 0.5 | 0.5 | 40,000 |"
    assert text[-1] == "2,000 workers: needs 2205 open files"


def test_memory_of_varying_sizes_is_beside_that_of_one_size(report: Any) -> None:
    job = {"transport": "auto", "copy": False}
    lines = [
        {"machine": {"cpus": 2}},
        {**job, "sizes": "fixed", "most_mb": 400},
        {**job, "sizes": "varying", "most_mb": 500},
    ]
    assert report.result_memory_table(lines).splitlines() == [
        "cpus 2",
        "",
        "| transport | result | one size, MB | varying sizes, MB | times |",
        "| --- | --- | --- | --- | --- |",
        "| auto | a view | 400 | 500 | 1.25 |",
    ]


def test_each_library_has_a_row_with_each_limit_of_a_connection(report: Any) -> None:
    ours = {"us": 50_000.0, "q1": 49_000.0, "q3": 51_000.0, "new_us": 70_000.0}
    ray = {**ours, "us": 100_000.0, "ratio": 2.0}
    lines = [
        {"machine": {"cpus": 2}},
        {"mbit_per_s": None, "nbytes": 9, "peers": {"ftcomm --streams 1": ours, "Ray": ray}},
        {"mbit_per_s": 400, "nbytes": 9, "peers": {"ftcomm --streams 1": ours}},
        {"peer": "Ray", "missing": "no answer in 300 s"},
    ]
    assert report.between_hosts_table(lines).splitlines() == [
        "cpus 2",
        "",
        "9 bytes one way, milliseconds, half the distance of the quartiles (and the ratio)",
        "",
        "| library | no limit | into a new array | 400 Mbit/s a connection |",
        "| --- | --- | --- | --- |",
        "| ftcomm --streams 1 | 50.0 ±2 % | 70.0 | 50.0 ±2 % |",
        "| Ray | 100.0 ±1 % (2.00) | 70.0 | - |",
        "",
        "Ray: not measured: no answer in 300 s",
    ]


def test_a_machine_without_such_hosts_has_no_table(report: Any) -> None:
    lines = [{"machine": {"cpus": 2}}, {"missing": "needs nft"}]
    assert report.between_hosts_table(lines) == "cpus 2\n\nNot measured: needs nft"
