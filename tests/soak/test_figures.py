"""Figures that a soak reports of itself."""

import json
from pathlib import Path

import pytest

from tests.soak.__main__ import earlier
from tests.soak.figures import LOSSES, Figures, growth, peaks

LOST = dict.fromkeys(LOSSES, 12)


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
        ({"losses": {"machines": -1}}, 2),
    ],
)
def test_the_status_says_well_broken_or_too_little(report: dict[str, object], status: int) -> None:
    figures = Figures(seconds=3600)
    figures.add({"simulated_faults": 500_000, "kills": 1_000, "losses": LOST})
    figures.add(report)
    assert figures.status == status


def test_faults_are_wanted_for_the_time_that_has_passed() -> None:
    assert Figures(seconds=36, simulated_faults=4_999, kills=10).too_few == [
        "4999 simulated faults of 5000"
    ]


def test_the_log_tells_the_sums_of_all_soaks_also_of_one_that_was_interrupted(
    tmp_path: Path,
) -> None:
    lost = Figures(seconds=20, kills=7)
    lost.add({"losses": {"everything": 2, "sessions": 1}})
    lines = [
        {"began": "a", **Figures(seconds=10, kills=3).document()},
        {"began": "a", **lost.document()},
        {"began": "b", **Figures(seconds=5, kills=1, simulated_faults=9).document()},
    ]
    log = tmp_path / "soak.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    total = earlier(log)
    assert (total.seconds, total.kills, total.simulated_faults) == (25.0, 8, 9)
    assert +total.losses == {"everything": 2, "sessions": 1}


def test_losses_are_wanted_in_whole_numbers() -> None:
    few = Figures(seconds=600, simulated_faults=10**6, kills=10**3)
    few.add({"losses": {"everything": 2, "tracker_disks": 1, "trackers": 2, "machines": 2}})
    assert few.too_few == ["1 losses of tracker disks of 2"]


def test_losses_have_a_section_and_are_in_the_line() -> None:
    figures = Figures()
    for _ in range(2):
        figures.add({"losses": {"sessions": 1, "kills": 3, "everything": 2, "attempts": 2}})
    lost = {"everything": 4, "tracker_disks": 0, "trackers": 0, "machines": 0}
    counts = {"sessions": 2, "untested": 0, "kills": 6, "attempts": 4, "violations": 0}
    assert figures.document()["losses"] == counts | lost
    words = "2 losing sessions lost 4 everything, 0 tracker disks, 0 trackers, 0 machines and had 4"
    assert words in figures.line()


def test_what_each_session_needs_may_not_grow_from_session_to_session() -> None:
    figures, name = Figures(), "disk sessions' worker fds"
    for value in (20, 20, 20, 20, 20, 20, 22, 23, 24):
        figures.add({"peaks": {name: value}})
    assert figures.leaks == [f"{name} grew by 3"]
