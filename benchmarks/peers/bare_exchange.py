"""Two processes that do no more than a small allreduce must: send, receive, add; in pure Python.

No header is checked, nothing is kept, nobody can die: what a library's own time is measured by.
"""

import functools
import mmap
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _turns import Array, Call, take_turns

from ftcomm.protocol.frame_header import HEADER_BYTES  # so that the same bytes travel

MOST_BYTES = 65_536  # of an array: more might not fit into a socket's buffers
WORD = 8  # each rank's counter of calls in shared memory
Exchange = Callable[[Array, Array], None]  # sends the first, and fills the second with the other's


class Bare:
    """A group of two for `Group`, over TCP or over shared memory."""

    def __init__(self, transport: str) -> None:
        self.NAME = f"bare {transport}"
        self._transport = transport

    def missing(self) -> str | None:
        """Nothing."""
        return None

    def commands(self, world_size: int, _folder: Path) -> list[list[str]]:
        """One process, which makes the other."""
        if world_size != 2:
            raise ValueError("two can exchange")
        return [[sys.executable, __file__, self._transport]]

    def environment(self) -> dict[str, str]:
        """Nothing more."""
        return {}


def main() -> None:
    """Be both ranks."""
    if sys.argv[1] == "TCP":
        _over_tcp()
    else:
        _over_shared_memory()


def _over_tcp() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    rank = 0 if os.fork() else 1
    own = (near, far)[rank]
    (far, near)[rank].close()
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own.setblocking(False)
    take_turns(rank, 2, functools.partial(_prepared, functools.partial(_through, own)))


def _through(sock: socket.socket, mine: Array, theirs: Array) -> None:
    sock.send(mine.data)
    room, got = theirs.data, 0
    while got < len(room):
        try:
            got += sock.recv_into(room[got:])
        except BlockingIOError:
            os.sched_yield()


def _over_shared_memory() -> None:
    shared = mmap.mmap(-1, 2 * (WORD + 2 * (HEADER_BYTES + MOST_BYTES)))
    rank = 0 if os.fork() else 1
    take_turns(rank, 2, functools.partial(_prepared, _across(memoryview(shared), rank)))


def _across(shared: memoryview, rank: int) -> Exchange:
    """Each rank writes two places in turn, so nobody overwrites what is still being read."""
    counters = shared[: 2 * WORD].cast("Q")
    place = HEADER_BYTES + MOST_BYTES

    def exchange(mine: Array, theirs: Array) -> None:
        call = counters[rank] + 1
        at = 2 * WORD + (call % 2) * 2 * place
        start = at + rank * place
        shared[start : start + len(mine)] = mine.data
        counters[rank] = call  # seen in this order on processors of ordered stores
        while counters[1 - rank] < call:
            os.sched_yield()
        start = at + (1 - rank) * place
        theirs.data[:] = shared[start : start + len(theirs)]

    return exchange


def _prepared(exchange: Exchange, operand: Array) -> Call:
    mine = np.zeros(HEADER_BYTES + operand.nbytes, np.uint8)
    theirs = np.zeros_like(mine)
    block, incoming = (frame[HEADER_BYTES:].view(operand.dtype) for frame in (mine, theirs))
    out = np.empty_like(operand)

    def call() -> Array:
        block[:] = operand
        exchange(mine, theirs)
        np.add(operand, incoming, out=out)
        return out

    return call


if __name__ == "__main__":
    main()
