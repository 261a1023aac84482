"""A link that sends every byte under a checksum, over any other link.

The stream is cut into records (`ftcomm.protocol.checksum_records`).  Sending copies nothing: a
record's payload stays where it is until the link below has taken it, and the caller offers the
same bytes again until they are taken, as with any link.  What is received passes through a buffer
of one record, since nobody may see a byte that has not been compared.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ftcomm.errors import ProtocolError
from ftcomm.protocol.checksum_records import MAX_RECORD_BYTES, Digest, RecordReader, record_head
from ftcomm.transport.link import Buffer, Link


class CheckedLink:
    """A `Link` over another one.

    Attributes:
        rank: the peer.
        kind: of the link under it.
    """

    __slots__ = (
        "_digest",
        "_head",
        "_left",
        "_link",
        "_note",
        "_number",
        "_reader",
        "kind",
        "rank",
    )

    def __init__(self, link: Link, digest: Digest, note: Callable[[], None]) -> None:
        """Take over a link on which nothing has been sent.

        Args:
            link: what carries the records.
            digest: the same on both sides.
            note: called when a record is found to be damaged.
        """
        self.rank, self.kind = link.rank, link.kind
        self._link = link
        self._digest = digest
        self._note = note
        self._reader = RecordReader(digest)
        self._number = 0  # of the next record to send
        self._head = memoryview(b"")  # what is left to send of the present record's head
        self._left = 0  # and of its payload

    def sendmsg(self, buffers: Iterable[Buffer], ancdata: tuple[()], flags: int, /) -> int:
        """Take as much as there is room for, of one record."""
        offered = _bytes_of(buffers)
        if not self._left:
            self._begin(_first(offered, MAX_RECORD_BYTES))
        head = len(self._head)
        sent = self._link.sendmsg((self._head, *_first(offered, self._left)), ancdata, flags)
        self._head = self._head[sent:]
        taken = sent - head
        if taken <= 0:  # no byte of the caller's
            raise BlockingIOError
        self._left -= taken
        return taken

    def _begin(self, payload: list[memoryview]) -> None:
        self._left = sum(len(part) for part in payload)
        self._head = memoryview(record_head(self._digest, self._number, payload))
        self._number += 1

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Give what has arrived and is in order.

        Raises:
            OSError: as any link; or a checksum does not match.
        """
        while not (count := self._take(buffer)):
            arrived = self._link.recv_into(self._reader.space())
            if not arrived:
                return 0
            self._reader.arrived(arrived)
        return count

    def _take(self, buffer: bytearray | memoryview) -> int:
        try:
            return self._reader.take(buffer)
        except ProtocolError as error:
            self._note()
            raise OSError(error.cause) from error

    def poll_for(self, *, reading: bool, writing: bool) -> Sequence[tuple[int, int]]:
        """Return the descriptors to poll of the link below; none if data is here already."""
        if reading and self._may_give():
            return ()
        return self._link.poll_for(reading=reading, writing=writing)

    def _may_give(self) -> bool:
        try:
            return self._reader.has_some()
        except ProtocolError:
            return True  # and receiving will say so

    def shutdown(self) -> None:
        """End both directions at once; safe from any thread, any number of times."""
        self._link.shutdown()

    def reset(self) -> None:
        """Fault injection: as the link below."""
        self._link.reset()

    def close(self) -> None:
        """Give descriptors and memory back; only the owner may."""
        self._link.close()


def _bytes_of(buffers: Iterable[Buffer]) -> list[memoryview]:
    """The buffers as bytes, without those that hold none."""
    views = [memoryview(buffer) for buffer in buffers]
    return [
        # numpy: a memoryview of complex numbers cannot be cast
        view if view.format == "B" else np.frombuffer(view, np.uint8).data
        for view in views
        if view.nbytes
    ]


def _first(parts: list[memoryview], count: int) -> list[memoryview]:
    """The first `count` bytes of `parts`, or all of them."""
    found = []
    for part in parts:
        if count <= 0:
            break
        found.append(part[:count])
        count -= len(part)
    return found
