"""Moves: a schedule's steps worked out for one dtype, so that a small step computes nothing."""

from dataclasses import dataclass

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.collectives.reductions import Array
from ftcomm.collectives.schedules.schedule import NOBODY, REDUCE_SEGMENT_BYTES, Schedule, Step
from ftcomm.protocol.frame_header import HEADER_BYTES

# Up to here copying a received payload once more is cheaper than the streams: two ranks took
# 76 us for 256 KiB this way, and 92 the other.  Above it there was little between them.
SMALL_BYTES = 256 * 1024
assert SMALL_BYTES <= REDUCE_SEGMENT_BYTES, "a small step is one segment"

MOVES_KEPT = 8192  # schedules and their steps; about 4 MB


@dataclass(frozen=True, slots=True)
class Move:
    """One step in bytes and views.

    Attributes:
        step: where it comes from.
        sends: payload bytes to send.
        receives: payload bytes to receive.
        small: both fit into the small buffer.
        alike: what is sent and what is received have one header; true where one of them is not.
        length: the payload in that header, in bytes.
        send_part: which part of sendbuf or work leaves; None is all of it.
        recv_part: which part of work the incoming block meets; None is all of it.
        frame: the incoming frame's place in the small buffer.
        incoming: its payload's place, as elements.
    """

    step: Step
    sends: int
    receives: int
    small: bool
    alike: bool
    length: int
    send_part: slice | None
    recv_part: slice | None
    frame: memoryview
    incoming: Array


class Moves:
    """The moves of the schedules in use; forgets all of them when they are too many."""

    __slots__ = ("_buffer", "_known", "_steps")

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._known: dict[tuple[Schedule, AnyDtype], tuple[Move, ...]] = {}
        self._steps = 0

    def of(self, schedule: Schedule, dtype: AnyDtype) -> tuple[Move, ...]:
        """The moves of `schedule` on arrays of `dtype`."""
        known = self._known.get((schedule, dtype))
        if known is not None:
            return known
        moves = tuple(self._move(schedule, step, dtype) for step in schedule.steps)
        size = len(moves) + 1  # the entry itself counts: a group of one has no steps at all
        if self._steps + size > MOVES_KEPT:
            self._known.clear()
            self._steps = 0
        self._known[schedule, dtype] = moves
        self._steps += size
        return moves

    def _move(self, schedule: Schedule, step: Step, dtype: AnyDtype) -> Move:
        sends = (step.send_hi - step.send_lo) * dtype.itemsize
        elements = step.recv_hi - step.recv_lo
        receives = elements * dtype.itemsize
        small = sends <= SMALL_BYTES and receives <= SMALL_BYTES
        one_way = NOBODY in (step.send_to, step.recv_from)
        frame_bytes = HEADER_BYTES + receives if small else 0
        available = schedule.sendbuf_count if step.send_from_sendbuf else schedule.recvbuf_count
        return Move(
            step=step,
            sends=sends,
            receives=receives,
            small=small,
            alike=one_way or sends == receives,
            length=receives if step.send_to == NOBODY else sends,
            send_part=_part(step.send_lo, step.send_hi, available),
            recv_part=_part(step.recv_lo, step.recv_hi, schedule.recvbuf_count),
            frame=memoryview(self._buffer)[:frame_bytes],
            incoming=np.frombuffer(self._buffer, dtype, elements if small else 0, HEADER_BYTES),
        )


def _part(lo: int, hi: int, count: int) -> slice | None:
    return None if (lo, hi) == (0, count) else slice(lo, hi)
