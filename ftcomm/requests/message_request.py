"""Messages from rank to rank, as the user's arguments describe them."""

import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype, dtype_code
from ftcomm.memory.message_value import MessageValue, text_of
from ftcomm.memory.pool import Array
from ftcomm.protocol.field_types import MAX_TAG
from ftcomm.protocol.link_messages import Content
from ftcomm.protocol.signature import Scalar, Tag
from ftcomm.requests.arguments import as_elements, scalar_type
from ftcomm.requests.object_payload import pack_object

LOOKED_AT_BYTES = 1 << 12
_NUMBER, _TEXT = b"i", b"s"
_TAG_BYTES = 8
_CONTENTS = {
    Scalar.ARRAY: Content.ARRAY,
    Scalar.PYTHON: Content.PYTHON_NUMBER,
    Scalar.NUMPY: Content.NUMPY_SCALAR,
}


class MessageForm(NamedTuple):
    """The same in all messages of one line and one kind of content."""

    to: int  # the rank that receives them
    tag: bytes  # as it travels
    site: str  # the user's line
    shape: tuple[int, ...]  # of the user's array
    content: Content  # what it was to the user
    text: bytes  # of dtype, shape and content, for the digest


@dataclass(slots=True)
class MessageToSend:
    """One message, ready to be logged."""

    form: MessageForm  # of it and others
    elements: Array  # 1-D, contiguous, native
    is_own: bool = False  # the log may keep `elements` themselves
    has_place: bool = False  # it is logged, or is just being logged


def array_message(x: Any, to: int, tag: bytes, site: str, *, copy: bool) -> MessageToSend:
    """A message of an array-like, or of one number; raises TypeError or ValueError."""
    elements, shape = as_elements(x)
    dtype_code(elements.dtype)
    content = _CONTENTS[scalar_type(x)]
    text = text_of(content, elements.dtype, shape)
    return MessageToSend(MessageForm(to, tag, site, shape, content, text), elements, not copy)


def object_message(obj: Any, to: int, tag: bytes, site: str) -> MessageToSend:
    """A message of an object, which is packed now.

    Raises:
        TypeError: something else than plain data is in it; the message says where.
    """
    packed = pack_object(obj)
    text = text_of(Content.OBJECT, packed.dtype, packed.shape)
    form = MessageForm(to, tag, site, packed.shape, Content.OBJECT, text)
    return MessageToSend(form, packed, is_own=True)


def packed_tag(tag: Tag) -> bytes:
    """A user's tag as it travels: an int is never the same as a str.

    Raises:
        TypeError, ValueError: it is neither, or too long.
    """
    if isinstance(tag, str):
        raw = _TEXT + tag.encode(errors="surrogatepass")
        if len(raw) > MAX_TAG:
            raise ValueError(f"tag of {len(raw) - 1} bytes, at most {MAX_TAG - 1}")
        return raw
    try:
        number = operator.index(tag)
        return _NUMBER + number.to_bytes(_TAG_BYTES, "big", signed=True)
    except TypeError:
        raise TypeError(f"tag must be an int or a str, not {type(tag).__name__}") from None
    except OverflowError:
        raise ValueError(f"tag {tag:#x} does not fit 64 bits") from None


def other_rank(peer: Any, name: str, rank: int, world_size: int) -> int:
    """The user's `peer`, another rank than `rank`; raises TypeError or ValueError."""
    try:
        found = operator.index(peer)
    except TypeError:
        raise TypeError(f"{name} must be a rank, not {type(peer).__name__}") from None
    if not 0 <= found < world_size:
        raise ValueError(f"{name}={found} is no rank of this job: they are 0 to {world_size - 1}")
    if found == rank:
        raise ValueError(f"{name}={found} is this rank; a rank cannot message itself")
    return found


def check_content(
    value: MessageValue, source: int, shape: tuple[int, ...] | None, dtype: AnyDtype | None
) -> None:
    """Refuse a message that is no array, or not one of this shape and dtype.

    Raises:
        TypeError, ValueError: saying what the source has sent.
    """
    if value.is_object:
        raise TypeError(f"rank {source} sent an object; receive it with recv_object()")
    has_wrong_dtype = dtype is not None and value.dtype != dtype.newbyteorder("=")
    if has_wrong_dtype or (shape is not None and value.stored.shape != shape):
        name = value.dtype.name if dtype is None else dtype.name
        wanted = f"{name}{list(value.stored.shape if shape is None else shape)}"
        raise ValueError(f"rank {source} sent {value.text}, and out= or like= is {wanted}")


def check_object(value: MessageValue, source: int) -> None:
    """Refuse a message that is no object; raises TypeError."""
    if not value.is_object:
        raise TypeError(f"rank {source} sent {value.text}; receive it with recv()")


def received(value: MessageValue, out: Array | None) -> Any:
    """Give the user a message that fits: in `out`, as an own array, or as a number."""
    stored = value.stored
    flat, shape = stored.flat, stored.shape
    array = flat if len(shape) == 1 else flat.reshape(shape)
    if out is not None:
        # A large one may have been received there; of a small one, to look costs more than a copy.
        if flat.nbytes < LOOKED_AT_BYTES or not np.may_share_memory(out, array):
            out[...] = array
        return out
    if value.content is Content.PYTHON_NUMBER:
        return array.item()
    return array[()] if value.content is Content.NUMPY_SCALAR else np.asarray(array)
