"""Blobs: what a scatter or a collective of objects sends, as 1-D arrays of bytes.

A scatter's blob is a head of int64 (dtype code, 1 if the parts were stacked, number of trailing
dimensions, these, then the rows of each rank) and the elements of all ranks in rank order.  An
object's blob is its packed state, with its length in front where several follow each other.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ftcomm.collectives.dtypes import dtype_code, dtype_of
from ftcomm.config.plurals import counted
from ftcomm.errors import ProtocolError
from ftcomm.memory.pool import Array
from ftcomm.protocol.field_types import MAX_DIMS
from ftcomm.requests.arguments import as_elements
from ftcomm.state.serializer import pack_state, unpack_state

_WORD = 8  # bytes of one number in a head
_FIXED_WORDS = 3  # dtype code, stacked, number of trailing dimensions


# --- scatter ----------------------------------------------------------------------------------


def pack_parts(x: Any, world_size: int) -> Array:
    """The blob of a scatter: part i of `x` is for rank i.

    Args:
        x: array-like of shape ``(world_size, ...)``, or a list or tuple of `world_size` arrays of
            one dtype and trailing shape, whose first dimensions may differ.
        world_size: number of ranks.

    Raises:
        TypeError, ValueError: naming what does not fit.
    """
    if isinstance(x, (list, tuple)) and any(np.ndim(part) for part in x):
        return _pack_list(x, world_size)
    elements, shape = as_elements(x)
    code = dtype_code(elements.dtype)
    if shape[:1] != (world_size,):
        raise ValueError(
            f"scatter needs one part for each of {counted(world_size, 'rank')}:"
            f" x has shape {shape}, must be ({world_size}, ...)"
        )
    return _blob([code, 1, len(shape) - 1, *shape[1:], *[1] * world_size], [elements])


def _pack_list(parts: Sequence[Any], world_size: int) -> Array:
    if len(parts) != world_size:
        raise ValueError(
            f"scatter needs one part for each of {counted(world_size, 'rank')}, got {len(parts)}"
        )
    elements, shapes = zip(*(as_elements(part) for part in parts), strict=True)
    code = dtype_code(elements[0].dtype)
    for rank, (own, shape) in enumerate(zip(elements, shapes, strict=True)):
        if not shape:
            raise ValueError(f"part {rank} has no dimension, others have; give it one")
        if own.dtype != elements[0].dtype or shape[1:] != shapes[0][1:]:
            raise ValueError(
                f"part {rank} is {own.dtype.name}{list(shape)}, part 0 is "
                f"{elements[0].dtype.name}{list(shapes[0])}: only the first dimension may differ"
            )
    trailing = shapes[0][1:]
    rows = [shape[0] for shape in shapes]
    return _blob([code, 0, len(trailing), *trailing, *rows], elements)


def _blob(head: Sequence[int], parts: Sequence[Array]) -> Array:
    words = np.array(head, np.int64)
    blob = np.empty(words.nbytes + sum(part.nbytes for part in parts), np.uint8)
    blob[: words.nbytes] = words.view(np.uint8)
    at = words.nbytes
    for part in parts:
        blob[at : at + part.nbytes] = part.view(np.uint8)
        at += part.nbytes
    return blob


def part_of(blob: Array, rank: int, world_size: int) -> Array:
    """The part of `rank`, in the blob's own memory.

    Raises:
        ProtocolError: the blob contradicts itself.
    """
    try:
        return _part_of(blob, rank, world_size)
    except (ValueError, IndexError) as error:
        raise ProtocolError(f"damaged scatter: {error}") from error


def _part_of(blob: Array, rank: int, world_size: int) -> Array:
    code, stacked, ndim = (int(n) for n in blob[: _FIXED_WORDS * _WORD].view(np.int64))
    end = (_FIXED_WORDS + ndim + world_size) * _WORD
    words = [int(n) for n in blob[_FIXED_WORDS * _WORD : end].view(np.int64)]
    trailing, rows = tuple(words[:ndim]), words[ndim:]
    dtype = dtype_of(code)
    row_bytes = math.prod(trailing) * dtype.itemsize
    if not 0 <= ndim <= MAX_DIMS or min(words) < 0 or end + sum(rows) * row_bytes != len(blob):
        raise ValueError(f"{len(blob)} bytes for {sum(rows)} rows of {dtype.name}{list(trailing)}")
    lo = end + sum(rows[:rank]) * row_bytes
    part = blob[lo : lo + rows[rank] * row_bytes].view(dtype)
    return part.reshape(trailing if stacked else (rows[rank], *trailing))


# --- objects ----------------------------------------------------------------------------------


def pack_object(value: Any) -> Array:
    """One object as bytes; see `ftcomm.state.serializer` for what it may be.

    Raises:
        TypeError: something else is in it; the message says where.
    """
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
