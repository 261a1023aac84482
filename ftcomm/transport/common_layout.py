"""Where things are in common memory, and what its head must say; no I/O.

    page 0      head | a byte for each rank that has joined | what rank 0 has placed last
    flags       a row for each region, in it a byte for each rank: it may still look there
    data        regions, whole pages

A byte of flags is set by rank 0 when it places a result, and cleared by the rank that it is for.
"""

import struct
from typing import NamedTuple

from ftcomm.errors import ProtocolError
from ftcomm.protocol.position import Position
from ftcomm.transport.layout import NONCE_BYTES
from ftcomm.transport.regions import PAGE, Region

MAX_RANKS = 256  # of one host; with more, every rank has a log of its own
ROWS = 4096  # results at a time; where there are more, the others are kept by each rank for itself
JOINED_AT = 512

_MAGIC = b"FTCOMMc1"  # its last character is the version of this layout
_HEAD = struct.Struct(f"=8sQQ{NONCE_BYTES}s")
_PLACED_AT = 1024
_PLACED = struct.Struct("=qqqQQQ")  # a position, and a region with the result's own size


class Layout(NamedTuple):
    """Sizes of one common memory.

    Attributes:
        ranks: that have it in common.
        nbytes: for results, whole pages.
    """

    ranks: int
    nbytes: int

    @property
    def data_at(self) -> int:
        """Offset of the first region."""
        return PAGE + -(-ROWS * self.ranks // PAGE) * PAGE

    @property
    def total(self) -> int:
        """Bytes of all of it."""
        return self.data_at + self.nbytes

    def joined(self) -> slice:
        """The bytes that say who has joined."""
        return slice(JOINED_AT, JOINED_AT + self.ranks)

    def flags(self, row: int) -> slice:
        """The row of flags of that number."""
        return slice(PAGE + row * self.ranks, PAGE + (row + 1) * self.ranks)


def pack_common_head(layout: Layout, nonce: bytes) -> bytes:
    """The beginning of new common memory."""
    return _HEAD.pack(_MAGIC, layout.ranks, layout.nbytes, nonce)


def unpack_common_head(raw: bytes, nbytes: int, ranks: int, nonce: bytes) -> Layout:
    """What somebody else's common memory says of itself.

    Args:
        raw: its first page.
        nbytes: of the whole, as the system says.
        ranks: that should have it in common.
        nonce: what its maker has said that it wrote there.

    Raises:
        ProtocolError: it is no such memory.
    """
    if len(raw) < _HEAD.size:
        raise ProtocolError(f"common memory of {len(raw)} bytes")
    magic, theirs, size, seen = _HEAD.unpack_from(raw)
    if magic != _MAGIC:
        raise ProtocolError(f"no common memory of this version: it begins with {magic!r}")
    if seen != nonce:
        raise ProtocolError("other common memory than the one that was spoken of")
    layout = Layout(theirs, size)
    if theirs != ranks or size % PAGE or not size or layout.total != nbytes:
        raise ProtocolError(f"common memory of {nbytes} bytes for {theirs} ranks and {size} bytes")
    return layout


def placed_part() -> slice:
    """Where rank 0 writes what it has placed."""
    return slice(_PLACED_AT, _PLACED_AT + _PLACED.size)


def pack_placed(position: Position, region: Region, nbytes: int) -> bytes:
    """The result of `position`, of so many bytes, is in `region`."""
    return _PLACED.pack(*position, region.start, nbytes, region.row)


def unpack_placed(raw: bytes, layout: Layout, position: Position, nbytes: int) -> Region:
    """Where the result of `position` is.

    Raises:
        ProtocolError: that is not what is written there, or it is nowhere in this memory.
    """
    *place, start, size, row = _PLACED.unpack(raw)
    if tuple(place) != position or size != nbytes:
        raise ProtocolError(
            f"common memory has a place for {size} bytes of {place}, not for {nbytes} of {position}"
        )
    pages = -(-nbytes // PAGE) * PAGE
    if start % PAGE or start + pages > layout.nbytes or row >= ROWS:
        raise ProtocolError(f"a result of {nbytes} bytes placed at {start} in row {row}")
    return Region(start, pages, row)
