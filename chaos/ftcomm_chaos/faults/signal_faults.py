"""Faults that are signals: death, a polite death, a stop, the loss of everything or of a disk."""

import contextlib
import random
import signal
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ftcomm.config.plurals import counted
from ftcomm_chaos.faults.fault import TRACKER, Fault, Hit, NotDeliveredError, Preparation, Target
from ftcomm_chaos.faults.processes import JobProcess

if TYPE_CHECKING:
    from ftcomm_chaos.runner.job import LiveJob


@dataclass(slots=True)
class SignalFault(Fault):
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

    async def fire(self, job: "LiveJob", dice: random.Random) -> Hit:
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

    async def undo(self, job: "LiveJob") -> None:
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

    async def undo(self, job: "LiveJob") -> None:
        """Start it again."""
        if job.tracker is None:
            await job.start_tracker()


@dataclass(slots=True)
class TrackerDiskLost(SignalFault):
    """SIGKILL of the tracker; `undo` removes its directory and starts one that rebuilds."""

    async def fire(self, job: "LiveJob", dice: random.Random) -> Hit:
        """Kill the tracker; its directory is removed by `undo`.

        The next one takes the job up if all workers live.
        """
        if not job.is_whole or job.tracker is None:
            raise NotDeliveredError("a worker is being replaced, whom the next tracker would miss")
        job.expect_rebuild()
        hit = await SignalFault.fire(self, job, dice)
        return replace(hit, what=f"{hit.what}, whose directory is removed")

    async def undo(self, job: "LiveJob") -> None:
        """Start a tracker that has nothing but token and address."""
        await job.rebuild_tracker()


class EverythingLostFault(Fault):
    """SIGKILL of all workers and the tracker; `undo` gives the same command again.

    The session gives the run a store for it.
    """

    def missing(self) -> str:
        """Linux alone ends workers with their launcher."""
        return "" if sys.platform == "linux" else "lose_all needs Linux (a parent's death signal)"

    async def fire(self, job: "LiveJob", dice: random.Random) -> Hit:
        """Kill all, and return when all are gone."""
        del dice
        died = tuple(await job.lose_everything())
        killed = counted(len(died), "process", "processes")
        return Hit((), f"everything lost: {killed} killed at once", died)

    async def undo(self, job: "LiveJob") -> None:
        """Give the same command again."""
        await job.resume()


def _running(process: JobProcess | None, who: str) -> JobProcess:
    if process is None:
        raise NotDeliveredError(f"{who} does not run")
    return process
