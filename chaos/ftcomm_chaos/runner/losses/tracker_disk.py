"""The fault that takes the tracker and its directory; the next tracker asks the workers."""

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ftcomm_chaos.faults.fault_kinds import (
    TRACKER,
    FaultKind,
    Hit,
    NotDeliveredError,
    register,
)
from ftcomm_chaos.report.attribution import EVERYTHING
from ftcomm_chaos.runner.signal_faults import SignalFault

if TYPE_CHECKING:
    from ftcomm_chaos.runner.job import LiveJob

DISK_LOST = "tracker_disk_lost"


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


register(
    [
        FaultKind(
            DISK_LOST,
            "the tracker dies by SIGKILL and its directory is removed; after `for` seconds"
            " `serve --rebuild` takes its place",
            lambda target, _: TrackerDiskLost(target, "SIGKILL"),
            targets=(TRACKER,),
            lasting=True,
            usually_for_s=0.5,
            library_action="kill",
            not_with=(EVERYTHING,),
        )
    ]
)
