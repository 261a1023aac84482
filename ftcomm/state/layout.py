"""Bodies: the large parts of a packed state, which follow its head.

A packed state is the length of its head (8 bytes, little endian), the head, and the bodies in the
order in which the head names them, each at the next multiple of `ALIGNMENT`; the gaps are zeros.

Copies are numpy's, which leave the interpreter to other threads meanwhile: the heartbeats of a
worker that packs gigabytes go on, where one call of ``bytes.join`` would hold them up.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Packed = bytes | memoryview  # read-only; whole bytes

ALIGNMENT = 64  # bytes: what any element and any processor wants
_LENGTH = struct.Struct("<Q")


def behind_each_other(parts: Sequence[Array]) -> Packed:
    """The bytes of arrays of bytes; one alone is not copied, and must not be written to again."""
    if len(parts) == 1:
        return _read_only(parts[0])
    whole = np.empty(sum(len(part) for part in parts), np.uint8)
    at = 0
    for part in parts:
        whole[at : at + len(part)] = part
        at += len(part)
    return _read_only(whole)


def with_bodies(head: bytes, bodies: Sequence[Array]) -> Packed:
    """A packed state; each body is copied once, in native byte order and C order."""
    start = _LENGTH.pack(len(head)) + head
    if not bodies:
        return start
    places, end = [], len(start)
    for body in bodies:
        places.append(_aligned(end))
        end = places[-1] + body.nbytes
    whole = np.empty(end, np.uint8)
    whole[: len(start)] = np.frombuffer(start, np.uint8)
    end = len(start)
    for body, place in zip(bodies, places, strict=True):
        whole[end:place] = 0
        end = place + body.nbytes
        _copy(body, whole[place:end])
    return _read_only(whole)


class Bodies:
    """Takes a packed state apart."""

    def __init__(self, raw: Packed) -> None:
        """Find the head; raises ValueError."""
        if len(raw) < _LENGTH.size:
            raise ValueError(f"{len(raw)} bytes are no state")
        self._raw: Array = np.frombuffer(raw, np.uint8)
        (length,) = _LENGTH.unpack_from(raw)
        self._end = _LENGTH.size
        self.head = self._taken(self._end, length).tobytes()  # its head

    def take(self, nbytes: int) -> Array:
        """The next body, as bytes; it is memory of the packed state; raises ValueError."""
        return self._taken(_aligned(self._end), nbytes)

    def must_be_over(self) -> None:
        """See that nothing follows; raises ValueError."""
        if self._end != len(self._raw):
            raise ValueError(f"{len(self._raw) - self._end} bytes too many")

    def _taken(self, start: int, nbytes: int) -> Array:
        if not 0 <= nbytes <= len(self._raw) - start:
            raise ValueError(f"{nbytes} bytes announced, {len(self._raw) - start} there")
        self._end = start + nbytes
        return self._raw[start : self._end]


def _aligned(at: int) -> int:
    return -(-at // ALIGNMENT) * ALIGNMENT


def _copy(body: Array, place: Array) -> None:
    if body.flags.c_contiguous and body.dtype.isnative:
        place[:] = body.reshape(-1).view(np.uint8)  # as bytes: the fastest way for any dtype
    else:
        place.view(body.dtype.newbyteorder("=")).reshape(body.shape)[...] = body


def _read_only(whole: Array) -> memoryview:
    return whole.data.toreadonly()
