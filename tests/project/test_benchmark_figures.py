"""Figures of the benchmarks: spread, ratios, plots; the pure parts."""

import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def load(name: str) -> Any:
    return pytest.importorskip(name)


def test_a_summary_has_the_median_between_its_quartiles() -> None:
    spread = load("_spread")
    assert spread.summary([5e-6, 1e-6, 2e-6, 3e-6, 4e-6]) == {
        "us": 3.0,
        "q1": 2.0,
        "q3": 4.0,
        "calls": 5,
    }
    assert spread.summary([1e-6]) == {"us": 1.0, "q1": 1.0, "q3": 1.0, "calls": 1}


def test_a_ratio_compares_what_was_measured_in_the_same_round() -> None:
    spread = load("_spread")
    ours = [[1.0, 1.0], [10.0], [1.0]]  # the machine was slow in the second round
    theirs = [[2.0, 2.0], [20.0], [2.0]]
    assert spread.ratio(theirs, ours) == 2.0
    assert spread.ratio([[], [30.0]], ours[:2]) == 3.0


def test_a_paired_ratio_lies_in_the_interval_of_the_sign_test() -> None:
    spread = load("_spread")
    rounds = [([float(own)], [10.0]) for own in (9, 17, 10, 16, 11, 15, 12, 14, 13)]
    assert spread.paired_ratio(rounds) == {"ratio": 1.3, "low": 1.0, "high": 1.6}
    assert spread.paired_ratio(rounds[:5]) == {"ratio": 1.1, "low": 0.9, "high": 1.7}


def test_a_start_is_a_workers_and_its_end_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = load("recovery")
    ended, looks = tmp_path / "ended", []

    def clock() -> float:
        looks.append(ended.exists())
        return float(len(looks))

    program = f"""
import os, pathlib, sys
print(flush=True)
sys.stdin.read()
pathlib.Path({str(ended)!r}).write_text(os.environ["OMP_NUM_THREADS"])
"""
    monkeypatch.setattr(recovery, "START", program)
    monkeypatch.setattr(recovery, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert recovery.start_times() == [1000.0] * recovery.STARTS
    assert (looks[:2], ended.read_text()) == ([False, False], "1")


def test_a_plot_has_each_line_its_marks_and_its_name() -> None:
    plot = load("_plot")
    lines = {"one & only": [(4, 10.0), (1e6, 1e4)], "two": [(4, 30.0)]}
    root = ET.fromstring(plot.log_log("time", lines))
    names = {"svg": "http://www.w3.org/2000/svg"}
    texts = [text.text for text in root.findall("svg:text", names)]
    routes = [line.get("points") for line in root.findall("svg:polyline", names)]
    assert {"time", "one & only", "two", "1 B", "1 MB", "10 µs", "10 ms"} <= set(texts)
    assert [len((route or "").split()) for route in routes] == [2, 1]
    assert len(root.findall("svg:path[@fill!='none']", names)) >= 5


def test_no_text_of_a_plot_is_cut_at_the_edge() -> None:
    """By the letters' mean width in DejaVu Sans, 0.6 of their height."""
    plot = load("_plot")
    lines = {"a legend of many words indeed": [(4, 10.0), (1e8, 1e6)]}
    for title in ("time", "a title that is far longer than the plot itself is wide, so to say" * 2):
        root = ET.fromstring(plot.log_log(title, lines))
        width = float((root.get("viewBox") or "").split()[2])
        for text in root.findall("{http://www.w3.org/2000/svg}text"):
            length = 0.6 * len(text.text or "") * float(text.get("font-size") or 12)
            part = {"middle": 0.5, "end": 0.0}.get(text.get("text-anchor") or "", 1.0)
            assert float(text.get("x") or 0) + part * length <= width, text.text


def test_points_of_a_plot_grow_to_the_right_and_upwards() -> None:
    plot = load("_plot")
    root = ET.fromstring(plot.log_log("t", {"a": [(1, 1.0), (10, 10.0), (100, 100.0)]}))
    (line,) = root.findall("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(","))) for point in (line.get("points") or "").split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)
    first, second, third = (x for x, _ in points)
    assert second - first == pytest.approx(third - second)


def test_a_linear_plot_begins_at_nothing_and_has_all_points_inside() -> None:
    plot = load("_plot")
    root = ET.fromstring(plot.linear("t", {"a": [(0, 0.0), (3000, 5.5), (7100, 11.0)]}, "samples"))
    texts = [text.text for text in root.findall("{http://www.w3.org/2000/svg}text")]
    (line,) = root.findall("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(","))) for point in (line.get("points") or "").split()]
    bottom, right = plot.HEIGHT - plot.BOTTOM, plot.LEFT + plot.PLOT_WIDTH
    assert points[0] == (plot.LEFT, bottom)
    assert points[1] == (plot.LEFT + 3 / 8 * plot.PLOT_WIDTH, (points[0][1] + points[2][1]) / 2)
    assert (points[2][0] < right, points[2][1] > plot.TOP) == (True, True)
    assert {"0", "1,000", "8,000", "2", "12", "samples"} <= set(texts)


def test_nothing_to_plot_is_an_error() -> None:
    for draw in (lambda plot: plot.log_log("t", {}), lambda plot: plot.linear("t", {}, "x")):
        with pytest.raises(ValueError, match="nothing"):
            draw(load("_plot"))
