"""A connection on which only silence is limited, however long all that it brings may take."""

import trio

from ftcomm.control.message_stream import ByteStream


class IdleTimeoutStream:
    """Sends and receives over `sock`; any byte that goes or comes begins the limit anew.

    It must lie below whatever gathers bytes into records, messages or items: around one of those, a
    limit of silence would be a least speed.
    """

    def __init__(self, sock: ByteStream, limit: float) -> None:
        self._sock = sock
        self._limit = limit

    async def send(self, data: memoryview, /) -> int:
        """Send some of it.

        Raises:
            trio.TooSlowError: nothing could be sent within the limit.
        """
        with trio.move_on_after(self._limit):
            return await self._sock.send(data)
        raise trio.TooSlowError(f"nothing could be sent for {self._limit:g} s")

    async def recv_into(self, buffer: memoryview, /) -> int:
        """Receive some bytes; 0: the peer has closed.

        Raises:
            trio.TooSlowError: nothing came within the limit.
        """
        with trio.move_on_after(self._limit):
            return await self._sock.recv_into(buffer)
        raise trio.TooSlowError(f"nothing came for {self._limit:g} s")
