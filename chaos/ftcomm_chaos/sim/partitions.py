"""Pairs of workers between which nothing passes, and the ways around them (rule R12)."""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import Life

Names = frozenset[str]  # two worker ids


class Hurdle(enum.Enum):
    """What happens to who tries."""

    REFUSED = "refused"
    SILENT = "silent"  # it connects, and then nothing comes
    ONE_WAY = "one way"  # nothing comes from the one whose name is the first


@dataclass(frozen=True, slots=True)
class Way:
    """How one life reaches another: straight, or `via` a relay; `hurdle` if something is lost."""

    via: "Life | None" = None
    hurdle: Hurdle | None = None


@dataclass(slots=True)
class Barriers:
    """What stands between workers, whichever lives they have."""

    standing: dict[Names, Hurdle] = field(default_factory=dict)
    ever: set[Names] = field(default_factory=set)

    def put_up(self, names: Names, hurdle: Hurdle) -> None:
        """From now on."""
        self.standing[names] = hurdle
        self.ever.add(names)

    def take_down(self, names: Names) -> None:
        """The network is mended; what was connected meanwhile stays as it is."""
        self.standing.pop(names, None)

    def between(self, one: "Life", other: "Life") -> Hurdle | None:
        """What stands between two lives; None if they reach each other."""
        return self.standing.get(frozenset((one.worker_id, other.worker_id)))

    def straight(self, life: "Life", far: "Life") -> Way | None:
        """The direct way; None if there is none."""
        hurdle = self.between(life, far)
        return None if hurdle is Hurdle.REFUSED else Way(hurdle=hurdle)

    def through(self, epoch: int, life: "Life", via: "Life", far: "Life") -> "Way | Life":
        """The way through a relay; or who finds out that it ends there: `life`, or the relay."""
        hops = (self.between(life, via), self.between(via, far))
        if hops[0] is Hurdle.REFUSED or not via.accepts(epoch):
            return life
        if hops[1] is Hurdle.REFUSED:
            return via
        return Way(via, Hurdle.SILENT if any(hops) else None)
