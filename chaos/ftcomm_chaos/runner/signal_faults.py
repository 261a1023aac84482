"""Faults that are signals: death, a polite death, a stop; for workers and for the tracker."""

import contextlib
import random
import signal
import sys
from dataclasses import dataclass, field
from typing import Any

from ftcomm_chaos.faults.fault_kinds import (
    ALL,
    RANDOM,
    TRACKER,
    FaultKind,
    Hit,
    NotDeliveredError,
    Preparation,
    RunningJob,
    Target,
    register,
)
from ftcomm_chaos.faults.processes import JobProcess


@dataclass(slots=True)
class SignalFault:
    """A signal for the processes of the target; `undo` lets those go on that it stopped."""

    target: Target
    name: str  # of the signal: Windows has not all, and imports this module
    _stopped: list[JobProcess] = field(default_factory=list)

    def missing(self) -> str:
        """Linux alone can signal a process that is not a child without risk for others."""
        return "" if sys.platform == "linux" else f"{self.name} needs Linux (pidfd)"

    async def prepare(self, run: Preparation) -> None:
        """A tracker can be hit alone only where it is a process of its own."""
        run.own_tracker |= self.target.kind == TRACKER

    async def fire(self, job: RunningJob, dice: random.Random) -> Hit:
        """Send the signal; a kill is done when the process is gone."""
        workers: tuple[str, ...] = ()
        if self.target.kind == TRACKER:
            processes = [_running(job.tracker, TRACKER)]
        else:
            workers = self.target.pick(job, dice)
            processes = [_running(job.process(worker), f"worker {worker}") for worker in workers]
        hit = self._hit(workers, self._send(processes))
        for process in hit.processes:
            await process.gone()
        return hit

    def happened(self, process: JobProcess) -> Hit:
        """The library has done it, or does it now."""
        return self._hit((process.who,), [process])

    async def undo(self, job: RunningJob) -> None:
        """Let what was stopped go on; what is about to stop itself must have done so."""
        del job
        while self._stopped:
            process = self._stopped.pop()
            with contextlib.suppress(NotDeliveredError):  # it has ended meanwhile
                await process.stopped()
                process.signal(signal.SIGCONT)

    def _send(self, processes: list[JobProcess]) -> list[JobProcess]:
        """Those whom the signal has reached: one of several may just have ended."""
        reached = []
        for process in processes:
            with contextlib.suppress(NotDeliveredError):
                process.signal(signal.Signals[self.name])
                reached.append(process)
        if not reached:
            raise NotDeliveredError(f"{self.target} has ended")
        return reached

    def _hit(self, workers: tuple[str, ...], processes: list[JobProcess]) -> Hit:
        if self.name == "SIGSTOP":
            self._stopped += processes
        dying = tuple(processes) if self.name == "SIGKILL" else ()
        return Hit(workers, f"{self.name} for {', '.join(map(str, processes))}", dying)


@dataclass(slots=True)
class TrackerKill(SignalFault):
    """SIGKILL of the tracker; `undo` starts it again on its state directory."""

    async def undo(self, job: RunningJob) -> None:
        """Start it again."""
        if job.tracker is None:
            await job.start_tracker()


def _running(process: JobProcess | None, who: str) -> JobProcess:
    if process is None:
        raise NotDeliveredError(f"{who} does not run")
    return process


def _signal_kind(name: str, text: str, **more: Any) -> FaultKind:
    return FaultKind(name.lower(), text, lambda target, _: SignalFault(target, name), **more)


register(
    [
        _signal_kind("SIGKILL", "the process dies at once", library_action="kill"),
        _signal_kind("SIGTERM", "the process is asked to end"),
        _signal_kind(
            "SIGSTOP",
            "the process stands still, and goes on after `for` seconds",
            targets=("workers", RANDOM, ALL, TRACKER),
            lasting=True,
            library_action="stop",
        ),
        FaultKind(
            "tracker_kill",
            "the tracker dies by SIGKILL, and is started again after `for` seconds",
            lambda target, _: TrackerKill(target, "SIGKILL"),
            targets=(TRACKER,),
            lasting=True,
            usually_for_s=0.5,
            library_action="kill",
        ),
    ]
)
