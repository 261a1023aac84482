"""Pieces: how bytes are received of which a peer has said how many will come.

Memory for a piece is taken when the one before has come, and each is at most as large as all before
it: who only announces much makes nobody take more than the first, and many bytes are few pieces.
Sender and receiver of a collective cut alike.
"""

from collections.abc import Iterator

FIRST_PIECE_BYTES = 16 << 20  # what every worker has to spare; most items are not larger
STATE_LIMIT = 1 << 40  # bytes of a state or local state; far below what breaks arithmetic


def pieces(nbytes: int) -> Iterator[slice]:
    """The pieces of `nbytes` bytes in order; one that is empty if there are none."""
    start = 0
    while True:
        stop = min(nbytes, start + max(start, FIRST_PIECE_BYTES))
        yield slice(start, stop)
        if stop == nbytes:
            return
        start = stop
