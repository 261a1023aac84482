"""Records: how a stream of bytes is cut where the job asks for checksums.

A record is a head of 16 bytes (length, its complement, digest) and a payload.  The digest begins
with the record's number, so one that is lost, repeated or exchanged is found as well as a changed
bit.  Nothing of a record is handed on before its digest has been compared, so a reader holds one
record at most.  A digest finds accidents; it is no proof of where bytes come from.
"""

import struct
from collections.abc import Callable, Sequence

from xxhash import xxh3_64, xxh3_64_intdigest

from ftcomm.errors import ProtocolError

# Payload of one record. Twice over the processor's second-level cache: to be received, compared and
# handed on. As large as a segment, so that large frames cost no more calls than without records.
MAX_RECORD_BYTES = 128 * 1024
RECORD_HEAD = struct.Struct("<IIQ")
HEAD_BYTES = RECORD_HEAD.size
_ALL_ONES = 0xFFFF_FFFF

Digest = Callable[[int, Sequence[memoryview]], int]  # of a record's number and its payload's parts


def xxh3_digest(number: int, parts: Sequence[memoryview]) -> int:
    """The digest of a record: xxh3 of 64 bits, seeded with the record's number."""
    if len(parts) == 1:
        return int(xxh3_64_intdigest(parts[0], number))
    whole = xxh3_64(seed=number)
    for part in parts:
        whole.update(part)
    return int(whole.intdigest())


def record_head(digest: Digest, number: int, parts: Sequence[memoryview]) -> bytes:
    """The head of a record of at least one byte and at most `MAX_RECORD_BYTES`."""
    length = sum(len(part) for part in parts)
    assert 0 < length <= MAX_RECORD_BYTES, "a record has a payload, and a bounded one"
    return RECORD_HEAD.pack(length, length ^ _ALL_ONES, digest(number, parts))


class RecordReader:
    """Puts records together from whatever arrives, and hands out what is in order."""

    __slots__ = ("_at", "_digest", "_end", "_filled", "_number", "_view")

    def __init__(self, digest: Digest) -> None:
        self._digest = digest
        self._view = memoryview(bytearray(HEAD_BYTES + MAX_RECORD_BYTES))
        self._filled = 0  # bytes in the buffer
        self._at = self._end = 0  # what of them is compared and not handed out
        self._number = 0

    def space(self) -> memoryview:
        """Return the memory for the next bytes; never empty when `take` returns nothing."""
        return self._view[self._filled :]

    def arrived(self, count: int) -> None:
        """`count` bytes were put there."""
        self._filled += count

    def take(self, target: bytearray | memoryview) -> int:
        """Hand out what is in order, at most what `target` holds; 0: more must arrive.

        Raises:
            ProtocolError: a record is not what its head says.
        """
        if not self.has_some():
            return 0
        count = min(len(target), self._end - self._at)
        target[:count] = self._view[self._at : self._at + count]
        self._at += count
        return count

    def has_some(self) -> bool:
        """True if `take` has something to give; raises ProtocolError."""
        return self._at < self._end or self._next()

    def _next(self) -> bool:
        """Compare the next record, if all of it is there."""
        body = self._end + HEAD_BYTES
        if self._filled >= body:
            length, inverse, digest = RECORD_HEAD.unpack_from(self._view, self._end)
            if length ^ inverse != _ALL_ONES or not 0 < length <= MAX_RECORD_BYTES:
                raise ProtocolError(
                    f"the checksum of record {self._number} does not match: its head is damaged"
                )
            if self._filled >= body + length:
                if self._digest(self._number, (self._view[body : body + length],)) != digest:
                    raise ProtocolError(f"the checksum of record {self._number} does not match")
                self._number += 1
                self._at, self._end = body, body + length
                return True
        self._move_to_the_front()
        return False

    def _move_to_the_front(self) -> None:
        """Make room behind an unfinished record."""
        if self._end:
            left = self._filled - self._end
            self._view[:left] = self._view[self._end : self._filled]
            self._filled, self._at, self._end = left, 0, 0
