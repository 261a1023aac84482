"""The form of a contributed call: how each rank's input is cut into parts (rule R20)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ftcomm.memory.pool import Array
from ftcomm.protocol.signature import LogMode

Extents = tuple[tuple[int, int], ...]  # for each rank, rows [lo, hi) of an input
Combine = Callable[[list[Array]], Array]


@dataclass(frozen=True, slots=True, eq=False)
class ContributedForm:
    """Common part of the calls of one line and one shape, of which each rank logs its own input.

    Attributes:
        shape: of the input, with at least one dimension. Where the number of rows differs from call
            to call, of one row.
        extents: for each rank, which rows of the input are its part; None where that differs.
        combine: makes this rank's result of the parts that all ranks give it, each a 1-D array, in
            rank order; None where they follow each other in the result.
        own: which elements are this rank's result once the schedule has run; None is all.
        lent: the input is left to the log until the next checkpoint, so it is not copied.
        log: what is kept; `BY_SIZE` where ranks tell each other their sizes first, and log all
            whole where these are small.
    """

    shape: tuple[int, ...]
    extents: Extents | None = None
    combine: Combine | None = None
    own: slice | None = None
    lent: bool = False
    log: LogMode = LogMode.CONTRIBUTIONS


def extents_of(counts: Sequence[int]) -> Extents:
    """Rows of ranks that follow each other, ``counts[r]`` for rank r."""
    return tuple(pairwise((0, *accumulate(counts))))


def all_to(root: int, rows: int, world_size: int) -> Extents:
    """All rows for one rank."""
    return tuple((0, rows) if rank == root else (0, 0) for rank in range(world_size))
