"""Figures that a soak reports of itself."""

import json
from pathlib import Path

import pytest

from tests.soak.__main__ import earlier
from tests.soak.figures import Figures, growth, peaks

HOUR = Figures(seconds=3600, simulated_faults=1_000_000, kills=1_000)


def at_each_second(*values: float) -> list[tuple[float, float]]:
    return list(enumerate(map(float, values)))


def test_growth_is_that_of_the_last_third_over_the_middle_one() -> None:
    assert growth(at_each_second(0, 50, 90, 100, 101, 100, 104, 105, 106)) == 5.0


def test_a_peak_in_a_recovery_and_the_first_third_are_no_growth() -> None:
    assert growth(at_each_second(0, 5, 9, 10, 10, 99, 10, 99, 10)) == 0.0


def test_too_few_samples_say_nothing_about_growth() -> None:
    assert growth(at_each_second(*range(8))) is None


def test_of_each_process_its_peak_counts() -> None:
    series = at_each_second(1, 7, 6, 2, 3)
    assert peaks(series, [10, 10, 10, 11, 11]) == [(2.0, 7.0), (4.0, 3.0)]


@pytest.mark.parametrize(
    ("report", "status"),
    [
        ({}, 0),
        ({"violations": ["seed 3: broken"]}, 1),
        ({"growths": {"long job's tracker fds": 3}}, 1),
        ({"growths": {"long job's tracker fds": 2, "simulator rss_kib": 4096}}, 0),
        ({"growths": {"simulator rss_kib": 4097}}, 1),
        ({"kills": -1}, 2),
        ({"simulated_faults": -1}, 2),
        ({"kills": -1, "violations": ["both"]}, 1),
    ],
)
def test_the_status_says_well_broken_or_too_little(report: dict[str, object], status: int) -> None:
    figures = Figures(HOUR.seconds, 1, HOUR.simulated_faults, HOUR.kills)
    figures.add(report)
    assert figures.status == status


def test_faults_are_wanted_for_the_time_that_has_passed() -> None:
    assert Figures(seconds=36, simulated_faults=9_999, kills=10).too_few == [
        "9999 simulated faults of 10000"
    ]


def test_the_log_tells_the_sums_of_all_soaks_also_of_one_that_was_interrupted(
    tmp_path: Path,
) -> None:
    lines = [
        {"began": "a", **Figures(seconds=10, kills=3).document()},
        {"began": "a", **Figures(seconds=20, kills=7).document()},
        {"began": "b", **Figures(seconds=5, kills=1, simulated_faults=9).document()},
    ]
    log = tmp_path / "soak.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert earlier(log) == Figures(seconds=25.0, kills=8, simulated_faults=9)
