"""The log's copy of a message, made in pieces beside its sending."""

import numpy as np

from ftcomm.memory.late_copy import PIECE_BYTES, LateCopy
from ftcomm.memory.message_value import MessageValue
from ftcomm.memory.pool import LoggedResult
from ftcomm.protocol.link_messages import Content

SHAPE = (2, PIECE_BYTES // 4 + 1)  # of float64: a little more than four pieces


def a_copy() -> LateCopy:
    flat = np.arange(SHAPE[0] * SHAPE[1], dtype=np.float64)
    return LateCopy(MessageValue(LoggedResult(flat, SHAPE), Content.ARRAY), np.zeros_like(flat))


def test_a_message_is_copied_piece_by_piece() -> None:
    copy, pieces = a_copy(), 0
    while copy.copy_piece():
        pieces += 1
    assert pieces == -(-copy.original.stored.flat.nbytes // PIECE_BYTES)
    assert not copy.copy_piece()


def test_the_whole_copy_is_the_message_in_other_memory() -> None:
    for pieces_before in range(7):
        copy = a_copy()
        for _ in range(pieces_before):
            copy.copy_piece()
        whole, original = copy.whole(), copy.original
        assert whole.stored.flat.tolist() == original.stored.flat.tolist()
        assert not np.may_share_memory(whole.stored.flat, original.stored.flat)
        assert (whole.stored.shape, whole.content) == (SHAPE, Content.ARRAY)
