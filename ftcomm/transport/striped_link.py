"""Links of several connections: one stream of bytes in each direction, laid out in stripes.

A network may give a single TCP flow less than a host can send, as those of clouds do.  Of the
bytes of a direction, counted from the link's first, those from ``i * STRIPE_BYTES`` to
``(i + 1) * STRIPE_BYTES`` travel on connection ``i`` modulo their number.  Both ends count, so
nothing on the wire says which bytes these are, and all that uses a link sees one.

*Why it cannot block itself.*  The receiver waits for its first missing byte only, and the sender
sends in the same order.  If that byte has been sent, the kernel delivers it, whatever the other
connections do.  If not, every byte before it has been taken from the same connection, so that
there is room for it, and the sender waits for nothing else.  Full buffers of other connections are
those of later bytes.  The two directions count apart.

*What it costs.*  Stripes wait for the slowest connection: the link is as fast as that one times
their number.  Only the connection whose turn it is gets polled, so the end of another one is
found when its turn comes, as the end of a single one is when it is used.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ftcomm.transport.link import Buffer
from ftcomm.transport.socket_link import SocketLink

# A constant of the protocol. Small enough for the buffers that the kernel gives a slow connection:
# else only one would be busy at a time. Four that were limited to 60 Mbit/s carried 8 MB 3.4 times
# as fast as one, but with 256 KiB 2.9 times. Fixed larger buffers gained nothing on a
# loopback, and would limit a connection over a distance. Large enough that a system call moves more
# than it costs.
STRIPE_BYTES = 64 * 1024


class StripedLink:
    """A `Link` of several connections to one peer.

    Attributes:
        rank: the peer.
        kind: of its connections.
    """

    __slots__ = ("_links", "_receiving", "_recv_room", "_send_room", "_sending", "kind", "rank")

    def __init__(self, links: Sequence[SocketLink]) -> None:
        """Take over connections to one peer, in the order that both ends have agreed on."""
        assert links, "a link has a connection"
        self.rank, self.kind = links[0].rank, links[0].kind
        self._links = tuple(links)
        self._sending = self._receiving = 0  # whose turn it is
        self._send_room = self._recv_room = STRIPE_BYTES  # left in the present stripe

    def sendmsg(self, buffers: Iterable[Buffer], ancdata: tuple[()], flags: int, /) -> int:
        """Give the kernel what it takes now, at most the rest of a stripe; returns how many bytes.

        Raises:
            BlockingIOError: the connection whose turn it is has no room.
            OSError: that connection is of no more use.
        """
        link = self._links[self._sending]
        sent = link.sendmsg(_first(buffers, self._send_room), ancdata, flags)
        self._send_room -= sent
        if not self._send_room:
            self._send_room = STRIPE_BYTES
            self._sending = (self._sending + 1) % len(self._links)
        return sent

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Take what has arrived, at most the rest of a stripe; 0: the peer has closed.

        Raises:
            BlockingIOError: nothing has arrived where the next byte will.
            OSError: that connection is of no more use.
        """
        link = self._links[self._receiving]
        received = link.recv_into(memoryview(buffer)[: self._recv_room])
        self._recv_room -= received
        if not self._recv_room:
            self._recv_room = STRIPE_BYTES
            self._receiving = (self._receiving + 1) % len(self._links)
        return received

    def poll_for(self, *, reading: bool, writing: bool) -> Sequence[tuple[int, int]]:
        """The connections whose turn it is; both ways that may be one."""
        wanted: list[tuple[int, int]] = []
        if reading:
            wanted += self._links[self._receiving].poll_for(reading=True, writing=False)
        if writing:
            wanted += self._links[self._sending].poll_for(reading=False, writing=True)
        return wanted

    def shutdown(self) -> None:
        """End both directions of all connections at once; safe from any thread."""
        for link in self._links:
            link.shutdown()

    def shutdown_one(self) -> None:
        """Fault injection: end one connection, by FIN."""
        self._links[-1].shutdown()

    def reset(self) -> None:
        """Fault injection: end all connections as the system of a vanished peer does."""
        for link in self._links:
            link.reset()

    def close(self) -> None:
        """Give all descriptors back; only the owner may."""
        for link in self._links:
            link.close()


def _first(buffers: Iterable[Buffer], room: int) -> Iterator[Any]:
    """The first `room` bytes of buffers of elements of any kind, not copied."""
    for buffer in buffers:
        size = memoryview(buffer).nbytes
        if size >= room:  # numpy: a memoryview of complex numbers cannot be cast
            yield np.frombuffer(buffer, np.uint8)[:room]
            return
        room -= size
        yield buffer
