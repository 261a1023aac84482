"""Median and quartiles of what was measured, and ratios of what was measured together. Pure."""

import math
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
    """Return the other's time over ours: the median over rounds of the ratio of medians.

    Both of a round were measured one shortly after the other, so what slows the machine down for a
    while is in both.
    """
    pairs = zip(rounds, own_rounds, strict=False)
    found = [statistics.median(a) / statistics.median(b) for a, b in pairs if a and b]
    return round(statistics.median(found), 2)


CONFIDENCE = 0.95


def paired_ratio(rounds: Sequence[tuple[Sequence[float], Sequence[float]]]) -> dict[str, float]:
    """Of (own, base) seconds per round: the median ratio of medians, and its interval.

    The interval is that of the sign test: it lies between two order statistics of the rounds'
    ratios and assumes no distribution. Too few rounds for `CONFIDENCE` give the whole range.
    """
    ratios = sorted(statistics.median(own) / statistics.median(base) for own, base in rounds)
    outside = _left_out(len(ratios))
    return {
        "ratio": round(statistics.median(ratios), 4),
        "low": round(ratios[outside], 4),
        "high": round(ratios[-1 - outside], 4),
    }


def _left_out(rounds: int) -> int:
    """Count the values on each side that lie outside the median's interval.

    The true median lies below the k + 1 smallest ratios only if at most k of all fall below it:
    a sum of binomial coefficients.
    """
    below, left_out = 0.0, 0
    for k in range(rounds):
        below += math.comb(rounds, k) / 2**rounds
        if below > (1 - CONFIDENCE) / 2:
            break
        left_out = k
    return left_out
