"""Deadlines: how long a call may take, counted from the call and never a time of the clock."""

import datetime as dt
import math
import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ftcomm.config.plurals import kind_of

Duration = float | dt.timedelta

_CLOCK_TIMES = (dt.date, dt.time, np.datetime64)  # a datetime is a date


class Limit(NamedTuple):
    """The end of the time that a call may take."""

    seconds: float  # from the call on
    at: float  # monotonic time

    @property
    def is_past(self) -> bool:
        """The time is over."""
        return time.monotonic() >= self.at


class QueuedLimit(NamedTuple):
    """The limit of a call that waits for its turn."""

    limit: Limit  # of the call
    signature: bytes  # of the call, as far as it is known; may be empty
    site: str  # the line that made it
    waits_for: str = ""  # what comes before it, in words, where that is no call that runs


def earliest(limits: Iterable[QueuedLimit | None]) -> QueuedLimit | None:
    """Return the limit that passes first; None where no call has one."""
    return min((queued for queued in limits if queued), key=lambda q: q.limit.at, default=None)


def limit_from_now(seconds: float) -> Limit:
    """The limit of a call that is made now and may take `seconds`."""
    return Limit(seconds, time.monotonic() + seconds)


def checked_deadline(deadline: Any) -> float:
    """`deadline` in seconds.

    Raises:
        TypeError: it is a time of the clock, or neither a number nor a timedelta.
        ValueError: it is not above 0 and finite.
    """
    seconds = _seconds("deadline", deadline)
    if not 0 < seconds < math.inf:
        raise ValueError(f"deadline is {seconds:g}, must be above 0 and finite; None is no limit")
    return seconds


def checked_timeout(timeout: Any) -> float | None:
    """`timeout` in seconds, as far as a lock can wait; None for no limit.

    Raises:
        TypeError: it is a time of the clock, or neither a number nor a timedelta.
        ValueError: it is below 0 or not finite.
    """
    if timeout is None:
        return None
    seconds = _seconds("timeout", timeout)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"timeout is {seconds:g}, must be 0 or more, finite; None is no limit")
    return min(seconds, threading.TIMEOUT_MAX)


def _seconds(name: str, given: Any) -> float:
    """A duration in seconds, which may be below 0 and not finite; raises TypeError."""
    if isinstance(given, _CLOCK_TIMES):
        raise TypeError(
            f"{name} is {kind_of(given)}, a time of the clock, which each host has its own of; "
            "pass seconds or a datetime.timedelta, counted from the call"
        )
    if isinstance(given, dt.timedelta):
        given = given.total_seconds()
    # A number of numpy's may be a timedelta64, whose unit float() would drop.
    wrong = isinstance(given, (bool, np.bool_, str, np.timedelta64))
    if wrong or not hasattr(given, "__float__"):
        must = "must be a number of seconds or a datetime.timedelta"
        raise TypeError(f"{name} is {kind_of(given)}, {must}")
    try:
        return float(given)
    except OverflowError:  # an int that no float is near
        return math.inf if given > 0 else -math.inf


def overdue(rank: int, call: str, site: str, seconds: float, waited: str) -> str:
    """The words for a call that took longer than `seconds`."""
    return (
        f"rank {rank} gave {call} at {site or 'an unknown line'} a deadline of {seconds:g} s, and "
        f"it took longer; {waited}"
    )
