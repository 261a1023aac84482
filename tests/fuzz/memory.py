"""Feeders of a peer's messages about the segment."""

import os
import socket
from typing import Any

from ftcomm.control.links.segment_setup import receive_sharing, receive_with
from tests.fuzz.conversations import Script, run


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
