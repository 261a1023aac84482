"""A connection of which small pieces are read together: one read brings several messages."""

from ftcomm.control.message_stream import ByteStream

READ_BYTES = 1 << 16  # a larger piece is read where it is wanted


class BufferedStream:
    """Receives over `sock` in large reads; what is sent is passed on as it is."""

    def __init__(self, sock: ByteStream) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._lo = self._hi = 0  # what has been read and not taken

    async def send(self, data: memoryview, /) -> int:
        """Send some of it."""
        return await self._sock.send(data)

    async def recv_into(self, buffer: memoryview, /) -> int:
        """Receive some bytes; 0: the peer has closed."""
        if self._lo == self._hi:
            if len(buffer) >= READ_BYTES:
                return await self._sock.recv_into(buffer)
            self._lo, self._hi = 0, await self._sock.recv_into(self._buffer)
        count = min(len(buffer), self._hi - self._lo)
        buffer[:count] = self._buffer[self._lo : self._lo + count]
        self._lo += count
        return count
