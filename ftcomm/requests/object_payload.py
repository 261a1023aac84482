"""Blobs: what a scatter or a collective of objects sends, as 1-D arrays of bytes.

The blob of an array is a head of int64 (dtype code, number of dimensions, these) and the elements.
An object's blob is its packed state, with its length in front where several follow each other.
"""

import math
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype, dtype_code, dtype_of
from ftcomm.config.plurals import counted, kind_of
from ftcomm.errors import ProtocolError
from ftcomm.memory.pool import Array
from ftcomm.protocol.field_types import MAX_DIMS
from ftcomm.requests.arguments import as_elements
from ftcomm.state.serializer import pack_state, unpack_state

_WORD = 8  # bytes of one number in a head
_FIXED_WORDS = 2  # dtype code, number of dimensions
Shape = tuple[int, ...]


# --- arrays -----------------------------------------------------------------------------------


def listed_parts(parts: Any, world_size: int, kind: str) -> tuple[list[Array], list[Shape]]:
    """One array for each rank, as elements and shapes; only the first dimensions may differ.

    Raises:
        TypeError, ValueError: naming what does not fit.
    """
    if not isinstance(parts, (list, tuple)):
        raise TypeError(f"{kind} takes a list of arrays, one for each rank, not {kind_of(parts)}")
    if len(parts) != world_size:
        raise ValueError(
            f"{kind} needs one part for each of {counted(world_size, 'rank')}, got {len(parts)}"
        )
    elements, shapes = zip(*(as_elements(part) for part in parts), strict=True)
    dtype_code(elements[0].dtype)
    for rank, (own, shape) in enumerate(zip(elements, shapes, strict=True)):
        if not shape:
            raise ValueError(f"part {rank} has no dimension; give it one")
        if own.dtype != elements[0].dtype or shape[1:] != shapes[0][1:]:
            raise ValueError(
                f"part {rank} is {own.dtype.name}{list(shape)}, part 0 is "
                f"{elements[0].dtype.name}{list(shapes[0])}: only the first dimension may differ"
            )
    return list(elements), list(shapes)


def array_blobs(x: Any, world_size: int, kind: str) -> list[Array]:
    """For each rank the blob of its part of `x`; raises TypeError or ValueError.

    Args:
        x: array-like of shape ``(world_size, ...)``, or a list or tuple of `world_size` arrays of
            one dtype and trailing shape, whose first dimensions may differ.
        world_size: number of ranks.
        kind: the collective, for messages.
    """
    if isinstance(x, (list, tuple)) and any(np.ndim(part) for part in x):
        return [*map(_array_blob, *listed_parts(x, world_size, kind))]
    elements, shape = as_elements(x)
    if shape[:1] != (world_size,):
        raise ValueError(
            f"{kind} needs one part for each of {counted(world_size, 'rank')}:"
            f" x has shape {shape}, must be ({world_size}, ...)"
        )
    rows = elements.reshape(world_size, math.prod(shape[1:]))
    return [_array_blob(part, shape[1:]) for part in rows]


def _array_blob(elements: Array, shape: Shape) -> Array:
    head = np.array([dtype_code(elements.dtype), len(shape), *shape], np.int64)
    blob: Array = np.empty(head.nbytes + elements.nbytes, np.uint8)
    blob[: head.nbytes] = head.view(np.uint8)
    blob[head.nbytes :] = elements.view(np.uint8)
    return blob


def array_of(blob: Array) -> Array:
    """The array in a blob, in the blob's own memory; raises ProtocolError."""
    try:
        return _array_of(blob)
    except (ValueError, IndexError) as error:
        raise ProtocolError(f"damaged scatter: {error}") from error


def _array_of(blob: Array) -> Array:
    code, ndim = (int(n) for n in blob[: _FIXED_WORDS * _WORD].view(np.int64))
    if not 0 <= ndim <= MAX_DIMS:
        raise ValueError(f"{ndim} dimensions")
    end = (_FIXED_WORDS + ndim) * _WORD
    shape = tuple(int(n) for n in blob[_FIXED_WORDS * _WORD : end].view(np.int64))
    dtype = dtype_of(code)
    if min(shape, default=0) < 0 or end + math.prod(shape) * dtype.itemsize != len(blob):
        raise ValueError(f"{len(blob)} bytes for {dtype.name}{list(shape)}")
    return blob[end:].view(dtype).reshape(shape)


# --- a part for each rank ---------------------------------------------------------------------


def own_blob(whole: Array, rank: int, world_size: int) -> Array:
    """The blob of `rank` in a result that has all: their lengths first, then they.

    Raises:
        ProtocolError: the lengths contradict the bytes that are there.
    """
    lengths, blobs = _numbers(whole, world_size, "scatter")
    if sum(lengths) != len(blobs):
        raise ProtocolError(f"damaged scatter: {len(blobs)} bytes for parts of {sum(lengths)}")
    lo = sum(lengths[:rank])
    return blobs[lo : lo + lengths[rank]]


def own_rows(whole: Array, rank: int, world_size: int, dtype: AnyDtype, row: Shape) -> list[Array]:
    """The rows of each rank for `rank`, of a result that has all: first their numbers, then they.

    Raises:
        ProtocolError: the numbers contradict the bytes that are there.
    """
    counts, rest = _numbers(whole, world_size * world_size, "alltoallv")
    row_bytes = math.prod(row) * dtype.itemsize
    if sum(counts) * row_bytes != len(rest):
        raise ProtocolError(f"damaged alltoallv: {len(rest)} bytes for {sum(counts)} rows")
    ends = [*accumulate(counts)]
    parts = []
    for at in range(rank, len(counts), world_size):
        hi, rows = ends[at], counts[at]
        part = rest[(hi - rows) * row_bytes : hi * row_bytes].view(dtype)
        parts.append(part.reshape(rows, *row))
    return parts


def _numbers(whole: Array, number: int, kind: str) -> tuple[list[int], Array]:
    """So many words, and the bytes behind them."""
    head = number * _WORD
    if len(whole) < head:
        raise ProtocolError(f"damaged {kind}: {len(whole)} bytes, the sizes alone are {head}")
    return whole[:head].view(np.uint64).tolist(), whole[head:]


# --- objects ----------------------------------------------------------------------------------


def pack_object(value: Any) -> Array:
    """One object as bytes; see `ftcomm.state.serializer` for what it may be; raises TypeError."""
    return np.frombuffer(pack_state(value, "obj"), np.uint8)


def unpack_object(blob: Array) -> Any:
    """The caller's own copy of the object in `blob`."""
    return unpack_state(blob.data)


def pack_item(value: Any) -> Array:
    """One object behind its length, so that several may follow each other."""
    raw: Array = np.frombuffer(pack_state(value, "obj"), np.uint8)
    length: Array = np.frombuffer(len(raw).to_bytes(_WORD, "little"), np.uint8)
    return np.concatenate((length, raw))


def unpack_items(blob: Array) -> Iterator[Any]:
    """The caller's own copies of the objects that follow each other in `blob`."""
    at = 0
    while at < len(blob):
        start = at + _WORD
        at = start + int.from_bytes(blob[at:start].tobytes(), "little")
        yield unpack_state(blob[start:at].data)


def object_blobs(values: Any, world_size: int) -> list[Array]:
    """For each rank the blob of its object.

    Raises:
        TypeError, ValueError: not one object for each rank, or one of them is none.
    """
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"scatter_object takes a list of objects, not {kind_of(values)}")
    if len(values) != world_size:
        raise ValueError(
            f"scatter_object needs one object for each of {counted(world_size, 'rank')},"
            f" got {len(values)}"
        )
    return [pack_object(value) for value in values]
