"""Allocations: which part of a shared window holds which result; pure.

An allocation has a row of flags in the memory itself, one for each rank that may still look into
it, so that an allocation is free when its row is.  Who places results (rank 0) is told only when it
has released an allocation itself, and then looks for the others' flags when it next needs one.

What is free and has pages is joined with its neighbours and cut again to any size, so memory for
results of many sizes is as much as for results of one.  Pages are kept as `Peaks` allows.
"""

import sys
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ftcomm.config.peak_usage import Peaks
from ftcomm.transport.address_ranges import Span, Spans

PAGE = 4096
SPIN_LIMIT = 16  # at a time, at what others may hold for long


class Allocation(NamedTuple):
    """Whole pages of shared window.

    Attributes:
        start: offset of the first byte.
        nbytes: how many.
        row: number of its flags.
    """

    start: int
    nbytes: int
    row: int


class NewAllocation(NamedTuple):
    """Allocation of a result, with the steps that it requires, in this order.

    Attributes:
        allocation: for the result.
        emptied: whose pages are given back.
        fresh: the part of the allocation that has no pages; they must be taken.
    """

    allocation: Allocation
    emptied: list[Span]
    fresh: Span


class WindowAllocator:
    """Cuts `nbytes` of memory into allocations, and what is free again into others.

    Args:
        nbytes: of the memory, whole pages.
        rows: how many allocations there may be at once.
        is_free: whether nobody looks into the allocation of a row any more.
        released: rows of allocations that rank 0 has released, filled by who makes this.
    """

    def __init__(
        self, nbytes: int, rows: int, is_free: Callable[[int], bool], released: deque[int]
    ) -> None:
        self._is_free = is_free
        self._released = released
        self._holes = Spans(Span(0, nbytes))  # free, and without pages
        self._spare = Spans()  # free, with pages
        self._rows = list(range(rows - 1, -1, -1))
        self._taken: dict[int, Allocation] = {}  # by row
        self._in_use = 0
        self._peaks = Peaks(nbytes)
        self._from_the_end = False
        self._no_room_from = sys.maxsize  # the least size that found none, until some is free

    @property
    def nbytes(self) -> int:
        """Bytes that have pages, in use or not."""
        return self._in_use + self._spare.nbytes

    def take(self, nbytes: int) -> NewAllocation | None:
        """An allocation of at least `nbytes`; None if there is no room."""
        size = -(-nbytes // PAGE) * PAGE
        self._look(SPIN_LIMIT)
        if not self._rows or size >= self._no_room_from:
            return None
        spare = self._spare.take(size, from_the_end=self._from_the_end)
        if spare is not None:
            return NewAllocation(self._took(spare), [], Span(spare.start, 0))
        emptied: list[Span] = []
        cut = self._cut(size)
        if cut is None and self._fits_in_all(size):
            emptied = self.give_back()
            cut = self._cut(size)
        if cut is None:
            self._no_room_from = size
            return None
        span, fresh = cut
        allocation = self._took(span)
        return NewAllocation(allocation, emptied + self._shed(), fresh)

    def put_back(self, allocation: Allocation) -> None:
        """An allocation that was just taken has no memory after all: it is a hole."""
        self._free(allocation.row)
        self._holes.add(Span(allocation.start, allocation.nbytes))
        self._no_room_from = allocation.nbytes

    def next_version(self) -> list[Span]:
        """A checkpoint dropped what the log held: what is not needed any more, to be emptied."""
        self._look(len(self._released))
        self._peaks.next_version(self._in_use)
        self._no_room_from = sys.maxsize
        # what was used last, and is still in a cache, is used first
        self._from_the_end = not self._from_the_end
        return self._shed()

    def give_back(self) -> list[Span]:
        """Make holes of all that is free, to be emptied."""
        self._look(len(self._released))
        return self._made_holes(self._spare.nbytes)

    def _took(self, span: Span) -> Allocation:
        allocation = Allocation(span.start, span.nbytes, self._rows.pop())
        self._taken[allocation.row] = allocation
        self._in_use += allocation.nbytes
        self._peaks.note(self._in_use)
        return allocation

    def _free(self, row: int) -> Allocation:
        allocation = self._taken.pop(row)
        self._in_use -= allocation.nbytes
        self._rows.append(row)
        return allocation

    def _look(self, most: int) -> None:
        """See whether what rank 0 has released is free, the oldest first."""
        for _ in range(min(most, len(self._released))):
            row = self._released.popleft()
            if self._is_free(row):
                allocation = self._free(row)
                self._spare.add(Span(allocation.start, allocation.nbytes))
                self._no_room_from = sys.maxsize
            else:
                self._released.append(row)

    def _shed(self) -> list[Span]:
        """Make holes of what is free and above the allowance, in whole pages."""
        if not self._spare.nbytes:
            return []
        above = self.nbytes - self._peaks.allowance
        return self._made_holes(-(-above // PAGE) * PAGE)

    def _made_holes(self, nbytes: int) -> list[Span]:
        emptied = self._spare.shed(nbytes)
        for span in emptied:
            self._holes.add(span)
        return emptied

    def _fits_in_all(self, size: int) -> bool:
        """There would be room if all that is free were holes."""
        return any(span.nbytes >= size for span in Spans(*self._holes, *self._spare))

    def _cut(self, size: int) -> tuple[Span, Span] | None:
        """A span of which as little as possible is a hole, and that part of it."""
        best: tuple[Span, Span] | None = None
        for hole in self._holes:
            before, behind = self._spare.ending_at(hole.start), self._spare.starting_at(hole.end)
            lacking = size - max(before, behind)
            if lacking > hole.nbytes or (best is not None and lacking >= best[1].nbytes):
                continue
            if before >= behind:
                best = Span(hole.start - before, size), Span(hole.start, lacking)
            else:
                best = Span(hole.end - lacking, size), Span(hole.end - lacking, lacking)
        if best is not None:
            span, fresh = best
            self._holes.remove(fresh)
            if lies_before := fresh.start - span.start:
                self._spare.remove(Span(span.start, lies_before))
            elif lies_behind := span.end - fresh.end:
                self._spare.remove(Span(fresh.end, lies_behind))
        return best
