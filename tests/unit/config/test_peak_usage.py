"""Bound of a pool's memory."""

from ftcomm.config.peak_usage import KEPT_VERSIONS, SLACK_PARTS, Peaks

PEAK = 100 * SLACK_PARTS
WITH_SLACK = PEAK + PEAK // SLACK_PARTS


def test_a_quarter_more_is_held_than_was_in_use_at_once() -> None:
    peaks = Peaks(10 * PEAK)
    for in_use in (1, PEAK, 2):
        peaks.note(in_use)
    assert peaks.allowance == WITH_SLACK


def test_what_so_many_versions_did_not_need_is_not_held() -> None:
    peaks = Peaks(10 * PEAK)
    peaks.note(PEAK)
    allowed = []
    for _ in range(KEPT_VERSIONS + 2):
        peaks.next_version(0)
        allowed.append(peaks.allowance)
    assert allowed == [WITH_SLACK] * KEPT_VERSIONS + [0, 0]


def test_what_is_in_use_over_versions_counts_in_each() -> None:
    peaks = Peaks(10 * PEAK)
    for _ in range(KEPT_VERSIONS + 2):
        peaks.next_version(PEAK)
    assert peaks.allowance == WITH_SLACK


def test_above_the_limit_only_what_is_in_use_is_held() -> None:
    allowed = []
    for limit in (PEAK - 1, PEAK + 1, WITH_SLACK + 1):
        peaks = Peaks(limit)
        peaks.note(PEAK)
        allowed.append(peaks.allowance)
    assert allowed == [PEAK, PEAK + 1, WITH_SLACK]
