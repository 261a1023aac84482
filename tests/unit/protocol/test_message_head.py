"""Heads of messages: what is kept of the one before changes no bytes and no answer."""

import random

import pytest

from ftcomm.errors import ProtocolError
from ftcomm.protocol.field_types import MAX_DIMS, MAX_TAG
from ftcomm.protocol.message_head import (
    MIN_HEAD,
    NOTHING,
    HeadDecoder,
    HeadEncoder,
    HeadFields,
    MessageHead,
    head_bytes,
)

DIGEST = bytes(range(100, 116))
NUMBERS = (1, 255, 256, 2**32 - 1)
FORMS = (
    HeadFields(0, b"t", 0, 6, (2,), 2),
    HeadFields(3, b"i" + bytes(8), 0, 11, (8,), 64),
    HeadFields(-1, b"", 1, 11, (), 8),
    HeadFields(2**31 - 1, b"t" * MAX_TAG, 3, 255, (2**40,) * MAX_DIMS, 0),
)


def encoded(fields: HeadFields, number: int = 1) -> bytes:
    return HeadEncoder().encode(fields, number, DIGEST)


def test_a_head_has_the_bytes_that_the_protocol_says() -> None:
    wanted = "04030201" + DIGEST.hex() + "05000000" + "6000000000000000" + "000b0202" + b"ab".hex()
    wanted += "0300000000000000" + "0400000000000000"
    assert encoded(HeadFields(5, b"ab", 0, 11, (3, 4), 96), 0x01020304).hex() == wanted


def test_heads_in_any_order_come_back() -> None:
    encoder, decoder, turns = HeadEncoder(), HeadDecoder(), random.Random(5)
    for _ in range(300):
        fields, number, digest = turns.choice(FORMS), turns.choice(NUMBERS), turns.randbytes(16)
        raw = encoder.encode(fields, number, digest)
        assert raw == HeadEncoder().encode(fields, number, digest)
        assert head_bytes(memoryview(b"..." + raw), 3) == len(raw)
        assert decoder.decode(raw) == MessageHead(fields, number, digest)
        if turns.random() < 0.2:
            assert decoder.decode(NOTHING) is None


def test_fields_like_those_before_are_the_same_object() -> None:
    decoder = HeadDecoder()
    heads = [decoder.decode(encoded(FORMS[1], number)) for number in NUMBERS]
    assert len({id(head and head.fields) for head in heads}) == 1


@pytest.mark.parametrize(
    "raw",
    [
        encoded(FORMS[0], 0),
        encoded(FORMS[0]._replace(version=-2)),
        encoded(FORMS[0]._replace(content=4)),
        encoded(FORMS[0]._replace(nbytes=2**40 + 1)),
        encoded(FORMS[0]._replace(shape=(1, 2**40 + 1))),
        NOTHING[:-1] + b"\1" + b"t",
    ],
    ids=["number", "version", "content", "bytes", "shape", "sign"],
)
def test_a_head_of_no_message_is_refused(raw: bytes) -> None:
    decoder = HeadDecoder()
    decoder.decode(encoded(FORMS[0]))
    for _ in range(2):
        with pytest.raises(ProtocolError, match="no message is like the one of this head"):
            decoder.decode(raw)


@pytest.mark.parametrize("end", [bytes([MAX_DIMS + 1, 0]), bytes([0, MAX_TAG + 1])])
def test_a_length_beyond_the_longest_head_is_refused(end: bytes) -> None:
    with pytest.raises(ProtocolError, match="of a message claims"):
        head_bytes(memoryview(bytes(MIN_HEAD - 2) + end), 0)
