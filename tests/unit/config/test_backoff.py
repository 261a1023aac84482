"""Delays between retries."""

import pytest

from ftcomm.config.backoff import (
    LINK_BACKOFF,
    RESTART_BACKOFF,
    TRACKER_BACKOFF,
    Backoff,
)


def test_each_failure_has_its_delay_and_the_last_one_repeats() -> None:
    backoff = Backoff((0.0, 0.5, 2.0))
    assert [backoff.delay_s(failures) for failures in range(1, 6)] == [0.0, 0.5, 2.0, 2.0, 2.0]


def test_jitter_shortens_a_delay_by_its_share_at_most() -> None:
    backoff = Backoff((4.0,), jitter=0.25)
    assert [backoff.delay_s(1, draw) for draw in (0.0, 0.5, 1.0)] == [4.0, 3.5, 3.0]


@pytest.mark.parametrize("backoff", [LINK_BACKOFF, RESTART_BACKOFF, TRACKER_BACKOFF])
def test_no_delay_is_shorter_than_the_one_before(backoff: Backoff) -> None:
    assert list(backoff.delays_s) == sorted(backoff.delays_s)
    assert 0 <= backoff.jitter <= 1
