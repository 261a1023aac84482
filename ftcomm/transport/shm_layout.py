"""Layout of the rings in a host's segment, by which each two of its ranks are linked; no I/O.

Each pair of ranks has two rings of bytes, one for each direction, and words of 8 bytes in the
processor's own order.  The words of all pairs come first.  Every word has one writer.  Words of
different writers lie 128 bytes apart: two cache lines, since processors fetch lines in pairs.
"""

from typing import NamedTuple

WORDS_BYTES = 512  # of a pair
MAX_RING_BYTES = 1 << 20  # both rings of a pair fit into a second-level cache
MIN_RING_BYTES = 4096  # a frame's header and something of its payload
RINGS_BYTES = 16 << 20  # of all rings of a segment; beyond that they are smaller

_PAGE_BYTES = 4096
_APART = 16  # words


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


class RingPair(NamedTuple):
    """The rings of two ranks, as one of them sees them.

    Attributes:
        words_at: offset of their words.
        rings_at: offset of ring 0, which ring 1 follows.
        ring_bytes: of each ring, a power of two.
        side: of the lower rank (0) or the higher one (1); each writes the ring of its own number.
    """

    words_at: int
    rings_at: int
    ring_bytes: int
    side: int


def words_of(side: int) -> Words:
    """Of the lower rank (0) or the higher one (1)."""
    outgoing, incoming = (2 * _APART * ring for ring in (side, 1 - side))
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


def ring_bytes(ranks: int) -> int:
    """Size of each ring of a host with `ranks` ranks."""
    fair = RINGS_BYTES // (ranks * (ranks - 1))
    return max(MIN_RING_BYTES, min(MAX_RING_BYTES, 1 << fair.bit_length() - 1))


def rings_bytes(ranks: int) -> int:
    """Size of the words and rings of all pairs."""
    return _words_bytes(ranks) + ranks * (ranks - 1) * ring_bytes(ranks)


def ring_pair(ranks: int, rank: int, peer: int, at: int) -> RingPair:
    """The rings between `rank` and `peer`; those of all pairs begin at offset `at`."""
    low, high = sorted((rank, peer))
    pair = low * ranks - low * (low + 1) // 2 + high - low - 1
    size = ring_bytes(ranks)
    rings_at = at + _words_bytes(ranks) + 2 * pair * size
    return RingPair(at + pair * WORDS_BYTES, rings_at, size, int(rank > peer))


def _words_bytes(ranks: int) -> int:
    """Of all pairs, in whole pages."""
    return -(-ranks * (ranks - 1) // 2 * WORDS_BYTES // _PAGE_BYTES) * _PAGE_BYTES
