"""LateCopy: the log's copy of a message, made while the message is on its way already."""

import numpy as np

from ftcomm.memory.message_value import MessageValue
from ftcomm.memory.pool import Array, LoggedResult

PIECE_BYTES = 1 << 18  # so long the kernel can take no more of the message


class LateCopy:
    """The copy of one message, for the thread that sends it."""

    __slots__ = ("_at", "_room", "_source", "_to", "original")

    def __init__(self, original: MessageValue, room: Array) -> None:
        """`room` has as many elements as the message, of the same dtype."""
        # In the user's memory: no other thread may read it, since the user may write to it when the
        # call returns.
        self.original, self._room = original, room
        self._source, self._to = original.stored.flat.view(np.uint8), room.view(np.uint8)
        self._at = 0

    def copy_piece(self) -> bool:
        """Copy the next piece; False if all is copied."""
        at = self._at
        if at >= len(self._to):
            return False
        end = at + PIECE_BYTES
        self._to[at:end] = self._source[at:end]
        self._at = end
        return True

    def whole(self) -> MessageValue:
        """Copy what is left; the message as the log keeps it."""
        while self.copy_piece():
            pass
        original = self.original
        return MessageValue(LoggedResult(self._room, original.stored.shape), original.content)
