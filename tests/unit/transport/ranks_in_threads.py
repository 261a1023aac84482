"""Ranks in threads, joined by socket pairs: what the executor's tests run on."""

import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ftcomm.collectives.reductions import Array, Reducer
from ftcomm.collectives.schedules.schedule import Schedule
from ftcomm.execution.executor import Executor
from ftcomm.execution.header_check import CallHeader
from ftcomm.protocol.frame_header import FrameHeader, make_suffix, pack_header
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.transport.link import Link
from ftcomm.transport.socket_link import SocketLink
from ftcomm.transport.striped_link import StripedLink
from ftcomm.transport.waker import Waker

POSITION = Position(0, 2, 5)
SIGNATURE = Signature(Kind.ALLREDUCE, count=8).encode()
CALL = CallHeader(3, POSITION, make_suffix(SIGNATURE, "train.py:12"))
JOIN_S = 30.0  # a hang is a failure; nothing here takes a second


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialled = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    return dialled, accepted


class Rank:
    """One rank's executor and links."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.waker = Waker()
        self.executor = Executor(self.waker)
        self.links: dict[int, Link] = {}

    def run(
        self,
        schedule: Schedule,
        sendbuf: Array,
        reducer: Reducer | None = None,
        *,
        call: CallHeader = CALL,
        recvbuf: Array | None = None,
        step_base: int = 0,
    ) -> Array:
        if recvbuf is None:
            recvbuf = np.zeros(schedule.recvbuf_count, sendbuf.dtype)
        self.executor.run(
            schedule,
            self.links,
            header=call,
            sendbuf=sendbuf,
            recvbuf=recvbuf,
            reducer=reducer,
            step_base=step_base,
        )
        if reducer is not None:
            reducer.finish(recvbuf, schedule.world_size)
        return recvbuf

    def close(self) -> None:
        for link in self.links.values():
            link.close()
        self.waker.close()


def link_of(socks: Sequence[socket.socket], rank: int, buffer_bytes: int | None = None) -> Link:
    links = [SocketLink(sock, rank, buffer_bytes=buffer_bytes) for sock in socks]
    return links[0] if len(links) == 1 else StripedLink(links)


@contextmanager
def group(
    world_size: int,
    make_pair: Callable[[], tuple[socket.socket, socket.socket]] = socket.socketpair,
    buffer_bytes: int | None = None,
    streams: int = 1,
) -> Iterator[list[Rank]]:
    """Ranks with a link between every two of them, of so many connections."""
    ranks = [Rank(rank) for rank in range(world_size)]
    for low, high in itertools.combinations(ranks, 2):
        near, far = zip(*(make_pair() for _ in range(streams)), strict=True)
        low.links[high.rank] = link_of(near, high.rank, buffer_bytes)
        high.links[low.rank] = link_of(far, low.rank, buffer_bytes)
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.close()


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Run each call in a thread; returns each one's value, or the exception that it raised."""
    outcomes: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            outcomes[index] = calls[index]()
        except BaseException as error:  # noqa: BLE001 - handed to the test, which looks at it
            outcomes[index] = error

    threads = [
        threading.Thread(target=run, args=(i,), name=f"rank{i}", daemon=True)
        for i in range(len(calls))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive(), f"{thread.name} hangs"
    return outcomes


def frame(payload: bytes = b"", **changes: Any) -> bytes:
    """A frame as a peer would send it; `changes` replace fields of its header."""
    fields = {
        "epoch": CALL.epoch,
        "position": POSITION,
        "step": 1,
        "length": len(payload),
        "signature": SIGNATURE,
        "site": "train.py:12",
    }
    return pack_header(FrameHeader(**(fields | changes))) + payload


def when_it_waits(rank: Rank, act: Callable[[], object]) -> Callable[[], None]:
    """Something to run beside `rank`: it acts when that waits for its peer."""

    def wait_and_act() -> None:
        while rank.executor.progress.peers != (1,):
            pass
        act()

    return wait_and_act
