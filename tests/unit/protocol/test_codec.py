"""Control codec: every message survives the wire, nothing else gets through."""

import dataclasses
import struct
import tracemalloc
import typing

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcomm.errors import ProtocolError
from ftcomm.protocol.codec import SCHEMAS, Decoder, decode_body, encode, frame_length
from ftcomm.protocol.field_types import MAX_CONTROL_FRAME, MAX_TEXT, MAX_WORLD_SIZE
from ftcomm.protocol.messages import (
    Blocked,
    ControlMessage,
    Fetched,
    Frame,
    Heartbeat,
    More,
    Plan,
    Refused,
    Report,
    Revoke,
    Suspect,
)
from ftcomm.protocol.operator_messages import Done, StatusReply
from ftcomm.protocol.position import Position, PositionRange
from ftcomm.protocol.schema import (
    cut_text,
)
from tests.security.strategies import values

# `More` is no message by itself: see test_splitting.
messages = st.one_of(
    [values(schema, st.integers) for schema in SCHEMAS.values() if schema.build is not More]
)

HEARTBEAT = Heartbeat(7, 3, Position(0, 4, 2), Blocked(b"s" * 40, "train.py:12", (1, 2), 900))
REPORT = Report(
    5, Position(0, -1, 1), -1, -1, b"", (PositionRange(-1, 0, 4, 2),), -1, 0, (3,), b"", "", False
)
SAMPLES: list[ControlMessage] = [HEARTBEAT, REPORT, Done(), Suspect(2, (1,), "reset by peer")]


def body(*items: object) -> bytes:
    return msgpack.packb(list(items))


def check_message_or_typed_error(raw: bytes) -> None:
    try:
        got = decode_body(raw)
    except ProtocolError:
        return
    assert decode_body(encode(got)[4:]) == got


def test_every_message_has_one_row_and_every_field_its_bounds() -> None:
    rows = {schema.build: list(schema.fields) for schema in SCHEMAS.values()}
    fields = {
        kind: [field.name for field in dataclasses.fields(kind)] for kind in typing.get_args(Frame)
    }
    fields[Plan] = [name for name in fields[Plan] if name not in ("members", "grouping")]
    assert rows == fields  # those two travel in member deltas


@settings(max_examples=400)
@given(messages)
def test_every_message_comes_back_as_it_was_sent(message: ControlMessage) -> None:
    assert Decoder().feed(encode(message)) == [message]


@settings(max_examples=60)
@given(st.lists(messages, max_size=5), st.integers(1, 60))
def test_pieces_of_any_size_give_the_same_messages(sent: list[ControlMessage], size: int) -> None:
    stream = b"".join(encode(message) for message in sent)
    decoder = Decoder()
    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    got = [message for piece in pieces for message in decoder.feed(memoryview(piece))]
    assert (got, decoder.pending) == (sent, 0)


def test_byte_by_byte_equals_at_once() -> None:
    stream = b"".join(encode(message) for message in SAMPLES)
    decoder = Decoder()
    assert [m for byte in stream for m in decoder.feed(bytes([byte]))] == SAMPLES
    assert Decoder().feed(bytearray(stream)) == SAMPLES


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: type(m).__name__)
def test_a_body_cut_short_at_any_byte_is_refused(message: ControlMessage) -> None:
    whole = encode(message)[4:]
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode_body(whole[:size])


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: type(m).__name__)
def test_a_flipped_bit_gives_a_message_or_a_protocol_error_never_else(
    message: ControlMessage,
) -> None:
    whole = encode(message)[4:]
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        check_message_or_typed_error(bytes(flipped))


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_noise_is_a_message_or_one_typed_error(noise: bytes) -> None:
    check_message_or_typed_error(noise)


@settings(max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(0, 99) | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=2),
        max_leaves=12,
    )
)
def test_any_msgpack_is_a_message_or_one_typed_error(document: object) -> None:
    for raw in (msgpack.packb(document), body(3, 1, 2, document, None), body(2, document)):
        check_message_or_typed_error(raw)


BAD_BODIES = {
    "no array": msgpack.packb(6),
    "empty array": body(),
    "unknown type": body(99),
    "type is a bool": body(True, 1),
    "type is a float": body(6.0, 1),
    "type is text": body("Fetched", 1),
    "field missing": body(6),
    "field extra": body(6, 1, 2),
    "fields as a map": msgpack.packb({6: 1}),
    "trailing byte": body(6, 1) + b"\x00",
    "second message in one frame": body(6, 1) + body(6, 1),
    "negative epoch": body(6, -1),
    "epoch over 32 bits": body(6, 2**32),
    "bool for an integer": body(6, True),
    "float for an integer": body(6, 1.0),
    "text for an integer": body(6, "1"),
    "integer for a bool": body(2, 5, [0, -1, 1], -1, -1, b"", [], -1, 0, [], b"", "", 0),
    "bytes for text": body(9, b"reason"),
    "text for bytes": body(48 + 1, "result", [0, 0, 0], "", 0, [], 0),
    "text not UTF-8": b"\x92\x09\xa2\xff\xfe",
    "text too long": body(9, "x" * (MAX_TEXT + 1)),
    "array too long": body(4, 1, [0] * (MAX_WORLD_SIZE + 1), ""),
    "nil where nothing may be absent": body(6, None),
    "extension type": b"\x92\x06" + msgpack.packb(msgpack.ExtType(1, b"xy")),
    "array for an integer": body(6, []),
    "pair of three": body(16, "job", 1, 1, 4, 1, [["a", "b", "c"]]),
    "run with step 0": body(48, 1, -1, [[0, 0, 4, 0]]),
    "rank over the limit": body(4, 1, [MAX_WORLD_SIZE], ""),
}


@pytest.mark.parametrize("raw", list(BAD_BODIES.values()), ids=list(BAD_BODIES))
def test_what_does_not_fit_its_row_is_refused_and_stays_refused(raw: bytes) -> None:
    decoder = Decoder()
    good = encode(Fetched(1))
    assert decoder.feed(good) == [Fetched(1)]
    with pytest.raises(ProtocolError) as first:
        decoder.feed(struct.pack(">I", len(raw)) + raw)
    with pytest.raises(ProtocolError) as second:
        decoder.feed(good)
    assert second.value is first.value


@pytest.mark.parametrize("length", [0, MAX_CONTROL_FRAME + 1, 2**31, 2**32 - 1])
def test_a_bad_length_is_refused_before_its_body_comes(length: int) -> None:
    prefix = struct.pack(">I", length)
    with pytest.raises(ProtocolError, match="control frame of"):
        Decoder().feed(prefix)
    with pytest.raises(ProtocolError):
        frame_length(prefix)


BOMBS = {
    "nested arrays of 4096": b"\xdc\x10\x00" * 21_000,
    "nested arrays of 2^32-1": b"\xdd\xff\xff\xff\xff" * 13_000,
    "nested maps": b"\xdf\x00\x00\x10\x00" * 13_000,
    "many empty arrays": b"\xdd\x00\x03\xff\xf0" + b"\x90" * 0x3FFF0,
    "many empty maps in a field": b"\x92\x06\xdd\x00\x03\xff\xe0" + b"\x80" * 0x3FFE0,
    "endless text": b"\x92\x09\xdb\xff\xff\xff\xff" + b"x" * 1000,
    "endless bytes": b"\x92\x09\xc6\xff\xff\xff\xff" + b"x" * 1000,
    "plan of empty members": b"\x9b\x13\x01\x01\xdd\x00\x03\xff\xd0" + b"\x90" * 0x3FFD0,
}


@pytest.mark.parametrize("bomb", list(BOMBS.values()), ids=list(BOMBS))
def test_a_msgpack_bomb_costs_no_more_than_a_few_frames(bomb: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode_body(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MAX_CONTROL_FRAME


def test_prose_is_cut_when_sent_and_names_are_not() -> None:
    sent = "é" * MAX_TEXT + "\ud800"
    assert Decoder().feed(encode(Revoke(1, sent))) == [Revoke(1, "é" * (MAX_TEXT // 2))]
    assert cut_text("aé", 2) == "a"
    with pytest.raises(ValueError, match=r"Fenced|Refused|error"):
        encode(Refused("x" * 65, "reason"))


@pytest.mark.parametrize(
    "message",
    [
        Fetched(-1),
        Fetched(2**32),
        Suspect(1, (MAX_WORLD_SIZE,), ""),
        Suspect(1, [1], ""),
        StatusReply("x" * MAX_CONTROL_FRAME),
        Heartbeat(1, 1, Position(0, 0, 0), Blocked(b"s" * 49, "", (), 0)),
    ],
    ids=lambda m: repr(m)[:40],
)
def test_what_may_not_be_sent_is_our_own_mutant(message: ControlMessage) -> None:
    with pytest.raises(ValueError, match=type(message).__name__):
        encode(message)
