"""What is kept of the schedules in use."""

import numpy as np

from ftcomm.collectives.allgather import ring_allgatherv
from ftcomm.protocol.frames import HEADER_BYTES
from ftcomm.transport.moves import MOVES_KEPT, SMALL_BYTES, Moves


def test_schedules_without_steps_are_forgotten_too() -> None:
    """A group of one under a tracker that calls with ever other sizes, for months."""
    moves = Moves(bytearray(HEADER_BYTES + SMALL_BYTES))
    for count in range(2 * MOVES_KEPT):
        assert moves.of(ring_allgatherv(1, 0, (count,)), np.dtype(np.uint8)) == ()
    assert len(moves._known) <= MOVES_KEPT
