"""Frames that are in flight together over plain sockets, moved by the compiled core.

They are those of one or two schedules whose steps wait for nothing but the frames before them, as
the executor's steps in Python make them one after the other.
"""

import os
import select
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy as np

from ftcomm.collectives.schedules.schedule import NOBODY, Round, Schedule
from ftcomm.execution.header_check import CallHeader, check_header
from ftcomm.protocol.frame_header import HEADER_BYTES
from ftcomm.transport.interruptions import LinkLost
from ftcomm.transport.link import Link
from ftcomm.transport.socket_link import SocketLink

SENDBUF, RECVBUF, ROWS = range(3)
# As in core/sockets.c.
_WORDS = ("fd", "after", "buffer", "receives", "tag", "rank")
FRAME: Final = np.dtype(
    [(name, "i4") for name in _WORDS]
    + [(name, "i8") for name in ("at", "nbytes", "moved")]
    + [("head", f"V{HEADER_BYTES}")]
)
_Part = tuple[Schedule, int]


class Frames:
    """The frames of some steps, and how far they are.

    Attributes:
        table: of FRAME.
        tag: of the first step.
    """

    __slots__ = ("table", "tag")

    def __init__(self, parts: Sequence[_Part], links: Mapping[int, SocketLink], size: int) -> None:
        """Each part is a schedule and the buffer that it receives into, of elements of `size`."""
        rows: list[tuple[Any, ...]] = []
        newest: dict[tuple[int, bool], int] = {}
        for schedule, into in parts:
            for step in schedule.steps:
                source = SENDBUF if step.send_from_sendbuf else RECVBUF
                for receives, rank, buffer, lo, hi in (
                    (False, step.send_to, source, step.send_lo, step.send_hi),
                    (True, step.recv_from, into, step.recv_lo, step.recv_hi),
                ):
                    if rank == NOBODY:
                        continue
                    after = newest.get((rank, receives), -1)
                    newest[rank, receives] = len(rows)
                    place = lo * size, (hi - lo) * size
                    fd = links[rank].fd
                    rows.append((fd, after, buffer, receives, step.tag, rank, *place, 0, b""))
        self.table = np.array(rows, FRAME)
        self.tag = int(self.table["tag"][0]) if rows else 0

    def awaited(self) -> tuple[int, dict[int, int], tuple[int, ...]]:
        """Tag of the first step that is not over, what to poll, and the ranks of that step.

        Of later steps nothing is said (rule R12): that they have begun is an advantage of this way.
        """
        table = self.table
        is_open = table["moved"] < HEADER_BYTES + table["nbytes"]
        masks: dict[int, int] = {}
        for frame in table[is_open]:
            if frame["after"] < 0 or not is_open[frame["after"]]:
                mask = select.POLLIN if frame["receives"] else select.POLLOUT
                masks[int(frame["fd"])] = masks.get(int(frame["fd"]), 0) | mask
        tag = int(table["tag"][is_open][0])
        peers = table["rank"][is_open & (table["tag"] == tag)]
        return tag, masks, tuple(sorted({int(rank) for rank in peers}))

    def refuse(
        self, number: int, error: int, header: bytes, call: CallHeader, step_base: int
    ) -> NoReturn:
        """Say why a frame cannot go on; see `ExchangeFrames`."""
        frame = self.table[number]
        rank = int(frame["rank"])
        if header:
            check_header(header, rank, call, step_base + int(frame["tag"]), int(frame["nbytes"]))
        act = "receiving" if frame["receives"] else "sending"
        why = f"{act} failed: {OSError(error, os.strerror(error))}"
        raise LinkLost(rank, why if error else "the peer closed the connection")


def frames_of(
    rounds: Sequence[Round], links: Mapping[int, Link], peers: Sequence[int], size: int
) -> tuple[Frames, ...]:
    """The frames of each round on elements of `size`; none unless all links are plain sockets."""
    plain = {rank: link for rank in peers if isinstance(link := links[rank], SocketLink)}
    if len(plain) < len(peers):
        return ()
    parts = ([(one.gather, ROWS), (one.spread, RECVBUF)] for one in rounds)
    return tuple(Frames(part, plain, size) for part in parts)
