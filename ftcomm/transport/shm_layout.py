"""Layout of a shared segment and the required content of its head; no I/O.

A segment is a page of words, each of 8 bytes in the processor's own order, and behind it one ring
of bytes for each direction.  Every word has one writer.  Words of different writers lie 128 bytes
apart: two cache lines, since processors fetch lines in pairs.
"""

import struct
from typing import NamedTuple

from ftcomm.errors import ProtocolError

HEAD_BYTES = 4096  # the page before the rings
RING_BYTES = 1 << 20  # in each direction: both rings of a pair fit into a second-level cache
MIN_RING_BYTES = 4096  # a frame's header and something of its payload
MAX_RING_BYTES = 1 << 26  # nobody makes one of more
NONCE_BYTES = 16

_MAGIC = b"FTCOMMs1"  # its last character is the version of this layout
_HEAD = struct.Struct(f"=8sQ{NONCE_BYTES}s{NONCE_BYTES}s")
_ANSWER_AT = _HEAD.size - NONCE_BYTES
_APART = 16  # words
_FIRST = 2 * _APART  # word, behind the head


class Words(NamedTuple):
    """The numbers of one side's words, and where its rings begin.

    Attributes:
        written: bytes ever put into the ring that this side writes; its own.
        waits_for_room: number of the sleep from which this side wants to be woken when there is
            room, 0 while it is awake; its own.
        read: bytes ever taken from the ring that this side reads; its own.
        waits_for_data: as `waits_for_room`, for bytes to read; its own.
        their_written: the peer's.
        their_waits_for_room: the peer's.
        their_read: the peer's.
        their_waits_for_data: the peer's.
        writes: number of the ring that this side writes, 0 or 1.
    """

    written: int
    waits_for_room: int
    read: int
    waits_for_data: int
    their_written: int
    their_waits_for_room: int
    their_read: int
    their_waits_for_data: int
    writes: int


def words_of(side: int) -> Words:
    """Of the dialler (0) or the listener (1); each writes the ring of its own number."""
    outgoing, incoming = (_FIRST + 2 * _APART * ring for ring in (side, 1 - side))
    return Words(
        written=outgoing,
        waits_for_room=outgoing + 1,
        read=incoming + _APART,
        waits_for_data=incoming + _APART + 1,
        their_written=incoming,
        their_waits_for_room=incoming + 1,
        their_read=outgoing + _APART,
        their_waits_for_data=outgoing + _APART + 1,
        writes=side,
    )


def segment_bytes(ring_bytes: int) -> int:
    """Size of a segment with two rings of so many bytes."""
    return HEAD_BYTES + 2 * ring_bytes


def ring_at(ring: int, ring_bytes: int) -> int:
    """Offset of ring 0 or 1."""
    return HEAD_BYTES + ring * ring_bytes


def pack_head(ring_bytes: int, nonce: bytes) -> bytes:
    """The beginning of a new segment; the place of the answer is empty."""
    return _HEAD.pack(_MAGIC, ring_bytes, nonce, b"")


def answer_part() -> slice:
    """Return the part in which the listener writes its nonce."""
    return slice(_ANSWER_AT, _HEAD.size)


def unpack_head(raw: bytes, nbytes: int, nonce: bytes) -> int:
    """Bytes of each ring of a segment that somebody else made.

    Args:
        raw: its first page.
        nbytes: of the whole segment, as the system says.
        nonce: what its maker has said that it wrote there.

    Raises:
        ProtocolError: it is no such segment.
    """
    if len(raw) < _HEAD.size:
        raise ProtocolError(f"a shared segment of {len(raw)} bytes")
    magic, ring_bytes, seen, _ = _HEAD.unpack_from(raw)
    if magic != _MAGIC:
        raise ProtocolError(f"no shared segment of this version: it begins with {magic!r}")
    if seen != nonce:
        raise ProtocolError("another shared segment than the one that was spoken of")
    power = ring_bytes & (ring_bytes - 1) == 0
    if not (power and MIN_RING_BYTES <= ring_bytes <= MAX_RING_BYTES):
        raise ProtocolError(f"a shared segment with rings of {ring_bytes} bytes")
    if nbytes != segment_bytes(ring_bytes):
        raise ProtocolError(f"a shared segment of {nbytes} bytes, its rings have {ring_bytes}")
    return int(ring_bytes)
