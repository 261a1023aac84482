"""Spans: parts of a memory in the order of their addresses, neighbours joined; pure."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """Bytes that follow each other.

    Attributes:
        start: offset of the first one.
        nbytes: how many.
    """

    start: int
    nbytes: int

    @property
    def end(self) -> int:
        """Offset behind the last one."""
        return self.start + self.nbytes


class Spans:
    """A set of bytes.

    Attributes:
        nbytes: how many there are.
    """

    def __init__(self, *spans: Span) -> None:
        self._spans: list[Span] = []
        self.nbytes = 0
        for span in spans:
            self.add(span)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def add(self, span: Span) -> None:
        """Join bytes of which none is in the set."""
        spans, (start, nbytes) = self._spans, span
        self.nbytes += nbytes
        index = bisect_left(spans, span)
        if index < len(spans) and spans[index].start == start + nbytes:
            nbytes += spans.pop(index).nbytes
        if index and spans[index - 1].end == start:
            index -= 1
            start, nbytes = spans[index].start, spans.pop(index).nbytes + nbytes
        spans.insert(index, Span(start, nbytes))

    def take(self, nbytes: int, *, from_the_end: bool) -> Span | None:
        """So many bytes of the first span that has them, or of the last one; None if none has."""
        order = range(len(self._spans))
        for index in reversed(order) if from_the_end else order:
            start, most = self._spans[index]
            if most < nbytes:
                continue
            self.nbytes -= nbytes
            if most == nbytes:
                return self._spans.pop(index)
            left = most - nbytes
            if from_the_end:
                self._spans[index] = Span(start, left)
                return Span(start + left, nbytes)
            self._spans[index] = Span(start + nbytes, left)
            return Span(start, nbytes)
        return None

    def remove(self, part: Span) -> None:
        """Take bytes out that are all in one span."""
        self._cut(bisect_left(self._spans, (part.start + 1,)) - 1, part)

    def ending_at(self, end: int) -> int:
        """Bytes of the span that ends there; 0 if there is none."""
        index = bisect_left(self._spans, (end,)) - 1
        return self._spans[index].nbytes if index >= 0 and self._spans[index].end == end else 0

    def starting_at(self, start: int) -> int:
        """Bytes of the span that starts there; 0 if there is none."""
        index = bisect_left(self._spans, (start,))
        if index == len(self._spans) or self._spans[index].start != start:
            return 0
        return self._spans[index].nbytes

    def shed(self, nbytes: int) -> list[Span]:
        """Take so many bytes out, or all that there are, those at the end first."""
        parts = []
        while nbytes > 0 and self._spans:
            index = len(self._spans) - 1
            last = self._spans[index]
            count = min(nbytes, last.nbytes)
            parts.append(self._cut(index, Span(last.end - count, count)))
            nbytes -= count
        return parts

    def _cut(self, index: int, part: Span) -> Span:
        span = self._spans[index]
        before = Span(span.start, part.start - span.start)
        behind = Span(part.end, span.end - part.end)
        self._spans[index : index + 1] = [left for left in (before, behind) if left.nbytes]
        self.nbytes -= part.nbytes
        return part
