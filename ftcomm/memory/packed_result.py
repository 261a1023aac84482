"""A result as one array of bytes, as other ranks keep it for its owner (rule R20).

The elements come first, then 64-bit words: the shape, the rows of each rank's part, the code of the
dtype, and how many of the first two there are.
"""

import numpy as np
import xxhash

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.errors import ProtocolError
from ftcomm.memory.pool import Array, LoggedResult, dtype_from_wire, stored_from_wire
from ftcomm.protocol.field_types import MAX_DIMS

WORD = 8  # bytes
_COUNTS = 3  # words at the end: dtype, dimensions, rows


def packed_bytes(result: LoggedResult) -> int:
    """The number of bytes that `pack_result` needs."""
    return result.flat.nbytes + WORD * (len(result.shape) + len(result.rows) + _COUNTS)


def most_packed_bytes(nbytes: int, world_size: int) -> int:
    """The most bytes that a result of `nbytes` is packed in."""
    return nbytes + WORD * (MAX_DIMS + world_size + _COUNTS)


def pack_result(result: LoggedResult, place: Array) -> None:
    """Write a result into `place`, which has `packed_bytes` bytes."""
    end = result.flat.nbytes
    place[:end] = result.flat.view(np.uint8)
    words = (*result.shape, *result.rows, result.dtype, len(result.shape), len(result.rows))
    place[end:] = np.array(words, np.uint64).view(np.uint8)


def unpack_result(packed: Array) -> LoggedResult:
    """The result, in the memory of `packed`; raises ProtocolError."""
    code, dims, rows = _last_words(packed, _COUNTS)
    numbers = _last_words(packed, dims + rows + _COUNTS)[:-_COUNTS]
    raw = packed[: len(packed) - WORD * (len(numbers) + _COUNTS)]
    dtype: AnyDtype = dtype_from_wire(code, numbers[:dims], len(raw), len(raw))
    stored = stored_from_wire(dtype, numbers[:dims], raw)
    stored.rows = numbers[dims:]
    return stored


def _last_words(packed: Array, count: int) -> tuple[int, ...]:
    if WORD * count > len(packed):
        raise ProtocolError(f"a result packed in {len(packed)} bytes, with {count} words behind it")
    raw = packed[len(packed) - WORD * count :].tobytes()
    return tuple(int(word) for word in np.frombuffer(raw, np.uint64))


def result_digest(packed: Array) -> bytes:
    """The digest by which a rank knows its result."""
    return xxhash.xxh3_128(packed.data).digest()
