"""Printed output of the benchmarks."""

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return pytest.importorskip("_report")


def test_a_library_without_figures_has_a_dash_and_its_reason(report: Any) -> None:
    ours, view = {"us": 10.0, "calls": 9}, {"us": 5.0, "calls": 9, "ratio": 0.5}
    gloo = {"us": 125.0, "calls": 9, "ratio": 12.0, "view_ratio": 24.0}
    small = {"ftcomm": ours, "ftcomm copy=False": view, "gloo": gloo}
    place = {"kind": "allreduce", "world_size": 2, "transport": "shm"}
    lines = [
        {"machine": {"cpus": 2, "torch": None}},
        {**place, "nbytes": 4, "peers": small},
        {**place, "nbytes": 1024, "peers": {"ftcomm": {"us": 1234.5, "calls": 9}}},
        {**place, "transport": "tcp", "nbytes": 4, "peers": {"ftcomm": ours}},
        {"world_size": 2, "peer": "gloo", "missing": "no answer in 300 s"},
        {"world_size": 4, "peer": "gloo", "missing": "no answer in 300 s"},
    ]
    assert report.calls_table(lines).splitlines() == [
        "cpus 2",
        "",
        "allreduce, 2 ranks, shm, microseconds:",
        "",
        "| bytes | ftcomm | ftcomm copy=False | gloo |",
        "| --- | --- | --- | --- |",
        "| 4 | 10.0 | 5.0 (0.50) | 125 (12.00, 24.00) |",
        "| 1,024 | 1,234 | - | - |",
        "",
        "allreduce, 2 ranks, tcp, microseconds:",
        "",
        "| bytes | ftcomm |",
        "| --- | --- |",
        "| 4 | 10.0 |",
        "",
        "gloo: no answer in 300 s",
    ]


def test_the_ratio_to_a_commit_has_its_interval(report: Any) -> None:
    base = {"us": 11.0, "calls": 9, "ratio": 1.1, "low": 0.98, "high": 1.2}
    place = {"kind": "send_recv", "world_size": 2, "transport": "tcp", "nbytes": 64}
    peers = {"ftcomm": {"us": 10.0, "calls": 9}, "base": base}
    lines = [{"machine": {"cpus": 2}}, {**place, "peers": peers}]
    text = report.calls_table(lines).splitlines()
    assert text[-1] == "| 64 | 10.0 | 11.0 (1.10, 0.98 to 1.20) |"


def test_a_way_to_train_is_compared_with_the_first_one(report: Any) -> None:
    common = {"samples": [64, 128, 192], "seeds": 5}
    lines = [
        {"machine": {"cpus": 2}},
        {"way": "one", "wrong": [9.0, 5.0, 3.0], "loss": [1.0, 0.5, 0.25], "kb": 1000, **common},
        {"way": "other", "wrong": [8.0, 6.0, 3.5], "loss": [1.0, 0.5, 0.2], "kb": 20, **common},
    ]
    text = report.patterns_table(lines).splitlines()
    assert text[2] == "After 192 samples, mean of 5 seeds:"
    assert text[-2:] == [
        "| one | 3.00 (+0.00) | 0.250 (+0.000) | 1,000 |",
        "| other | 3.50 (+0.50) | 0.200 (-0.050) | 20 |",
    ]
    (plot,) = report.patterns_plots(lines).values()
    assert (plot.count("<polyline"), report.patterns_plots(lines[:1])) == (2, {})


def test_speed_ups_stand_beside_the_models_and_the_published_ones(report: Any) -> None:
    name = {"experiment": "DNN, digits", "average": "weights"}
    shape = {"shape": "MNIST-DNN", "average": "weights", "nbytes": 712_440, "step_us": 1500}
    speed = {"samples_per_s": 20_000, "right": 0.95}
    lines = [
        {"machine": {"cpus": 2}},
        {"alpha_us": 50.0, "beta_ns": 0.8},
        {**name, "ranks": 1, "by_model": 1.0, "measured": 1.0, **speed},
        {**name, "ranks": 2, "by_model": 1.9, "measured": 1.75, **speed, "right": 0.9},
        {**name, "ranks": 4, "by_model": 3.6},
        {**name, "kills": 2, "killed": ["0", "1"], "model": "abcdef0123", "undisturbed": "b"},
        {**shape, "speedups": {"1": 1.0, "16": 15.5, "32": 30.5}},
        {"missing": "cnn: torch is not installed"},
    ]
    text = report.papers_table(lines)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    head, training, _, shape_row, _, published = rows
    assert head == (
        "| network, data | averaged | samples a second on one rank | right, % | 2 ranks | 4 ranks |"
        " SHA-256 after kills |"
    )
    assert training == (
        "| DNN, digits | weights | 20,000 | 90.0 (2 ranks) | 1.75 (model 1.90) | model 3.60 |"
        " NOT EQUAL; 2 of 2 killed |"
    )
    assert shape_row == "| MNIST-DNN | 712 | 1,500 | 15.50 | 30.50 |"
    assert published == "| MNIST-DNN, 1 to 32 cores | 11.64 | 30.50 |"
    assert text.endswith("Not measured: cnn: torch is not installed")
    lines[5]["undisturbed"] = "abcdef0123"
    assert "| equal, abcdef01; 2 of 2 killed |" in report.papers_table(lines)
    (plot,) = report.papers_plots(lines).values()
    assert (plot.count("<polyline"), report.papers_plots(lines[:6])) == (2, {})


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
