"""Figures of a soak so far, and their judgement: pure, so that tests can use them."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SIMULATED_AN_HOUR = 500_000  # faults, on one of two processors: real jobs need the other one
KILLS_AN_HOUR = 1_000  # of real processes
LOSSES_AN_HOUR = 12  # of each kind
LOSSES = {  # name of each kind in the figures, and as `ftcomm-chaos run` calls the fault
    "everything": "lose_all",
    "tracker_disks": "tracker_disk_lost",
    "trackers": "tracker_kill",
    "machines": "node_lost",
}
LOSING_COUNTS = ("sessions", "untested", "kills", *LOSSES, "attempts", "violations")
FEWEST_SAMPLES = 9  # three for each third
GROWTH_LIMITS = {
    "rss_kib": 4096,  # between the middle and the last third; allocators differ by a few pages
    "fds": 2,  # one recovery may be under way
    "files": 8,  # one checkpoint more, which is being written
}

Series = Sequence[tuple[float, float]]  # seconds, value


def growth(series: Series) -> float | None:
    """Compare the last third of `series` with the middle one; None if it is too short.

    Medians, so that a peak in a recovery does not count; the first third warms up.
    """
    third = len(series) // 3
    if len(series) < FEWEST_SAMPLES:
        return None
    values = [value for _, value in series]
    return statistics.median(values[-third:]) - statistics.median(values[third:-third])


def peaks(series: Series, processes: Sequence[int]) -> list[tuple[float, float]]:
    """The highest value of each process, at its last sample; `processes` names each one's."""
    highest: dict[int, tuple[float, float]] = {}
    for (at, value), incarnation in zip(series, processes, strict=True):
        highest[incarnation] = (at, max(value, highest.get(incarnation, (at, value))[1]))
    return list(highest.values())


@dataclass
class Figures:
    """Sums over all that the soak's processes report."""

    seconds: float = 0.0
    simulated_jobs: int = 0
    simulated_faults: int = 0
    kills: int = 0
    stops: int = 0
    schedules: int = 0
    violations: list[str] = field(default_factory=list)
    growths: dict[str, float] = field(default_factory=dict)
    losses: Counter[str] = field(default_factory=Counter)
    peaks: dict[str, list[float]] = field(default_factory=dict)

    def add(self, report: Mapping[str, Any]) -> None:
        """Take in one report: counts to add, and what replaces what was said before."""
        for name in ("simulated_jobs", "simulated_faults", "kills", "stops", "schedules"):
            setattr(self, name, getattr(self, name) + report.get(name, 0))
        self.violations += report.get("violations", [])
        self.growths.update(report.get("growths", {}))
        self.losses.update(report.get("losses", {}))
        for name, value in report.get("peaks", {}).items():
            sessions = self.peaks.setdefault(name, [])
            sessions.append(value)
            grown = growth(list(enumerate(sessions)))
            if grown is not None:
                self.growths[name] = grown

    @property
    def leaks(self) -> list[str]:
        """Growing resources: process and kind, and the amount."""
        return [
            f"{name} grew by {value:.0f}"
            for name, value in sorted(self.growths.items())
            if value > GROWTH_LIMITS[name.rpartition(" ")[2]]
        ]

    @property
    def too_few(self) -> list[str]:
        """Counts that are below their minimum for this time."""
        hours = self.seconds / 3600
        wanted = {
            "simulated faults": (self.simulated_faults, SIMULATED_AN_HOUR * hours),
            "kills": (self.kills, KILLS_AN_HOUR * hours),
        }
        for name in LOSSES:  # whole ones: a short soak comes to none
            words = f"losses of {name.replace('_', ' ')}"
            wanted[words] = (self.losses[name], int(LOSSES_AN_HOUR * hours))
        return [f"{got} {name} of {need:.0f}" for name, (got, need) in wanted.items() if got < need]

    @property
    def status(self) -> int:
        """0 all well, 1 a rule was broken or something grows, 2 too little was done to say so."""
        if self.violations or self.leaks:
            return 1
        return 2 if self.too_few else 0

    def line(self) -> str:
        """The figures for a person."""
        return (
            f"{self.seconds:6.0f} s: {self.simulated_faults} simulated faults in "
            f"{self.simulated_jobs} jobs, {self.kills} kills, {self.stops} stops, "
            f"{self.schedules} schedules; {self._losses_line()}; "
            f"{len(self.violations)} violations"
        )

    def _losses_line(self) -> str:
        """The losses for a person."""
        lost = ", ".join(f"{self.losses[name]} {name.replace('_', ' ')}" for name in LOSSES)
        return (
            f"{self.losses['sessions']} losing sessions lost {lost} and had "
            f"{self.losses['attempts']} more attempts"
        )

    def document(self) -> dict[str, object]:
        """The figures for a program."""
        return {
            "seconds": round(self.seconds, 1),
            "simulated_jobs": self.simulated_jobs,
            "simulated_faults": self.simulated_faults,
            "kills": self.kills,
            "stops": self.stops,
            "schedules": self.schedules,
            "losses": {name: self.losses[name] for name in LOSING_COUNTS},
            "violations": self.violations,
            "growths": self.growths,
            "leaks": self.leaks,
            "too_few": self.too_few,
            "status": self.status,
        }
