"""Median and quartiles of what was measured, and ratios of what was measured together. Pure."""

import statistics
from collections.abc import Sequence


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Microseconds: the median and both quartiles; and how many calls they are of."""
    if len(seconds) == 1:
        low = middle = high = seconds[0]
    else:
        low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return {
        "us": round(middle * 1e6, 1),
        "q1": round(low * 1e6, 1),
        "q3": round(high * 1e6, 1),
        "calls": len(seconds),
    }


def ratio(rounds: Sequence[Sequence[float]], own_rounds: Sequence[Sequence[float]]) -> float:
    """How many times ours another takes: the median over rounds of the ratio of medians.

    Both of a round were measured one shortly after the other, so what slows the machine down for a
    while is in both.
    """
    pairs = zip(rounds, own_rounds, strict=False)
    found = [statistics.median(a) / statistics.median(b) for a, b in pairs if a and b]
    return round(statistics.median(found), 2)
