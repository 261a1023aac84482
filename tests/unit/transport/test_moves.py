"""Cache of prepared schedules."""

import numpy as np

from ftcomm.collectives.schedules.allgather import ring_allgatherv
from ftcomm.execution.executor import MOVES_KEPT, SMALL_BYTES, Moves
from ftcomm.protocol.frame_header import HEADER_BYTES


def test_schedules_without_steps_are_forgotten_too() -> None:
    """A group of one under a tracker that calls with ever other sizes, for months."""
    moves = Moves(bytearray(HEADER_BYTES + SMALL_BYTES))
    for count in range(2 * MOVES_KEPT):
        assert moves.of(ring_allgatherv(1, 0, (count,)), np.dtype(np.uint8)) == ()
    assert len(moves._known) <= MOVES_KEPT
