"""Layout of the shared window and the required content of its head; no I/O.

    page 0      head | a byte for each rank that has joined | what rank 0 has placed last
    flags       a row for each allocation, in it a byte for each rank: it may still look there
    extents     where the allocation of each row is
    data        allocations, whole pages

A byte of flags is set by rank 0 when it places a result, and cleared by the rank that it is for.
What rank 0 says of extents is for those who give pages back when the epoch is over.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ftcomm.errors import ProtocolError
from ftcomm.protocol.position import Position
from ftcomm.transport.address_ranges import Span
from ftcomm.transport.shared_window_allocator import PAGE, Allocation
from ftcomm.transport.shm_layout import NONCE_BYTES

MAX_RANKS = 256  # of one host; with more, every rank has a log of its own
ROWS = 4096  # results at a time; where there are more, the others are kept by each rank for itself
JOINED_AT = 512
JOINED, LOCKED = 1, 2  # what a rank that has joined says; if locked, its lock says whether it lives

_MAGIC = b"FTCOMMc2"  # its last character is the version of this layout
_HEAD = struct.Struct(f"=8sQQ{NONCE_BYTES}s")
_PLACED_AT = 1024
_PLACED = struct.Struct("=qqqQQQ")  # a position, and an allocation with the result's own size
_EXTENT = struct.Struct("=QQ")


@dataclass(frozen=True)  # without slots: what follows from the sizes is computed once
class WindowLayout:
    """Sizes of one shared window.

    Attributes:
        ranks: that share it.
        nbytes: for results, whole pages.
    """

    ranks: int
    nbytes: int

    @cached_property
    def data_at(self) -> int:
        """Offset of the first allocation."""
        return self._extents_at + ROWS * _EXTENT.size

    @property
    def total(self) -> int:
        """Bytes of all of it."""
        return self.data_at + self.nbytes

    @cached_property
    def _extents_at(self) -> int:
        return PAGE + -(-ROWS * self.ranks // PAGE) * PAGE

    def extent(self, row: int) -> slice:
        """Return the part that holds the place of that row's allocation."""
        start = self._extents_at + row * _EXTENT.size
        return slice(start, start + _EXTENT.size)

    def joined(self) -> slice:
        """The bytes that say who has joined."""
        return slice(JOINED_AT, JOINED_AT + self.ranks)

    def flags(self, row: int) -> slice:
        """The row of flags of that number."""
        return slice(PAGE + row * self.ranks, PAGE + (row + 1) * self.ranks)


def pack_window_head(layout: WindowLayout, nonce: bytes) -> bytes:
    """The beginning of new shared window."""
    return _HEAD.pack(_MAGIC, layout.ranks, layout.nbytes, nonce)


def unpack_window_head(raw: bytes, nbytes: int, ranks: int, nonce: bytes) -> WindowLayout:
    """Read the layout from the head of another rank's shared window.

    Args:
        raw: its first page.
        nbytes: of the whole, as the system says.
        ranks: that should share it.
        nonce: what its maker has said that it wrote there.

    Raises:
        ProtocolError: it is no such memory.
    """
    if len(raw) < _HEAD.size:
        raise ProtocolError(f"shared window of {len(raw)} bytes")
    magic, theirs, size, seen = _HEAD.unpack_from(raw)
    if magic != _MAGIC:
        raise ProtocolError(f"no shared window of this version: it begins with {magic!r}")
    if seen != nonce:
        raise ProtocolError("other shared window than the one that was spoken of")
    layout = WindowLayout(theirs, size)
    if theirs != ranks or size % PAGE or not size or layout.total != nbytes:
        raise ProtocolError(f"shared window of {nbytes} bytes for {theirs} ranks and {size} bytes")
    return layout


def pack_extent(allocation: Allocation) -> bytes:
    """Encode the place of `allocation`."""
    return _EXTENT.pack(allocation.start, allocation.nbytes)


def unpack_extent(raw: bytes, layout: WindowLayout) -> Span:
    """Decode the place of an allocation that rank 0 wrote.

    Raises:
        ProtocolError: it is nowhere in this memory.
    """
    span = Span(*_EXTENT.unpack(raw))
    if span.start % PAGE or span.nbytes % PAGE or span.end > layout.nbytes:
        raise ProtocolError(f"an allocation of {span.nbytes} bytes at {span.start}")
    return span


def gaps(spans: Iterable[Span], nbytes: int) -> list[Span]:
    """List the gaps between `spans` in memory of so many bytes."""
    found, at = [], 0
    for span in (*sorted(spans), Span(nbytes, 0)):
        if span.start > at:
            found.append(Span(at, span.start - at))
        at = max(at, span.end)
    return found


def placed_part() -> slice:
    """Return the part in which rank 0 writes the place of a result."""
    return slice(_PLACED_AT, _PLACED_AT + _PLACED.size)


def pack_placed(position: Position, allocation: Allocation, nbytes: int) -> bytes:
    """The result of `position`, of so many bytes, is in `allocation`."""
    return _PLACED.pack(*position, allocation.start, nbytes, allocation.row)


def unpack_placed(raw: bytes, layout: WindowLayout, position: Position, nbytes: int) -> Allocation:
    """Decode the place of the result of `position`.

    Raises:
        ProtocolError: that is not what is written there, or it is nowhere in this memory.
    """
    *place, start, size, row = _PLACED.unpack(raw)
    if tuple(place) != position or size != nbytes:
        raise ProtocolError(
            f"shared window has a place for {size} bytes of {place}, not for {nbytes} of {position}"
        )
    pages = -(-nbytes // PAGE) * PAGE
    if start % PAGE or start + pages > layout.nbytes or row >= ROWS:
        raise ProtocolError(f"a result of {nbytes} bytes placed at {start} in row {row}")
    return Allocation(start, pages, row)
