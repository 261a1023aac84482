"""MessageParser: messages out of a stream of bytes, whoever reads them (rule R21)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ftcomm.control.messages.message_head import HeadDecoder, MessageHead
from ftcomm.errors import ProtocolError
from ftcomm.memory.pool import Array
from ftcomm.protocol.codec import LENGTH_BYTES, frame_length
from ftcomm.protocol.link_messages import FetchWait

BUFFER_BYTES = 1 << 16  # of which one read brings several small messages
MAX_HEAD = 4096  # bytes; a head has 64 dimensions of 9 bytes at most, and a tag
_NO_BYTES: Array = np.empty(0, np.uint8)


@dataclass(slots=True)
class ParsedMessage:
    """One message that has come whole.

    Attributes:
        head: what it is.
        raw: its bytes.
    """

    head: MessageHead
    raw: Array


class MessageParser:
    """Reads nothing itself: bytes are put into `space`, and `fed` says how many.

    The bytes of a large message go at once where they belong.
    """

    def __init__(self, place_for: Callable[[MessageHead], Array]) -> None:
        """`place_for` gives the memory for a message of which the head has come."""
        self._place_for = place_for
        self._decode = HeadDecoder().decode
        self._bytes = np.empty(BUFFER_BYTES, np.uint8)
        self._buffer = self._bytes.data
        self._lo = self._hi = 0  # what has been read and not taken
        self._head: MessageHead | None = None
        self._raw = _NO_BYTES
        self._filled = 0

    def space(self) -> memoryview:
        """Memory for the next bytes of the stream; never empty."""
        if self._is_direct:
            return self._raw.data[self._filled :]
        if self._lo:
            rest = self._hi - self._lo
            self._buffer[:rest] = self._buffer[self._lo : self._hi]
            self._lo, self._hi = 0, rest
        return self._buffer[self._hi :]

    @property
    def _is_direct(self) -> bool:
        """More of a message's bytes are to come than a buffer has."""
        if self._head is None or self._lo != self._hi:
            return False
        return len(self._raw) - self._filled >= BUFFER_BYTES

    def fed(self, count: int) -> list[ParsedMessage]:
        """Take `count` bytes that were put into `space`; return the messages that are whole now.

        Raises:
            ProtocolError: these bytes are no messages.
        """
        if self._is_direct:
            self._filled += count
            return self._ended()
        self._hi += count
        whole: list[ParsedMessage] = []
        while self._head is not None or self._take_head():
            self._fill()
            ended = self._ended()
            whole += ended
            if not ended or self._lo == self._hi:
                break
        return whole

    def _fill(self) -> None:
        """Put what is in the buffer where the message's bytes belong."""
        raw, lo, filled = self._raw, self._lo, self._filled
        count = min(len(raw) - filled, self._hi - lo)
        place = raw if count == len(raw) else raw[filled : filled + count]  # nearly always all
        place[:] = self._bytes[lo : lo + count]
        self._lo, self._filled = lo + count, filled + count

    def _ended(self) -> list[ParsedMessage]:
        if self._head is None or self._filled < len(self._raw):
            return []
        message = ParsedMessage(self._head, self._raw)
        self._head, self._raw, self._filled = None, _NO_BYTES, 0
        return [message]

    def _take_head(self) -> bool:
        """Begin the next message; False if its head has not come whole."""
        while self._hi - self._lo >= LENGTH_BYTES:
            start = self._lo + LENGTH_BYTES
            end = start + frame_length(self._buffer, MAX_HEAD, self._lo)
            if end > self._hi:
                return False
            message = self._decode(self._buffer[start:end].tobytes())
            self._lo = end
            if isinstance(message, MessageHead):
                self._head, self._filled = message, 0
                self._raw = self._place_for(message)
                return True
            if not isinstance(message, FetchWait):
                raise ProtocolError(f"expected a message, got {type(message).__name__}")
        return False
