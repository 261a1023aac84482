"""Deadlines: how long a call may take, counted from the call and never a time of the clock."""

import datetime as dt
import math
from typing import Any

import numpy as np

Duration = float | dt.timedelta

_CLOCK_TIMES = (dt.date, dt.time, np.datetime64)  # a datetime is a date


def checked_deadline(deadline: Any) -> float:
    """`deadline` in seconds.

    Raises:
        TypeError: it is a time of the clock, or neither a number nor a timedelta.
        ValueError: it is not above 0 and finite.
    """
    kind = type(deadline).__name__
    if isinstance(deadline, _CLOCK_TIMES):
        raise TypeError(
            f"deadline is a {kind}, a time of the clock, which each host has its own of; pass "
            "seconds or a datetime.timedelta, counted from the call"
        )
    if isinstance(deadline, dt.timedelta):
        deadline = deadline.total_seconds()
    # A number of numpy's may be a timedelta64, whose unit float() would drop.
    wrong = isinstance(deadline, (bool, np.bool_, str, np.timedelta64))
    if wrong or not hasattr(deadline, "__float__"):
        raise TypeError(
            f"deadline is a {kind}, must be a number of seconds or a datetime.timedelta"
        )
    seconds = float(deadline)
    if not 0 < seconds < math.inf:
        raise ValueError(f"deadline is {seconds:g}, must be above 0 and finite; None is no limit")
    return seconds
