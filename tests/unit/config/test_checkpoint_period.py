"""Periods of durable checkpoints, as options and variables name them."""

import pytest

from ftcomm.config.setting_kinds import CheckpointPeriod


@pytest.mark.parametrize(
    ("text", "period"),
    [
        ("10", CheckpointPeriod(seconds=10.0)),
        ("1.5s", CheckpointPeriod(seconds=1.5)),
        ("5m", CheckpointPeriod(seconds=300.0)),
        ("10v", CheckpointPeriod(versions=10)),
    ],
)
def test_a_number_alone_is_seconds(text: str, period: CheckpointPeriod) -> None:
    assert CheckpointPeriod.of(text) == period


@pytest.mark.parametrize("text", ["", "s", "10x", "1.5v", "0v", "-1"])
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=repr(text)):
        CheckpointPeriod.of(text)
