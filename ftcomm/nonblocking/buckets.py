"""Buckets: many arrays as few, cut by sizes and dtypes alone.

The cut decides how large the arrays are that are combined, with that the algorithm, and with that
the bits (rule R5).  So it depends on nothing but what all ranks pass alike.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ftcomm.memory.pool import Array

# A ring's transfer is at full speed from a megabyte on; smaller buckets are under way sooner.
BUCKET_BYTES = 4 * 1024 * 1024


def cut(sizes: Iterable[tuple[int, str]], bucket_bytes: int) -> list[tuple[int, ...]]:
    """Divide the arrays into groups that are sent together.

    In the given order each array joins the open bucket of its dtype.  If that would pass
    `bucket_bytes`, the bucket is closed and the array opens the next one; so an array that is
    larger by itself is alone.

    Args:
        sizes: bytes and dtype of each array.
        bucket_bytes: how large a bucket of several arrays may be.

    Returns:
        the arrays' numbers, bucket by bucket: first those that were closed, in the order of their
        closing, then those that are left, in the order of their first arrays.
    """
    closed: list[tuple[int, ...]] = []
    open_buckets: dict[str, tuple[int, list[int]]] = {}  # bytes so far, and whose
    for number, (nbytes, dtype) in enumerate(sizes):
        filled, members = open_buckets.pop(dtype, (0, []))
        if members and filled + nbytes > bucket_bytes:
            closed.append(tuple(members))
            filled, members = 0, []
        open_buckets[dtype] = filled + nbytes, [*members, number]
    left = sorted(tuple(members) for _, members in open_buckets.values())
    return closed + left


class Bucket:
    """Arrays of one dtype that are combined as one.

    Attributes:
        flat: their elements one after the other, once they are packed; of a single array its own.
        is_shared: there are several, so `flat` is this bucket's own memory.
    """

    def __init__(self, parts: Sequence[tuple[Array, tuple[int, ...]]]) -> None:
        """`parts` are elements and shape of each."""
        self._parts = parts
        self.is_shared = len(parts) > 1
        first = parts[0][0]
        count = sum(len(elements) for elements, _ in parts)
        self.flat: Array = np.empty(count, first.dtype) if self.is_shared else first

    def pack(self) -> None:
        """Copy the elements of several arrays into one."""
        if self.is_shared:
            np.concatenate([elements for elements, _ in self._parts], out=self.flat)

    def unpack(self, result: Array) -> list[np.ndarray[Any, Any]]:
        """The parts of a result, each in its shape, as views of it."""
        ends = np.cumsum([len(elements) for elements, _ in self._parts])
        pieces = np.split(result, ends[:-1])
        return [piece.reshape(shape) for piece, (_, shape) in zip(pieces, self._parts, strict=True)]
