"""Link: what carries data frames to and from one peer of one epoch, whatever it is made of."""

from collections.abc import Iterable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Link(Protocol):
    """A stream of bytes in each direction, never blocking.

    The thread that runs collectives owns the link and closes it; another thread may only
    `shutdown` it, which ends whatever the owner is waiting for.

    Attributes:
        rank: the peer.
        kind: what it is made of: ``unix`` or ``tcp``.
    """

    @property
    def rank(self) -> int:
        """The peer."""

    @property
    def kind(self) -> str:
        """Kind of transport below the link."""

    def sendmsg(self, buffers: Iterable[Buffer], ancdata: tuple[()], flags: int, /) -> int:
        """Take as much as there is room for now, at least a byte; returns how many bytes.

        Raises:
            BlockingIOError: there is no room.
            OSError: the link is of no more use.
        """

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Give what has arrived, at most what `buffer` holds; 0: the peer has closed.

        Raises:
            BlockingIOError: nothing has arrived.
            OSError: the link is of no more use.
        """

    def poll_for(self, *, reading: bool, writing: bool) -> Sequence[tuple[int, int]]:
        """Descriptors and masks to poll until the link may move in one of these directions.

        Empty: it may move already, do not sleep.
        """

    def shutdown(self) -> None:
        """End both directions at once; safe from any thread, any number of times."""

    def reset(self) -> None:
        """Fault injection: end the link as the system of a vanished peer does."""

    def close(self) -> None:
        """Give its descriptors back; only the owner may."""
