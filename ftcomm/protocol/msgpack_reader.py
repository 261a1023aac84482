"""The one typed doorway to msgpack, which has no types of its own.

A generic msgpack decode builds whatever the bytes describe: 64 KiB of nested array headers cost
67 MiB.  `Reader` never does that.  It is driven by a schema from outside, hands out one scalar or
one array *length* at a time, and refuses containers where a scalar is due, so nothing is allocated
that the schema did not ask for.
"""

from collections.abc import Sequence

import msgpack

from ftcomm.errors import ProtocolError

Scalar = int | bool | str | bytes | float | None
Plain = Scalar | Sequence["Plain"]

_NIL = 0xC0
# First bytes of msgpack arrays, maps, extensions and of the one code that is never used.
_NOT_SCALAR = frozenset(
    [*range(0x80, 0xA0), 0xC1, 0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9), *range(0xDC, 0xE0)]
)


def pack(value: Plain) -> bytes:
    """The msgpack form of plain lists, numbers, text and bytes."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


class Reader:
    """Reads one msgpack document front to back, as its caller's schema says.

    Raises:
        ProtocolError: from every method, when the bytes are not what was asked for.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        size = max(len(data), 1)  # 0 would mean msgpack's own default of 100 MiB
        self._unpacker = msgpack.Unpacker(
            raw=False, strict_map_key=True, max_buffer_size=size, max_ext_len=0, max_map_len=0
        )
        self._unpacker.feed(data)

    def array_length(self) -> int:
        """Enter an array: its length, which the caller must check before reading on."""
        try:
            return int(self._unpacker.read_array_header())
        except (ValueError, msgpack.OutOfData, msgpack.UnpackException) as error:
            raise ProtocolError(f"array expected: {_why(error)}") from None

    def at_nil(self) -> bool:
        """Tell whether the next value is nil; nothing is consumed."""
        return self._next_byte() == _NIL

    def scalar(self) -> Scalar:
        """The next number, text, bytes, bool or nil."""
        if self._next_byte() in _NOT_SCALAR:
            raise ProtocolError("container where a plain value is due")
        try:
            value: Scalar = self._unpacker.unpack()
        except (ValueError, msgpack.OutOfData, msgpack.UnpackException) as error:
            raise ProtocolError(f"malformed value: {_why(error)}") from None
        return value

    def finish(self) -> None:
        """Check that nothing follows."""
        left: int = len(self._data) - self._unpacker.tell()
        if left:
            raise ProtocolError(f"{left} bytes behind the end of a message")

    def _next_byte(self) -> int:
        offset: int = self._unpacker.tell()
        if offset >= len(self._data):
            raise ProtocolError("message ends too early")
        return self._data[offset]


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
