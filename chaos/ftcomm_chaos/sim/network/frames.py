"""Frames between two workers in one epoch."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ftcomm.errors import ProtocolError
from ftcomm.protocol.frame_header import FrameHeader
from ftcomm.protocol.position import Position
from ftcomm_chaos.sim.world import Violation

if TYPE_CHECKING:
    from ftcomm_chaos.sim.worker.process import SimulatedProcess


SMALL_ITEMS = 2  # of a frame that passes where large packets vanish


class Frame(NamedTuple):
    """One step's block with its header."""

    header: FrameHeader
    payload: tuple[Any, ...]


@dataclass(eq=False)
class FrameStream:
    """One connection between two processes in one epoch."""

    epoch: int
    ends: tuple["SimulatedProcess", "SimulatedProcess"]
    ranks: tuple[int, int]  # of the ends, in this epoch: the far one may not know its own yet
    broken: bool = False
    silent: bool = False  # swallows everything, and nobody is told (rule R12)
    has_hole: bool = False  # becomes so with the first large frame
    via: "SimulatedProcess | None" = None  # who passes everything on
    arrives: dict[int, float] = field(default_factory=dict)  # by receiver: order is kept

    def other(self, process: "SimulatedProcess") -> "SimulatedProcess":
        """The far end."""
        return self.ends[1] if process is self.ends[0] else self.ends[0]

    def other_rank(self, process: "SimulatedProcess") -> int:
        """The far end's rank."""
        return self.ranks[1] if process is self.ends[0] else self.ranks[0]


def check_frame(frame: Frame, epoch: int, position: Position, tag: int) -> None:
    """A stream of one epoch carries the frames of one order of positions, or someone is ahead."""
    header = frame.header
    if (header.epoch, header.position, header.step) != (epoch, position, tag):
        raise Violation(
            f"a frame of epoch {header.epoch}, collective {header.position}, step {header.step} "
            f"came where epoch {epoch}, collective {position}, step {tag} was due"
        )
    if header.length != len(frame.payload):
        raise ProtocolError("a frame is shorter than its header says")
