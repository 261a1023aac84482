"""Valid input for the decoders of shared memory, by name."""

from dataclasses import replace

from ftcomm.transport.shared_window_allocator import PAGE, Allocation
from ftcomm.transport.shared_window_layout import (
    ROWS,
    pack_extent,
    pack_placed,
    pack_window_head,
    placed_part,
)
from ftcomm.transport.shm_layout import MIN_RING_BYTES, RING_BYTES, pack_head, words_of
from tests.fuzz.memory import COMMON, FIRST_WORD, PLACED, SEGMENT_NONCE, WORDS_BYTES


def segment_heads() -> dict[str, bytes]:
    return {f"{size}": pack_head(size, SEGMENT_NONCE) for size in (MIN_RING_BYTES, RING_BYTES)}


def window_heads() -> dict[str, bytes]:
    layouts = {"as-expected": COMMON, "of-three": replace(COMMON, ranks=3)}
    return {name: pack_window_head(layout, SEGMENT_NONCE) for name, layout in layouts.items()}


def window_allocations() -> dict[str, bytes]:
    """At both ends of the memory, and behind it."""
    position, nbytes = PLACED
    regions = {
        "first": Allocation(0, 2 * PAGE, 0),
        "last": Allocation(2 * PAGE, 2 * PAGE, ROWS - 1),
        "behind": Allocation(3 * PAGE, 2 * PAGE, 1),
        "no-row": Allocation(0, 2 * PAGE, ROWS),
    }
    return {name: pack_placed(position, region, nbytes) for name, region in regions.items()}


def window_extents() -> dict[str, bytes]:
    """The same without a row."""
    regions = {
        "all": Allocation(0, COMMON.nbytes, 0),
        "none": Allocation(COMMON.nbytes, 0, 0),
        "behind": Allocation(PAGE, COMMON.nbytes, 0),
        "odd": Allocation(PAGE, 5, 0),
    }
    return {name: pack_extent(region) for name, region in regions.items()}


def window_pages() -> dict[str, bytes]:
    """A head, who has joined, and a place."""

    def page(placed: bytes, joined: bytes) -> bytes:
        raw = bytearray(placed_part().stop)
        head = window_heads()["as-expected"]
        raw[: len(head)] = head
        raw[COMMON.joined()] = joined
        raw[placed_part()] = placed
        return bytes(raw)

    places = window_allocations()
    return {
        "placed": page(places["last"], b"\1\1"),
        "behind": page(places["behind"], b"\1\1"),
        "one-has-joined": page(places["first"], b"\1\0"),
    }


def segment_words() -> dict[str, bytes]:
    """Behind a head: at rest, with bytes to read, full; and thrice, as room is given and taken."""

    def page(**words: int) -> bytes:
        raw = memoryview(bytearray(WORDS_BYTES)).cast("Q")
        for name, value in words.items():
            raw[getattr(words_of(0), name) - FIRST_WORD] = value
        return raw.tobytes()

    return {
        "at-rest": page(their_waits_for_data=1, their_waits_for_room=1),
        "to-read": page(their_written=100),
        "read-all": page(their_read=MIN_RING_BYTES, their_written=MIN_RING_BYTES),
        "too-far": page(their_written=MIN_RING_BYTES + 1, their_read=2**64 - 1),
        "taken-back": page() + page(their_read=200) + page(their_read=120),
    }
