"""Heads of messages: the same bytes and the same answers as the codec's, from what is kept."""

import random

import pytest

from ftcomm.control.messages.message_head import (
    HeadDecoder,
    HeadEncoder,
    HeadFields,
    MessageHead,
)
from ftcomm.errors import ProtocolError
from ftcomm.protocol.codec import LENGTH_BYTES, decode_body, encode
from ftcomm.protocol.field_types import MAX_DIMS, MAX_TAG
from ftcomm.protocol.link_messages import FetchWait, MessageItem
from ftcomm.protocol.messages import Frame

DIGEST = bytes(range(100, 116))
# around each change of how msgpack writes a number
NUMBERS = (0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1)
FORMS = (
    HeadFields(0, b"t", 0, 6, (2,), 2),
    HeadFields(3, b"i" + bytes(8), 0, 11, (8,), 64),
    HeadFields(2**31 - 1, b"t" * MAX_TAG, 3, 14, (2**40,) * MAX_DIMS, 0),
    HeadFields(1, b"", 1, 11, (), 8),
)


def item(form: HeadFields, number: int, digest: bytes = DIGEST) -> MessageItem:
    return form.item(number, digest)


def decoded(decoder: HeadDecoder, raw: bytes) -> Frame:
    """Decode as the codec does."""
    found = decoder.decode(raw)
    if not isinstance(found, MessageHead):
        return found
    return found.fields.item(found.number, found.digest)


def body(message: Frame) -> bytes:
    return encode(message)[LENGTH_BYTES:]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_head_has_the_bytes_of_the_codec(form: HeadFields, number: int) -> None:
    encoder, wanted = HeadEncoder(), encode(form.item(number, DIGEST))
    assert [encoder.encode(form, number, DIGEST) for _ in range(3)] == [wanted] * 3


def test_heads_of_any_order_have_the_bytes_of_the_codec() -> None:
    encoder, turns = HeadEncoder(), random.Random(5)
    for _ in range(300):
        form, number, digest = turns.choice(FORMS), turns.choice(NUMBERS), turns.randbytes(16)
        assert encoder.encode(form, number, digest) == encode(form.item(number, digest))


@pytest.mark.parametrize(
    ("form", "number", "digest"),
    [
        (FORMS[0], -1, DIGEST),
        (FORMS[0], 2**32, DIGEST),
        (FORMS[0], 1, bytes(17)),
        (FORMS[0]._replace(tag=b"t" * (MAX_TAG + 1)), 1, DIGEST),
        (FORMS[0]._replace(dtype=256), 1, DIGEST),
    ],
)
def test_a_field_outside_its_bounds_is_refused(
    form: HeadFields, number: int, digest: bytes
) -> None:
    encoder = HeadEncoder()
    for _ in range(3):
        with pytest.raises(ValueError, match=r"MessageItem|message"):
            encoder.encode(form, number, digest)


def test_heads_like_the_two_before_are_decoded_without_the_codec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = HeadDecoder()
    for number in (1, 2):
        assert decoded(decoder, body(item(FORMS[1], number))) == item(FORMS[1], number)
    with monkeypatch.context() as patch:
        patch.setattr("ftcomm.control.messages.message_head.decode_body", None)
        for number in NUMBERS:
            digest = random.Random(number).randbytes(16)
            wanted = item(FORMS[1], number, digest)
            assert decoded(decoder, body(wanted)) == wanted


def test_each_head_is_decoded_as_the_codec_does_whatever_was_before() -> None:
    decoder, turns = HeadDecoder(), random.Random(5)
    for _ in range(300):
        message = item(turns.choice(FORMS), turns.choice(NUMBERS), turns.randbytes(16))
        assert decoded(decoder, body(message)) == message
        if turns.random() < 0.2:
            assert decoder.decode(body(FetchWait())) == FetchWait()


def _answer(raw: bytes, decoder: HeadDecoder | None) -> Frame | str:
    try:
        return decode_body(raw) if decoder is None else decoded(decoder, raw)
    except ProtocolError as error:
        return error.cause


@pytest.mark.parametrize("seed", range(20))
def test_damaged_heads_are_answered_as_the_codec_does(seed: int) -> None:
    """Bytes changed, cut out, doubled or put in: at both sides of each border between fields."""
    turns = random.Random(seed)
    whole = body(item(FORMS[seed % len(FORMS)], turns.choice(NUMBERS), turns.randbytes(16)))
    decoder = HeadDecoder()
    for _ in range(2):
        decoder.decode(whole)
    for _ in range(300):
        raw, at = bytearray(whole), turns.randrange(len(whole))
        end = min(at + turns.choice((1, 1, 2, 5, 18)), len(raw))
        raw[at:end] = turns.choice((b"", raw[at:end] * 2, turns.randbytes(end - at)))
        assert _answer(bytes(raw), decoder) == _answer(bytes(raw), None)
        for _ in range(2):
            decoder.decode(whole)  # what it knows is this form again


def test_a_head_whose_front_is_its_rear_too_is_refused() -> None:
    """The tag begins as the rear does, which has a number and the mark of a digest in it."""
    shape = (0, 7, 7, 7, 0x05C41011, 2**39)
    rear = body(item(HeadFields(3, b"", 0, 6, shape, 0), 1))[-22:]
    whole = body(item(HeadFields(3, rear[:8], 0, 6, shape, 0), 1))
    decoder = HeadDecoder()
    for _ in range(2):
        decoder.decode(whole)
    for cut in range(len(whole)):
        shared = whole[:cut] + rear
        assert _answer(shared, decoder) == _answer(shared, None)
