"""MessageParser: messages out of a stream of bytes, whoever reads them (rule R21)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ftcomm.memory.pool import Array
from ftcomm.protocol.message_head import MIN_HEAD, HeadDecoder, MessageHead, head_bytes

BUFFER_BYTES = 1 << 16  # of which one read brings several small messages
LARGE_BYTES = 1 << 15  # from here on a message's bytes go straight to their place
# Behind a large message up to here a thread that waits reads the next head alone: the copy of what
# a read brings behind it costs more than a second read.  Of larger ones the first piece is a small
# part.  The control thread has one read in each of its turns, so it reads as much as there is.
HEAD_ALONE_BYTES = 1 << 18
_NO_BYTES: Array = np.empty(0, np.uint8)


@dataclass(slots=True)
class ParsedMessage:
    """One message that has come whole."""

    head: MessageHead  # what it is
    raw: Array  # its bytes


class MessageParser:
    """Reads nothing itself: bytes are put into `space`, and `fed` says how many.

    Bytes of a large message go at once where they belong, but for those that come with its head.
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
        self._large_head = 0  # bytes of the last head, if the next one may be read alone

    def space(self, *, head_alone: bool = False) -> memoryview:
        """Memory for the next bytes of the stream; never empty.

        `head_alone` says that one more read costs little: see `HEAD_ALONE_BYTES`.
        """
        if self._is_direct:
            return self._raw.data[self._filled :]
        if self._lo:
            rest = self._hi - self._lo
            self._buffer[:rest] = self._buffer[self._lo : self._hi]
            self._lo, self._hi = 0, rest
        if head_alone and self._head is None and self._hi < self._large_head:
            return self._buffer[self._hi : self._large_head]
        return self._buffer[self._hi :]

    @property
    def _is_direct(self) -> bool:
        """The bytes to come are a large message's alone."""
        return self._head is not None and self._lo == self._hi and len(self._raw) >= LARGE_BYTES

    def fed(self, count: int) -> Iterator[ParsedMessage]:
        """Take `count` bytes that were put into `space`; yield the messages that are whole now.

        All of them are to be taken before `space` is asked again.  The place of one is asked for
        when the one before was taken: that may have been the one that its user waits for.

        Raises:
            ProtocolError: these bytes are no messages.
        """
        if self._is_direct:
            self._filled += count
        else:
            self._hi += count
        while (head := self._head or self._next_head()) is not None:
            if self._lo != self._hi:
                self._fill()
            if self._filled < len(self._raw):
                return
            message = ParsedMessage(head, self._raw)
            self._head, self._raw, self._filled = None, _NO_BYTES, 0
            yield message

    def _fill(self) -> None:
        """Put what is in the buffer where the message's bytes belong."""
        raw, lo, filled = self._raw, self._lo, self._filled
        count = min(len(raw) - filled, self._hi - lo)
        place = raw if count == len(raw) else raw[filled : filled + count]  # nearly always all
        place[:] = self._bytes[lo : lo + count]
        self._lo, self._filled = lo + count, filled + count

    def _next_head(self) -> MessageHead | None:
        """Begin the next message; None if its head has not come whole."""
        while self._hi - self._lo >= MIN_HEAD:
            start = self._lo
            end = start + head_bytes(self._buffer, start)
            if end > self._hi:
                return None
            head = self._decode(self._buffer[start:end].tobytes())
            self._lo = end
            if head is not None:
                self._head, self._filled = head, 0
                self._raw = self._place_for(head)
                is_large = LARGE_BYTES <= len(self._raw) <= HEAD_ALONE_BYTES
                self._large_head = end - start if is_large else 0
                return head
        return None
