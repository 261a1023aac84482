"""Feeders of a peer's messages about the segment, and of its writes there."""

import contextlib
import mmap
import os
import socket
from typing import Any

from ftcomm.control.links.segment_setup import receive_sharing, receive_with
from ftcomm.transport.shm_layout import MIN_RING_BYTES, WORDS_BYTES, RingPair
from ftcomm.transport.shm_link import SharedLink
from tests.fuzz.conversations import Script, run


def feed_words(raw: bytes) -> None:
    """Every word of both sides, written by the peer before each of this side's steps.

    The second step leaves some of the room that the peer has told of, for the third to begin in.
    """
    memory = mmap.mmap(-1, WORDS_BYTES + 2 * MIN_RING_BYTES)
    near, far = socket.socketpair()
    link = SharedLink(near, 1, memory, RingPair(0, WORDS_BYTES, MIN_RING_BYTES, 0))
    buffer = bytearray(2 * MIN_RING_BYTES)
    try:
        for step, nbytes in enumerate((5000, 4, 5000)):
            words = raw[step * WORDS_BYTES :][:WORDS_BYTES]
            memory[: len(words)] = words
            with contextlib.suppress(BlockingIOError):
                assert 0 < link.recv_into(memoryview(buffer)) <= MIN_RING_BYTES
            with contextlib.suppress(BlockingIOError):
                assert 0 < link.sendmsg((b"h" * 96, b"x" * nbytes), (), 0) <= MIN_RING_BYTES
            link.poll_for(reading=True, writing=True)
    finally:
        link.close()
        far.close()


class _Sharer(Script):
    """A `Script` that brings a descriptor with its first bytes."""

    def __init__(self, raw: bytes, fd: int) -> None:
        super().__init__(raw)
        self._fd = fd

    async def recvmsg(self, limit: int, room: int, _: int) -> tuple[bytes, list[Any], int, None]:
        assert room == socket.CMSG_SPACE(4)
        rights = os.dup(self._fd).to_bytes(4, "little")
        data = await self.receive_some(limit)
        return data, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], 0, None


def feed_sharing(raw: bytes) -> None:
    """Feed a leader's offer, with a descriptor, and its decision."""
    fd = os.open(os.devnull, os.O_RDONLY)
    sock: Any = _Sharer(raw, fd)

    async def hear() -> None:
        _, taken = await receive_with(sock)
        assert taken is not None
        os.close(taken)
        await receive_sharing(sock)

    try:
        run(hear)
    finally:
        os.close(fd)
