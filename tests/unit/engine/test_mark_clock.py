"""Rank 0's clock marks by versions or by seconds, and never while one is held."""

from types import SimpleNamespace
from typing import Any, cast

from ftcomm.engine.runs.checkpoint import MarkClock


def clock(every: str) -> MarkClock:
    hub: Any = SimpleNamespace(settings=SimpleNamespace(checkpoint_every=every))
    return MarkClock(cast("Any", hub))


def test_the_first_version_of_a_process_is_due_and_then_each_tenth() -> None:
    of = clock("10v")
    due = [version for version in range(7, 40) if of.is_due(version, 0.0, is_idle=True)]
    assert due == [7, 17, 27, 37]


def test_a_version_whose_exchange_has_failed_is_due_again() -> None:
    of = clock("10v")
    assert [of.is_due(version, 0.0, is_idle=True) for version in (7, 7, 8)] == [True, True, False]


def test_the_first_version_behind_each_period_is_due() -> None:
    of = clock("60s")
    times = (5.0, 64.9, 65.0, 100.0, 131.0, 190.9, 191.0)
    due = [now for version, now in enumerate(times) if of.is_due(version, now, is_idle=True)]
    assert due == [5.0, 65.0, 131.0, 191.0]


def test_a_version_that_was_due_while_one_is_held_is_replaced_by_the_next() -> None:
    """Nothing waits meanwhile: the newest version is marked as soon as none is held."""
    of = clock("2v")
    held = {2, 3, 4, 5}
    due = [
        version for version in range(1, 9) if of.is_due(version, 0.0, is_idle=version not in held)
    ]
    assert due == [1, 6, 8]
