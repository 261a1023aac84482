"""Feeders of a peer's messages about shared memory, and of its writes there."""

import contextlib
import logging
import os
import socket
from types import SimpleNamespace
from typing import Any

from ftcomm.control.links import shm_setup
from ftcomm.control.links.shm_setup import answer_offer, offer_segment
from ftcomm.protocol.position import Position
from ftcomm.transport.shared_window import create_shared_window, receive_shared_window
from ftcomm.transport.shared_window_allocator import PAGE, Allocation
from ftcomm.transport.shared_window_layout import (
    WindowLayout,
    pack_extent,
    pack_placed,
    placed_part,
    unpack_extent,
    unpack_placed,
    unpack_window_head,
)
from ftcomm.transport.shm_layout import (
    HEAD_BYTES,
    MAX_RING_BYTES,
    MIN_RING_BYTES,
    NONCE_BYTES,
    segment_bytes,
    unpack_head,
    words_of,
)
from ftcomm.transport.shm_link import SharedLink
from ftcomm.transport.shm_segment import NoSharedMemory, Segment, make_segment, take_segment
from tests.fuzz.conversations import Script, run

SEGMENT_NONCE = bytes(range(NONCE_BYTES))
COMMON = WindowLayout(2, 4 * PAGE)
PLACED = Position(0, -1, 3), PAGE + 1  # what is looked for in shared window, and its bytes
PLACED_BYTES = placed_part().stop - placed_part().start
FIRST_WORD = min(words_of(0)[:8])  # everything behind the head
WORDS_BYTES = 8 * (1 + max(words_of(0)[:8]) - FIRST_WORD)


def feed_head(raw: bytes) -> None:
    """The first page of a segment whose rings have the smallest size."""
    nbytes = segment_bytes(MIN_RING_BYTES)
    ring_bytes = unpack_head(raw, nbytes, SEGMENT_NONCE)
    assert MIN_RING_BYTES <= ring_bytes <= MAX_RING_BYTES
    assert segment_bytes(ring_bytes) == nbytes


def feed_words(raw: bytes) -> None:
    """Every word of both sides, written by the peer before each of this side's steps.

    The second step leaves some of the room that the peer has told of, for the third to begin in.
    """
    segment = make_segment(SEGMENT_NONCE, MIN_RING_BYTES)
    near, far = socket.socketpair()
    link = SharedLink(near, 1, segment)
    page = memoryview(segment.map)[8 * FIRST_WORD : HEAD_BYTES]
    buffer = bytearray(2 * MIN_RING_BYTES)
    try:
        for step, nbytes in enumerate((5000, 4, 5000)):
            words = raw[step * WORDS_BYTES :][:WORDS_BYTES]
            page[: len(words)] = words
            with contextlib.suppress(BlockingIOError):
                assert 0 < link.recv_into(memoryview(buffer)) <= MIN_RING_BYTES
            with contextlib.suppress(BlockingIOError):
                assert 0 < link.sendmsg((b"h" * 96, b"x" * nbytes), (), 0) <= MIN_RING_BYTES
            link.poll_for(reading=True, writing=True)
    finally:
        page.release()
        link.close()
        far.close()


class _Sharer(Script):
    """A `Script` that may bring a descriptor with its first bytes."""

    def __init__(self, raw: bytes, fd: int | None = None) -> None:
        super().__init__(raw)
        self._fd = fd

    async def recvmsg(self, limit: int, room: int, _: int) -> tuple[bytes, list[Any], int, None]:
        assert room == socket.CMSG_SPACE(4)
        data = await self.receive_some(limit)
        if self._fd is None:
            return data, [], 0, None
        rights = os.dup(self._fd).to_bytes(4, "little")
        return data, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], 0, None

    async def sendmsg(self, pieces: list[bytes], _: object) -> int:
        return sum([await self.send(piece) for piece in pieces])


def _driver() -> Any:
    log = logging.getLogger("fuzz")
    return SimpleNamespace(hub=SimpleNamespace(log=log, causes_told=set()))


def feed_listener(raw: bytes) -> None:
    """Feed a dialler's messages, with a descriptor of a real segment."""
    segment = make_segment(SEGMENT_NONCE, MIN_RING_BYTES)
    sock: Any = _Sharer(raw, segment.fd)

    async def answer() -> None:
        taken = await answer_offer(_driver(), sock, 1)
        if taken is not None:
            assert taken.answer == segment.answer != bytes(NONCE_BYTES)
            taken.close()

    try:
        run(answer)
    finally:
        segment.close()


def feed_dialler(raw: bytes) -> None:
    """Feed a listener's answers; a listener that does not see the memory is rejected."""
    made: list[Segment] = []

    def make(nonce: bytes) -> Segment:
        made.append(make_segment(nonce, MIN_RING_BYTES))
        made[0].answer = SEGMENT_NONCE
        return made[0]

    async def offer() -> None:
        sock: Any = _Sharer(raw)
        agreed = await offer_segment(_driver(), sock, 1)
        if agreed is not None:
            assert SEGMENT_NONCE in raw
            agreed.close()

    before, shm_setup.make_segment = shm_setup.make_segment, make
    try:
        run(offer)
    finally:
        shm_setup.make_segment = before


def feed_taken(raw: bytes) -> None:
    """The bytes of a sealed file that a peer gives away as a segment."""
    segment = make_segment(SEGMENT_NONCE, MIN_RING_BYTES)
    segment.map[: min(len(raw), HEAD_BYTES)] = raw[:HEAD_BYTES]
    fd = os.dup(segment.fd)
    segment.close()
    with contextlib.suppress(NoSharedMemory):
        take_segment(fd, SEGMENT_NONCE).close()


def feed_window_head(raw: bytes) -> None:
    """The first page of shared window of two ranks."""
    assert unpack_window_head(raw, COMMON.total, COMMON.ranks, SEGMENT_NONCE) == COMMON


def feed_placed(raw: bytes) -> None:
    """Feed rank 0's record of a result's place; it always has the same number of bytes."""
    words = raw[:PLACED_BYTES].ljust(PLACED_BYTES, b"\0")
    region = unpack_placed(words, COMMON, *PLACED)
    assert 0 <= region.start <= region.start + PLACED[1] <= COMMON.nbytes
    assert COMMON.flags(region.row).stop <= COMMON.data_at
    assert pack_placed(PLACED[0], region, PLACED[1]) == words


def feed_extent(raw: bytes) -> None:
    """Feed rank 0's record of an allocation's extent; it always has the same number of bytes."""
    part = COMMON.extent(0)
    words = raw[: part.stop - part.start].ljust(part.stop - part.start, b"\0")
    span = unpack_extent(words, COMMON)
    assert 0 <= span.start <= span.end <= COMMON.nbytes
    assert pack_extent(Allocation(*span, 0)) == words


def feed_common(raw: bytes) -> None:
    """The first page of the shared window that rank 0 gives away; then it places a result."""
    made = create_shared_window(COMMON.ranks, COMMON.nbytes, epoch=1, nonce=SEGMENT_NONCE)
    made._map[: min(len(raw), PAGE)] = raw[:PAGE]
    fd = os.dup(made.fd)
    made.forget_fd()
    taken = receive_shared_window(fd, COMMON.ranks, rank=1, epoch=1, nonce=SEGMENT_NONCE)
    assert taken.is_complete == (0 not in raw[COMMON.joined()].ljust(COMMON.ranks, b"\0"))
    placed = taken.placed(*PLACED)
    placed[-1:] = 1
    assert len(placed) == PLACED[1]
