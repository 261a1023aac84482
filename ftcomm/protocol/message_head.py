"""Heads of messages from rank to rank (rule R21): 36 bytes, the tag, and the shape.

Layout, little-endian::

    what varies 20   number u32 | digest 16
    fields 16        version i32 | bytes u64 | content u8 | dtype u8 | dimensions u8 | tag bytes u8
                     tag | u64 for each dimension

The number counts the messages of a tag in the version, from 1; content is one of `Content`; so many
raw bytes follow.  A head of zeros is a sign that there is nothing to send.

Most messages of a link have the same fields as the one before, which are kept with their bytes.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from ftcomm.errors import ProtocolError
from ftcomm.protocol.field_types import MAX_DIMS, MAX_ITEM_BYTES, MAX_TAG
from ftcomm.protocol.link_messages import Content

DIGEST_BYTES: Final = 16
_VARYING: Final = struct.Struct(f"<I{DIGEST_BYTES}s")
_FIELDS: Final = struct.Struct("<iQBBBB")
_DIMS_AT, _TAG_AT = _VARYING.size + _FIELDS.size - 2, _VARYING.size + _FIELDS.size - 1
_DIM_BYTES: Final = 8
MIN_HEAD: Final = _VARYING.size + _FIELDS.size
NOTHING: Final = bytes(MIN_HEAD)  # that there is nothing to send


class HeadFields(NamedTuple):
    """A head without its number and its digest."""

    version: int
    tag: bytes
    content: int
    dtype: int
    shape: tuple[int, ...]
    nbytes: int


PlainFields = tuple[int, bytes, int, int, tuple[int, ...], int]  # `HeadFields`, or one like it
_NONE_YET: Final[tuple[PlainFields | None, bytes]] = (None, b"")


@dataclass(slots=True)
class MessageHead:
    """One head that has come."""

    fields: HeadFields  # the very object of the head before, if these are the same
    number: int  # of the message in its stream
    digest: bytes  # of its content


def head_bytes(buffer: memoryview, at: int) -> int:
    """Length of the head at `at`, of which the first `MIN_HEAD` bytes are there.

    Raises:
        ProtocolError: it claims more dimensions or a longer tag than a message has.
    """
    dims, tag = buffer[at + _DIMS_AT], buffer[at + _TAG_AT]
    if dims > MAX_DIMS or tag > MAX_TAG:
        raise ProtocolError(
            f"the head of a message claims {dims} dimensions and a tag of {tag} bytes,"
            f" the limits are {MAX_DIMS} and {MAX_TAG}"
        )
    return MIN_HEAD + tag + dims * _DIM_BYTES


class HeadEncoder:
    """Encodes the heads of one link."""

    def __init__(self) -> None:
        self._last = _NONE_YET

    def encode(self, fields: PlainFields, number: int, digest: bytes) -> bytes:
        """The bytes of a head, of fields that a message has."""
        last, raw = self._last
        if fields != last:
            version, tag, content, dtype, shape, nbytes = fields
            raw = _FIELDS.pack(version, nbytes, content, dtype, len(shape), len(tag)) + tag
            raw += struct.pack(f"<{len(shape)}Q", *shape)
            self._last = fields, raw
        return _VARYING.pack(number, digest) + raw


class HeadDecoder:
    """Decodes the heads of one link."""

    def __init__(self) -> None:
        self._raw, self._fields = b"", HeadFields(0, b"", 0, 0, (), 0)

    def decode(self, head: bytes) -> MessageHead | None:
        """Decode a head of `head_bytes`; None for a sign.

        Raises:
            ProtocolError: no message is like that.
        """
        number, digest = _VARYING.unpack_from(head)
        raw = head[_VARYING.size :]
        if raw == self._raw and number:
            return MessageHead(self._fields, number, digest)
        if head == NOTHING:
            return None
        self._fields = _fields_of(raw, number)
        self._raw = raw
        return MessageHead(self._fields, number, digest)


def _fields_of(raw: bytes, number: int) -> HeadFields:
    version, nbytes, content, dtype, dims, tag_bytes = _FIELDS.unpack_from(raw)
    tag_end = _FIELDS.size + tag_bytes
    tag, shape = raw[_FIELDS.size : tag_end], struct.unpack_from(f"<{dims}Q", raw, tag_end)
    fields = HeadFields(version, tag, content, dtype, shape, nbytes)
    is_bounded = max((nbytes, *shape)) <= MAX_ITEM_BYTES
    if not (number and version >= -1 and content <= max(Content) and is_bounded):
        raise ProtocolError(f"no message is like the one of this head: {number}, {fields!r:.200}")
    return fields
