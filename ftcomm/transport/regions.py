"""Regions: which part of common memory holds which result; pure.

A region has a row of flags in the memory itself, one for each rank that may still look into it, so
that a region is free when its row is.  Who places results (rank 0) is told only when it has let go
of a region itself, and then looks for the others' flags when it next needs one.
"""

import sys
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

PAGE = 4096
# A program does not do the same in all versions: what so many in a row did not need is given back.
KEPT_VERSIONS = 4
LOOKS = 16  # at a time, at what others may hold for long


class Region(NamedTuple):
    """Whole pages of common memory.

    Attributes:
        start: offset of the first byte.
        nbytes: how many.
        row: number of its flags.
    """

    start: int
    nbytes: int
    row: int


class Regions:
    """Cuts `nbytes` of memory into regions, and finds free ones again, by size.

    Args:
        nbytes: of the memory, whole pages.
        rows: how many regions there may be at once.
        is_free: whether nobody looks into the region of a row any more.
        released: rows of regions that rank 0 has let go of, filled by who makes this.
    """

    def __init__(
        self, nbytes: int, rows: int, is_free: Callable[[int], bool], released: deque[int]
    ) -> None:
        self._is_free = is_free
        self._released = released
        self._holes = [(0, nbytes)]  # never cut, or given back: start and size, ascending
        self._rows = list(range(rows - 1, -1, -1))
        self._taken: dict[int, Region] = {}  # by row
        self._free: dict[int, list[Region]] = {}  # by size; the newest, still in a cache, last
        self._used: dict[int, int] = {}  # the version in which a size was last asked for
        self._version = 0
        self._no_room_from = sys.maxsize  # the least size that found none, until some is free

    def take(self, nbytes: int) -> tuple[Region, list[Region] | None] | None:
        """A region of at least `nbytes`; None if there is no room.

        Returns:
            With a region that was just cut: those of which holes had to be made for it, which may
            overlap with it.  With one that is used again: None.
        """
        size = -(-nbytes // PAGE) * PAGE
        self._used[size] = self._version
        self._look(LOOKS)
        free = self._free.get(size)
        if free:
            return self._took(free.pop()), None
        if size >= self._no_room_from:
            return None
        region, emptied = self._cut(size), []
        if region is None:
            emptied = self.give_back(0)
            region = self._cut(size)
        if region is None:
            self._no_room_from = size
            return None
        return self._took(region), emptied

    def put_back(self, region: Region) -> None:
        """A region that was just cut has no memory after all."""
        del self._taken[region.row]
        self._make_holes([region])
        self._no_room_from = region.nbytes

    def next_version(self) -> list[Region]:
        """A checkpoint dropped what the log held: what is not needed any more."""
        self._version += 1
        self._no_room_from = sys.maxsize
        given = self.give_back(KEPT_VERSIONS)
        oldest = self._version - KEPT_VERSIONS
        self._used = {size: used for size, used in self._used.items() if used > oldest}
        return given

    def give_back(self, versions: int) -> list[Region]:
        """Make holes of free regions of sizes that so many versions did not ask for."""
        self._look(len(self._released))
        newest = self._version - versions
        unused = [size for size in self._free if self._used.get(size, -1) <= newest]
        given = [region for size in unused for region in self._free.pop(size)]
        self._make_holes(given)
        return given

    def _took(self, region: Region) -> Region:
        self._taken[region.row] = region
        return region

    def _look(self, most: int) -> None:
        """See whether what rank 0 has released is free, the oldest first."""
        for _ in range(min(most, len(self._released))):
            row = self._released.popleft()
            if self._is_free(row):
                region = self._taken.pop(row)
                self._free.setdefault(region.nbytes, []).append(region)
                self._no_room_from = sys.maxsize
            else:
                self._released.append(row)

    def _make_holes(self, regions: list[Region]) -> None:
        self._rows += [region.row for region in regions]
        self._holes = _joined([*self._holes, *((start, size) for start, size, _ in regions)])

    def _cut(self, size: int) -> Region | None:
        if not self._rows:
            return None
        for index, (start, room) in enumerate(self._holes):
            if room >= size:
                self._holes[index : index + 1] = [(start + size, room - size)] * (room > size)
                return Region(start, size, self._rows.pop())
        return None


def _joined(holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Holes in order, neighbours made one."""
    joined: list[tuple[int, int]] = []
    for start, size in sorted(holes):
        if joined and sum(joined[-1]) == start:
            joined[-1] = joined[-1][0], joined[-1][1] + size
        else:
            joined.append((start, size))
    return joined
