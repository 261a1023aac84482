"""A link of which some bytes were read ahead, and are read once more."""

from collections.abc import Iterable, Sequence

from ftcomm.transport.link import Buffer, Link


class UnreadLink:
    """A link that gives `head` before what arrives; for one call, on the thread that owns it."""

    def __init__(self, link: Link, head: bytes) -> None:
        self._link = link
        self._head = memoryview(head)

    @property
    def rank(self) -> int:
        """The peer."""
        return self._link.rank

    @property
    def kind(self) -> str:
        """Kind of the underlying link."""
        return self._link.kind

    def sendmsg(self, buffers: Iterable[Buffer], ancdata: tuple[()], flags: int, /) -> int:
        """Send on the underlying link."""
        return self._link.sendmsg(buffers, ancdata, flags)

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive what is left of the head, then from the underlying link."""
        if not self._head:
            return self._link.recv_into(buffer)
        size = min(len(buffer), len(self._head))
        buffer[:size] = self._head[:size]
        self._head = self._head[size:]
        return size

    def poll_for(self, *, reading: bool, writing: bool) -> Sequence[tuple[int, int]]:
        """Descriptors of the underlying link; none while there is a head to read."""
        if reading and self._head:
            return ()
        return self._link.poll_for(reading=reading, writing=writing)

    def shutdown(self) -> None:
        """Shut the underlying link down."""
        self._link.shutdown()

    def reset(self) -> None:
        """Reset the underlying link."""
        self._link.reset()

    def close(self) -> None:
        """Close the underlying link."""
        self._link.close()
