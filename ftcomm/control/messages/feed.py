"""Feed: the link by which this rank's messages go to one other, written by one thread at a time.

The control thread writes what the receiver lacks when it asks.  A thread that sends a message right
behind all others writes it itself, as far as the kernel takes it at once.  It does so from the
user's memory, and copies a large message for the log meanwhile.  Who may write is decided under the
hub's lock.
"""

import threading
from collections.abc import Callable

from ftcomm.memory.late_copy import LateCopy
from ftcomm.memory.message_value import MessageValue
from ftcomm.protocol.link_messages import MessageRequest
from ftcomm.protocol.message_head import HeadEncoder
from ftcomm.recovery.messages.message_exchange import Cursor, MessageExchange
from ftcomm.recovery.messages.sent_log import SentMessage
from ftcomm.transport.link import Link

BATCH = 64  # messages that the control thread writes in one turn
JOINED_BYTES = 1 << 14  # a message of so many is written with others in one piece
COPIED_BYTES = 1 << 12  # of one alone, a copy behind its head takes less than a view

# By a thread that sends; a large message is written by the control thread, beside the script.
WRITTEN_AT_ONCE = 1 << 20

Piece = bytes | bytearray | memoryview


# A message that its sender's thread writes, and its version: a tuple, made in no time.
Claim = tuple[int, SentMessage]


class Feed:
    """One link of one epoch; all but `write` and `end` is for the holder of the hub's lock."""

    def __init__(
        self,
        messages: MessageExchange,
        to: int,
        link: Link,
        note: Callable[[], None],
    ) -> None:
        """It owns `link`; `note` wakes the control thread."""
        self._messages, self._to, self._link, self._note = messages, to, link, note
        self._io = threading.Lock()  # while another thread writes, or the link is closed
        self._is_over = False
        self._cursor: Cursor | None = None  # once the receiver has asked
        self._rest: list[Piece] = []  # of a message that was written in part
        self._was_missed = False  # the control thread had to leave
        self._heads = HeadEncoder()
        self.is_writing = False  # some thread writes; another one may not

    def ask(self, request: MessageRequest) -> None:
        """The receiver says what it has."""
        self._cursor = Cursor(request.version, {mark.tag: mark.number for mark in request.marks})

    # --- the control thread -----------------------------------------------------------------------

    def next_pieces(self) -> list[Piece]:
        """Bytes that come next; if there are any, the caller writes them and calls `written`."""
        if self.is_writing:
            self._was_missed = True
            return []
        pieces, self._rest = self._rest, []
        if not pieces and self._cursor is not None:
            self._cursor, found = self._messages.following(self._to, self._cursor, BATCH)
            pieces = self._pieces_of(self._cursor.version, found)
        self.is_writing = bool(pieces)
        return pieces

    def may_write(self) -> bool:
        """Begin to write something else than messages; False while another thread writes."""
        if self.is_writing or self._rest:
            return False
        self.is_writing = True
        return True

    def written(self) -> None:
        """The caller writes no more."""
        self.is_writing = False

    def _pieces_of(self, version: int, messages: list[SentMessage]) -> list[Piece]:
        """Small messages in one piece, and a large one in the log's own memory."""
        pieces: list[Piece] = []
        joined = bytearray()
        for message in messages:
            head, raw = self._head_and_content(version, message, message.value)
            joined += head
            if len(raw) <= JOINED_BYTES:
                joined += raw
            else:
                pieces += [joined, raw]
                joined = bytearray()
        return [*pieces, joined] if joined else pieces

    def _head_and_content(
        self, version: int, message: SentMessage, value: MessageValue
    ) -> tuple[bytes, bytes | memoryview]:
        """For the thread that writes; a small content is a copy."""
        stored = value.stored
        flat = stored.flat
        raw = flat.tobytes() if flat.nbytes <= COPIED_BYTES else stored.raw()
        # A plain tuple, which is made faster, and is the same.
        fields = version, message.stream.tag, value.content, stored.dtype, stored.shape, len(raw)
        return self._heads.encode(fields, message.number, message.digest), raw

    # --- a thread that sends ----------------------------------------------------------------------

    def claim(self) -> Claim | None:
        """The message that was logged just now, if all before it have been written.

        The caller then calls `write` with it, under no lock.
        """
        if self._is_over or self.is_writing or self._rest or self._cursor is None:
            return None
        found = self._messages.newest_behind(self._to, self._cursor)
        if found is None:
            return None
        self._cursor, message = found
        self.is_writing = True
        return self._cursor.version, message

    def write(self, claim: Claim, lock: threading.Lock, copy: LateCopy | None = None) -> None:
        """Write a message as far as that does not block; the control thread writes the rest.

        `copy` is of a message of which the log has no value yet; it has when this returns.
        """
        version, message = claim
        value = message.value if copy is None else copy.original
        head, raw = self._head_and_content(version, message, value)
        pieces: list[Piece] = [head + raw] if isinstance(raw, bytes) else [head, raw]
        rest: list[Piece] = []
        kept: MessageValue | None = None
        try:
            written = self._written_at_once(pieces, copy)
            if copy is not None:
                kept = copy.whole()
                pieces = [head, kept.stored.raw()]  # the user may write to the original soon
            if written < len(head) + len(raw):
                rest = _behind(written, pieces)
        except BaseException:  # Ctrl-C: nobody knows how much has left
            self._give_up()
            raise
        finally:
            with lock:
                is_missed = kept is not None and message.keep(kept)
                self._rest = rest
                self.is_writing = False
                was_missed, self._was_missed = self._was_missed, False
            if rest or was_missed or is_missed:
                self._note()

    def _written_at_once(self, pieces: list[Piece], copy: LateCopy | None) -> int:
        """Write what the kernel takes now, and not for long; return how many bytes that were.

        The message is copied when the kernel can take no more, and between two large pieces.
        """
        left, written = sum(map(len, pieces)), 0
        with self._io:
            while left and not self._is_over:
                if written >= WRITTEN_AT_ONCE and not _copies(copy):
                    break
                try:
                    count = self._link.sendmsg(pieces, (), 0)
                except BlockingIOError:
                    if _copies(copy):
                        continue
                    break
                except OSError:  # the control thread finds out as well
                    self._give_up()
                    break
                left, written = left - count, written + count
                pieces = _behind(count, pieces) if left else []
        return written

    def _give_up(self) -> None:
        """Nobody may write behind a message that was written in part."""
        self._is_over = True
        self._link.shutdown()

    def end(self) -> None:
        """Close the link; from the control thread, under no lock."""
        self._is_over = True  # first, so that a thread that writes leaves
        with self._io:
            self._link.close()


def _copies(copy: LateCopy | None) -> bool:
    """Copy one more piece; False if there is none."""
    return copy is not None and copy.copy_piece()


def _behind(count: int, pieces: list[Piece]) -> list[Piece]:
    """Return the rest of `pieces` behind their first `count` bytes."""
    rest: list[Piece] = []
    for piece in pieces:
        if count < len(piece):
            rest.append(memoryview(piece)[count:])
        count = max(count - len(piece), 0)
    return rest
