"""The fault of plans that fills the tracker's disk."""

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftcomm.config.setting_kinds import MIB
from ftcomm_chaos.faults.fault_kinds import (
    TRACKER,
    FaultKind,
    Hit,
    NotDeliveredError,
    Parameter,
    Preparation,
    RunningJob,
    Target,
    register,
)
from ftcomm_chaos.faults.small_disk import FILLER, SmallDisk, missing


@dataclass(slots=True)
class DiskFull:
    """The tracker's state is on a disk of its own, which has no room for a while.

    A tracker that must write then ends, rather than announce what it cannot keep; workers go on
    without one.  When there is room again, it is started again.
    """

    target: Target
    mib: int
    _disk: SmallDisk | None = None

    def missing(self) -> str:
        """Mount namespaces."""
        return missing()

    async def prepare(self, run: Preparation) -> None:
        """Put the tracker's state on a small disk; one does for all such faults of a run."""
        known = run.shared.get("disk")
        if isinstance(known, SmallDisk):
            self._disk = known
            return
        run.own_tracker = True
        run.state_dir.mkdir(mode=0o700, parents=True)
        self._disk = disk = SmallDisk(run.state_dir, self.mib * MIB)
        run.shared["disk"] = run.at_end.enter_context(disk)
        run.tracker_prefix += disk.prefix
        run.options += ["--token-file", str(run.folder / "token")]  # supervisors see no such disk
        # What is on the disk goes with it; the report reads the tracker's records after the run.
        run.at_end.callback(
            shutil.copytree,
            disk.path,
            run.state_dir,
            ignore=shutil.ignore_patterns(FILLER),
            dirs_exist_ok=True,
        )

    async def fire(self, job: RunningJob, dice: random.Random) -> Hit:
        """Fill it."""
        del dice
        assert self._disk is not None
        if job.tracker is None:
            raise NotDeliveredError("no tracker runs")
        job.tracker_may_end = True
        written = self._disk.fill()
        return Hit((), f"the tracker's disk is full: {written} bytes were free")

    async def undo(self, job: RunningJob) -> None:
        """Make room, and start the tracker again if it has ended."""
        assert self._disk is not None
        self._disk.free()
        if job.tracker is None:
            await job.start_tracker()
        job.tracker_may_end = False


def _disk_full(target: Target, parameters: Mapping[str, Any]) -> DiskFull:
    return DiskFull(target, parameters["mib"])


register(
    [
        FaultKind(
            "disk_full",
            "the disk of the tracker's state has no room; a tracker that ends of it is started "
            "again after `for` seconds",
            _disk_full,
            (TRACKER,),
            {"mib": Parameter(8, "size of that disk", 1, 1024)},
            lasting=True,
            usually_for_s=2.0,
            not_with=("partition", "slow_link", "lossy_link"),
        )
    ]
)
