"""Faults that are signals: death, a polite death, a stop; for workers and for the tracker."""

import random
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftcomm_chaos.live.fault import (
    ALL,
    RANDOM,
    TRACKER,
    Hit,
    Kind,
    NotDeliveredError,
    Preparation,
    RunningJob,
    Target,
    register,
)
from ftcomm_chaos.live.processes import Life


@dataclass(slots=True)
class SignalFault:
    """A signal for the processes of the target; `undo` continues them, or starts the tracker."""

    target: Target
    name: str  # of the signal: Windows has not all, and imports this module
    _stopped: list[Life] = field(default_factory=list)

    def missing(self) -> str:
        """Linux alone can signal a process that is not a child without risk for others."""
        return "" if sys.platform == "linux" else f"{self.name} needs Linux (pidfd)"

    async def prepare(self, run: Preparation) -> None:
        """A tracker can die alone only where it is a process of its own."""
        run.own_tracker |= self.target.kind == TRACKER

    async def fire(self, job: RunningJob, dice: random.Random) -> Hit:
        """Send the signal; a kill is done when the process is gone."""
        workers: tuple[str, ...] = ()
        if self.target.kind == TRACKER:
            lives = [_running(job.tracker, TRACKER)]
        else:
            workers = self.target.pick(job, dice)
            lives = [_running(job.life(worker), f"worker {worker}") for worker in workers]
        for life in lives:
            life.signal(signal.Signals[self.name])
        if self.name == "SIGSTOP":
            self._stopped += lives
        elif self.name == "SIGKILL":
            for life in lives:
                await life.gone()
        deadly = self.name == "SIGKILL"
        text = f"{self.name} for {', '.join(map(str, lives))}"
        return Hit(workers, text, tuple(lives) if deadly else ())

    async def undo(self, job: RunningJob) -> None:
        """Let a stopped process go on; start a killed tracker again."""
        while self._stopped:
            life = self._stopped.pop()
            if life.pidfd >= 0:
                life.signal(signal.SIGCONT)
        if self.name == "SIGKILL" and self.target.kind == TRACKER and job.tracker is None:
            await job.start_tracker()


@dataclass(slots=True)
class AtPosition:
    """What the library does to itself, by address; the runner hands the address to it."""

    def missing(self) -> str:
        """Nothing is needed."""
        return ""

    async def prepare(self, run: Preparation) -> None:
        """The runner sets the variable; nothing else is needed."""

    async def fire(self, job: RunningJob, dice: random.Random) -> Hit:
        """The library fires it."""
        del job, dice
        raise NotDeliveredError("this kind is delivered by the library alone")

    async def undo(self, job: RunningJob) -> None:
        """It has no end."""


def _running(life: Life | None, who: str) -> Life:
    if life is None:
        raise NotDeliveredError(f"{who} does not run")
    return life


def _signal_kind(name: str, text: str, *, tracker: bool, **more: Any) -> Kind:
    def make(target: Target, parameters: Mapping[str, Any]) -> SignalFault:
        del parameters
        return SignalFault(target, name)

    targets = ("workers", RANDOM, ALL, *([TRACKER] if tracker else []))
    return Kind(name.lower(), text, make, targets, **more)


def _position_kind(name: str, text: str) -> Kind:
    def make(target: Target, parameters: Mapping[str, Any]) -> AtPosition:
        del target, parameters
        return AtPosition()

    return Kind(name, text, make, library_action=name, only_at_position=True)


register(
    [
        _signal_kind(
            "SIGKILL",
            "the process dies at once; a tracker is started again after `for` seconds",
            tracker=True,
            lasting=True,
            library_action="kill",
        ),
        _signal_kind("SIGTERM", "the process is asked to end", tracker=False),
        _signal_kind(
            "SIGSTOP",
            "the process stands still, and goes on after `for` seconds",
            tracker=True,
            lasting=True,
            library_action="stop",
        ),
        _position_kind("kill_rst", "links are reset, then the process dies"),
        _position_kind("cut", "all data links of the rank end with FIN"),
        _position_kind("reset", "all data links of the rank end with RST"),
        _position_kind("raise", "the call raises, as a defect of the script would"),
    ]
)
