"""Counts of the real processes killed and stopped, for the figure at the end of a test run."""

from dataclasses import dataclass


@dataclass(slots=True)
class FaultCounter:
    """Counts of what the kernel reported, not of what was planned."""

    kills: int = 0
    stops: int = 0

    def add(self, *, kills: int, stops: int = 0) -> None:
        """Count what one job has come to."""
        self.kills += kills
        self.stops += stops


FAULT_COUNTER = FaultCounter()  # of this process
