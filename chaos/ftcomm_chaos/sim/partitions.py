"""Pairs of workers between which nothing passes, and the ways around them (rule R12)."""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

Names = frozenset[str]  # two worker ids


class PathLoss(enum.Enum):
    """Effect of a partition on a process that connects."""

    REFUSED = "refused"
    SILENT = "silent"  # it connects, and then nothing comes
    ONE_WAY = "one way"  # nothing comes from the one whose name is the first
    LARGE = "large"  # it connects, and small packets pass; nothing behind a large one comes


@dataclass(frozen=True, slots=True)
class NetworkPath:
    """Path between two processes: direct, or `via` a relay; `hurdle` if data is lost."""

    via: "SimulatedProcess | None" = None
    hurdle: PathLoss | None = None


@dataclass(slots=True)
class Partitions:
    """Partitions between workers, for all their incarnations."""

    standing: dict[Names, PathLoss] = field(default_factory=dict)
    ever: set[Names] = field(default_factory=set)

    def put_up(self, names: Names, hurdle: PathLoss) -> None:
        """From now on."""
        self.standing[names] = hurdle
        self.ever.add(names)

    def take_down(self, names: Names) -> None:
        """The network is repaired; what was connected meanwhile stays as it is."""
        self.standing.pop(names, None)

    def between(self, one: "SimulatedProcess", other: "SimulatedProcess") -> PathLoss | None:
        """Return the partition between two incarnations; None if they reach each other."""
        return self.standing.get(frozenset((one.worker_id, other.worker_id)))

    def straight(self, process: "SimulatedProcess", far: "SimulatedProcess") -> NetworkPath | None:
        """The direct way; None if there is none."""
        hurdle = self.between(process, far)
        return None if hurdle is PathLoss.REFUSED else NetworkPath(hurdle=hurdle)

    def through(
        self,
        epoch: int,
        process: "SimulatedProcess",
        via: "SimulatedProcess",
        far: "SimulatedProcess",
    ) -> "NetworkPath | SimulatedProcess":
        """The way through a relay; or who finds out that it ends there: `process`, or the relay."""
        hops = (self.between(process, via), self.between(via, far))
        if hops[0] is PathLoss.REFUSED or not via.accepts(epoch):
            return process
        if hops[1] is PathLoss.REFUSED:
            return via
        lost = {hop for hop in hops if hop is not None}
        hurdle = PathLoss.LARGE if lost == {PathLoss.LARGE} else PathLoss.SILENT
        return NetworkPath(via, hurdle if lost else None)
