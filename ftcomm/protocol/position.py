"""Position: the name of one collective, ordered as the program runs.

The prelude (everything before ``load_checkpoint()``) is version -1, and
``load_checkpoint`` is its last position.  ``checkpoint`` is the position after the
last collective of its version; once committed, the next position is
``(branch, version + 1, 0)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ftcomm.protocol.field_types import RUNS_OF_A_FRAME, U32, Stride
from ftcomm.protocol.schema import AtMost, Int

PRELUDE = -1
# Collectives in one version, and results that one report may list: more would make a plan take
# seconds. A program that needs more calls checkpoint() in between.
MAX_SEQNO = 1 << 22
MAX_VERSION = 2**31 - 1
Version = Annotated[int, Int(PRELUDE, MAX_VERSION)]  # also -1 for "none"


class Position(NamedTuple):
    """``(branch, version, seqno)``; a worker's own position is what it will complete next."""

    branch: U32
    version: Version
    seqno: U32

    @property
    def past_load(self) -> bool:
        """True once the worker's prelude has ended."""
        return self.version > PRELUDE

    def next(self) -> "Position":
        """The position after an ordinary collective."""
        return Position(self.branch, self.version, self.seqno + 1)

    def at_version(self, version: int) -> "Position":
        """The first position of `version` on the same branch."""
        return Position(self.branch, version, 0)

    def __str__(self) -> str:
        prefix = f"{self.branch}:" if self.branch else ""
        return f"{prefix}{self.version}.{self.seqno}"


START = Position(0, PRELUDE, 0)


@dataclass(frozen=True, slots=True)
class PositionRange:
    """The positions ``(branch, version, lo), lo+step, ... < hi`` of one version."""

    version: Version
    lo: U32
    hi: U32
    step: Stride = 1

    def seqnos(self) -> range:
        """The sequence numbers that the run names."""
        return range(self.lo, self.hi, self.step)


PositionRanges = Annotated[tuple[PositionRange, ...], AtMost(RUNS_OF_A_FRAME)]


def can_be_held(runs: Sequence[PositionRange]) -> bool:
    """Tell whether an honest worker can hold the results of these runs of one version.

    The tracker counts them one by one; a frame has room for runs that would take it years.
    """
    held = sum(len(run.seqnos()) for run in runs)
    return (
        all(run.lo < run.hi for run in runs) and max([held, *(run.hi for run in runs)]) <= MAX_SEQNO
    )
