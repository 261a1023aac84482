"""Layout of the segment through which the ranks of one host exchange payloads; no I/O.

First two cache lines per rank, in rank order: one with `ready`, `folded` and `cpu`, which the rank
writes in every call, and one with `bell` and `asleep`, which it writes only around a sleep.  Behind
them, on a page of their own, two slots per rank, used in turn.  A slot is a frame header and a
payload.

Larger payloads pass in chunks of a block for each rank.  Behind the slots each rank has DEPTH
windows of a chunk, in which it gives the others their blocks, and DEPTH places of a block for its
own one, reduced.  Chunks use them in turn.

`ready` counts the calls whose slot the rank has filled.  Slots are not acknowledged: a rank fills
the slot of call g + 2 after every rank has published g + 1, and so has left g.

`core.c` has the same constants.  Words are in the processor's own order, which must be
little-endian as the headers are.
"""

from typing import Final

from ftcomm.protocol.frame_header import HEADER_BYTES

DONE, INTERRUPTED = 0, -1  # what a call returns; above DONE 1 + the rank whose header differs

SMALL_BYTES: Final = 8192  # of one rank's payload; above it a copy costs more than a second barrier
MAX_RANKS: Final = 64  # of one host; a ring of the bell names its rank in 6 bits
HEAD_BYTES: Final = HEADER_BYTES

LINE_BYTES: Final = 64
PAGE_BYTES: Final = 4096
RANK_BYTES: Final = 2 * LINE_BYTES
READY_AT, FOLDED_AT, CPU_AT = 0, 8, 16  # u64, u64, u32
BELL_AT, ASLEEP_AT = LINE_BYTES, LINE_BYTES + 4  # u32, u32
SLOT_BYTES: Final = -(-(HEAD_BYTES + SMALL_BYTES) // LINE_BYTES) * LINE_BYTES
DEPTH: Final = 4  # chunks in flight: one copied in, one reduced, one copied out, one to spare
BLOCK_BYTES: Final = 128 * 1024  # most of a block: all operands of a fold fit into the caches
CHUNKS_BYTES: Final = 32 << 20  # of all chunks of a segment; beyond that blocks are smaller
CELL_BYTES: Final = 16 * 1024  # folded at once: in and out of the first-level cache


def segment_bytes(ranks: int) -> int:
    """Size of the segment of a host with `ranks` ranks."""
    return reduced_at(ranks, ranks, 0)


def block_bytes(ranks: int) -> int:
    """Largest block of a chunk, in whole pages."""
    fair = CHUNKS_BYTES // (DEPTH * ranks * (ranks + 1)) // PAGE_BYTES * PAGE_BYTES
    return max(PAGE_BYTES, min(BLOCK_BYTES, fair))


def chunk_bytes(ranks: int) -> int:
    """Bytes of a chunk; the last one of an array may be almost a cache line longer."""
    return ranks * block_bytes(ranks) - LINE_BYTES


def chunk_starts(nbytes: int, ranks: int) -> list[int]:
    """Offsets of the chunks of an array."""
    size = chunk_bytes(ranks)
    last = nbytes // size + (nbytes % size >= LINE_BYTES)
    return [index * size for index in range(max(last, 1))]


def cut(nbytes: int, ranks: int, rank: int) -> int:
    """Offset of the block of `rank` in a chunk of `nbytes`: at a whole cache line.

    Bytes behind the last whole one go with the block before, since numpy may keep the other one of
    two NaN where they are alone.
    """
    lines = nbytes // LINE_BYTES
    block = -(-lines // ranks)
    return nbytes if rank and block * rank >= lines else block * rank * LINE_BYTES


def slot_at(ranks: int, rank: int, call: int) -> int:
    """Offset of the slot that `rank` fills in its call of number `call`."""
    first = -(-ranks * RANK_BYTES // PAGE_BYTES) * PAGE_BYTES
    return first + (2 * rank + call % 2) * SLOT_BYTES


def window_at(ranks: int, rank: int, chunk: int) -> int:
    """Offset of the window in which `rank` gives away its chunk of number `chunk`."""
    first = -(-slot_at(ranks, ranks, 0) // PAGE_BYTES) * PAGE_BYTES
    return first + (rank * DEPTH + chunk % DEPTH) * ranks * block_bytes(ranks)


def reduced_at(ranks: int, rank: int, chunk: int) -> int:
    """Offset of the block that `rank` has reduced of the chunk of number `chunk`."""
    first = window_at(ranks, ranks, 0)
    return first + (rank * DEPTH + chunk % DEPTH) * block_bytes(ranks)
