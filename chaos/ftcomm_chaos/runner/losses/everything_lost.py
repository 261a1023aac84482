"""The fault that kills all workers and the tracker at one moment; the same command goes on."""

import random
import sys

from ftcomm.config.plurals import counted
from ftcomm_chaos.faults.fault_kinds import (
    ALL,
    FaultKind,
    Hit,
    Preparation,
    RunningJob,
    register,
)
from ftcomm_chaos.report.attribution import EVERYTHING


class EverythingLostFault:
    """SIGKILL of all workers and the tracker; `undo` gives the same command again."""

    def missing(self) -> str:
        """Linux alone ends workers with their launcher."""
        return "" if sys.platform == "linux" else "lose_all needs Linux (a parent's death signal)"

    async def prepare(self, run: Preparation) -> None:
        """The session gives the run a store; nothing else is needed."""

    async def fire(self, job: RunningJob, dice: random.Random) -> Hit:
        """Kill all, and return when all are gone."""
        del dice
        died = tuple(await job.lose_everything())
        killed = counted(len(died), "process", "processes")
        return Hit((), f"everything lost: {killed} killed at once", died)

    async def undo(self, job: RunningJob) -> None:
        """Give the same command again."""
        await job.resume()


register(
    [
        FaultKind(
            EVERYTHING,
            "all workers and the tracker die at once by SIGKILL; after `for` seconds the same"
            " command goes on from the newest checkpoint of the run's store",
            lambda *_: EverythingLostFault(),
            targets=(ALL,),
            lasting=True,
            usually_for_s=0.2,
        )
    ]
)
