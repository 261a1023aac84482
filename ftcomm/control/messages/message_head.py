"""Heads of messages from rank to rank, encoded and decoded fast (rule R21).

A head is the frame of one `MessageItem`.  Most messages of a link are like the one before: their
heads differ in number and digest alone.  When two in a row are, what is before these two fields and
what is behind them is kept, and used as long as that lasts.  All other heads go through the codec,
and the bytes are the same.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from ftcomm.protocol.codec import LENGTH_BYTES, MESSAGES, SCHEMAS, decode_body, encode
from ftcomm.protocol.link_messages import MessageItem
from ftcomm.protocol.messages import Frame
from ftcomm.protocol.msgpack_reader import pack

_CODE: Final = next(code for code, kind in MESSAGES.items() if kind is MessageItem)
_SCHEMA: Final = SCHEMAS[_CODE]
_NUMBER_AT: Final = list(_SCHEMA.fields).index("number")  # the digest is the next field
_DIGEST_BYTES: Final = 16
_DIGEST_MARK: Final = bytes([0xC4, _DIGEST_BYTES])  # msgpack's bytes of this length
_MAX_NUMBER: Final = 2**32 - 1
# By how many bytes a number takes: the first of them, as msgpack has it.
_NUMBER_MARKS: Final = {2: 0xCC, 3: 0xCD, 5: 0xCE}
_SMALL: Final = 0x7F  # the largest number that is its own mark


class HeadFields(NamedTuple):
    """The fields of a `MessageItem` without its number and its digest."""

    version: int
    tag: bytes
    content: int
    dtype: int
    shape: tuple[int, ...]
    nbytes: int

    def item(self, number: int, digest: bytes) -> MessageItem:
        """The message of these fields."""
        version, tag, content, dtype, shape, nbytes = self
        return MessageItem(version, tag, number, digest, content, dtype, shape, nbytes)


PlainFields = tuple[int, bytes, int, int, tuple[int, ...], int]  # `HeadFields`, or one like it


@dataclass(slots=True)
class MessageHead:
    """One head that has come."""

    fields: HeadFields  # the very object of the head before, if these are the same
    number: int  # of the message in its stream
    digest: bytes  # of its content


class HeadEncoder:
    """Encodes the heads of one link."""

    def __init__(self) -> None:
        self._last = _NONE_YET

    def encode(self, fields: PlainFields, number: int, digest: bytes) -> bytes:
        """The same bytes as `codec.encode` of this message; raises ValueError."""
        last, form = self._last
        if fields != last:
            made = HeadFields(*fields)
            self._last = made, None
            return encode(made.item(number, digest))
        if form is None:
            form = _form_of(last)
            self._last = last, form
        return form.encode(number, digest)


class HeadDecoder:
    """Decodes the heads of one link, and what else comes between messages."""

    def __init__(self) -> None:
        self._last = _NONE_YET  # likewise

    def decode(self, body: bytes) -> MessageHead | Frame:
        """Decode the body of one frame, as `codec.decode_body` does; a message's is a head.

        Raises:
            ProtocolError: it is no message.
        """
        last, form = self._last
        if last is not None and form is not None:
            varying = form.decode(body)
            if varying is not None:
                return MessageHead(last, *varying)
        decoded = decode_body(body)
        if not isinstance(decoded, MessageItem):
            return decoded
        fields = _fields_of(decoded)
        if last is not None and fields == last:
            self._last = last, _form_of(last)
            return MessageHead(last, decoded.number, decoded.digest)
        self._last = fields, None
        return MessageHead(fields, decoded.number, decoded.digest)


@dataclass(frozen=True, slots=True)
class _HeadForm:
    """The bytes of a head that do not vary."""

    front: bytes  # those before the number: the array's header, the code, version and tag
    rear: bytes  # those behind the digest

    def encode(self, number: int, digest: bytes) -> bytes:
        if len(digest) != _DIGEST_BYTES or number < 0:
            raise ValueError(f"message {number} with a digest of {len(digest)} bytes")
        body = b"".join((self.front, _packed(number), _DIGEST_MARK, digest, self.rear))
        return len(body).to_bytes(LENGTH_BYTES, "big") + body

    def decode(self, body: bytes) -> tuple[int, bytes] | None:
        """Number and digest of a head; None if it has another form."""
        front, rear = self.front, self.rear
        at = len(body) - len(rear) - _DIGEST_BYTES
        mark_at = at - len(_DIGEST_MARK)
        if mark_at <= len(front):  # front and rear would share bytes
            return None
        if not (body.startswith(front) and body.endswith(rear)):
            return None
        number = _number(body[len(front) : mark_at])
        if number is None or not body.startswith(_DIGEST_MARK, mark_at):
            return None
        return number, body[at : at + _DIGEST_BYTES]


_NONE_YET: Final[tuple[HeadFields | None, _HeadForm | None]] = (None, None)


def _fields_of(item: MessageItem) -> HeadFields:
    what = item.content, item.dtype, item.shape, item.nbytes
    return HeadFields(item.version, item.tag, *what)


def _form_of(fields: HeadFields) -> _HeadForm:
    plain = _SCHEMA.write(fields.item(0, bytes(_DIGEST_BYTES)))
    body = pack([_CODE, *plain])
    end = len(body) - sum(len(pack(field)) for field in plain[_NUMBER_AT + 2 :])
    varying = len(pack(0)) + len(_DIGEST_MARK) + _DIGEST_BYTES
    return _HeadForm(body[: end - varying], body[end:])


def _packed(number: int) -> bytes:
    """The same bytes as `pack(number)`, which takes ten times as long."""
    if number <= _SMALL:
        return number.to_bytes(1, "big")
    for size, mark in _NUMBER_MARKS.items():
        bits = 8 * (size - 1)
        if number < 1 << bits:
            return (mark << bits | number).to_bytes(size, "big")
    raise ValueError(f"message {number}, at most {_MAX_NUMBER}")


def _number(raw: bytes) -> int | None:
    """The number that is all of `raw`; None if it is anything else."""
    if len(raw) == 1:
        return raw[0] if raw[0] <= _SMALL else None
    if _NUMBER_MARKS.get(len(raw)) != raw[0]:
        return None
    return int.from_bytes(raw[1:], "big")
