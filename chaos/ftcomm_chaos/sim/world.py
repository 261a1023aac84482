"""The simulated world: one clock, one heap of events, one source of randomness.

A run is a function of its seed alone: events at one time happen in the order in which they were
scheduled, and nothing reads a real clock, the hash seed or the environment.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any


class Violation(AssertionError):  # noqa: N818 - it is a finding, and reads like one
    """A rule of the design does not hold."""


class World:
    """Virtual time and everything that is scheduled in it.

    Attributes:
        now: virtual seconds.
        transit_s: the longest that a message is on its way.
        rng: the only source of randomness.
        lines: the trace, kept if `tracing`.
    """

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.transit_s = 0.02
        self.rng = random.Random(seed)  # noqa: S311 - a run must replay from its seed
        self.tracing = tracing
        self.lines: list[str] = []
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay: float, action: Callable[..., None], *args: Any) -> float:
        """Run `action(*args)` in `delay` seconds; returns when that will be."""
        when = self.now + delay
        self.at(when, action, *args)
        return when

    def at(self, when: float, action: Callable[..., None], *args: Any) -> None:
        """Run `action(*args)` at `when`, after everything that is scheduled for then already."""
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, action, args))

    def run_one(self) -> bool:
        """Let the next event happen; False if there is none."""
        if not self._heap:
            return False
        self.now, _, action, args = heapq.heappop(self._heap)
        self.steps += 1
        action(*args)
        return True

    def chance(self, probability: float) -> bool:
        """True as often as `probability` says."""
        return self.rng.random() < probability

    def between(self, lo: float, hi: float) -> float:
        """A delay in seconds; low values are the most frequent."""
        draw = self.rng.random()
        return lo + (hi - lo) * draw * draw

    def transit(self) -> float:
        """Return the travel time of a message."""
        return self.between(0.0001, self.transit_s)

    def trace(self, text: str) -> None:
        """Note what happens, for people who look for the cause of a violation."""
        if self.tracing:
            self.lines.append(f"{self.now:9.4f}  {text}")
