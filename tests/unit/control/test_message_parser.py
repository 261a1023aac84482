"""Messages out of bytes that come in any pieces."""

import numpy as np
import pytest

from ftcomm.control.messages.message_head import MessageHead
from ftcomm.control.messages.message_parser import (
    BUFFER_BYTES,
    HEAD_ALONE_BYTES,
    LARGE_BYTES,
    MAX_HEAD,
    MessageParser,
)
from ftcomm.errors import ProtocolError
from ftcomm.memory.pool import Array
from ftcomm.protocol.codec import encode
from ftcomm.protocol.field_types import MAX_DIMS, MAX_TAG
from ftcomm.protocol.link_messages import FetchEnd, FetchWait, MessageItem

BYTES = 6  # the code of uint8


def item(number: int, nbytes: int) -> MessageItem:
    return MessageItem(0, b"t", number, bytes(16), 0, BYTES, (nbytes,), nbytes)


def content(number: int, nbytes: int) -> bytes:
    return np.random.default_rng(number).bytes(nbytes)


def place_for(found: MessageHead) -> Array:
    return np.empty(found.fields.nbytes, np.uint8)


SIZES = (3, 0, 70_000, 1, BUFFER_BYTES, 200_000, LARGE_BYTES, LARGE_BYTES, 0, 300_000, 5_000, 7)
STREAM = b"".join(
    encode(FetchWait()) + encode(item(number, size)) + content(number, size)
    for number, size in enumerate(SIZES)
)


def feed(parser: MessageParser, data: bytes, piece: int) -> list[tuple[int, bytes]]:
    found = []
    at = 0
    while at < len(data):
        space = parser.space(head_alone=True)
        count = min(piece, len(space), len(data) - at)
        space[:count] = data[at : at + count]
        at += count
        found += [(whole.head.number, whole.raw.tobytes()) for whole in parser.fed(count)]
    return found


@pytest.mark.parametrize("piece", [1, 13, 4096, BUFFER_BYTES, 1 << 20])
def test_messages_come_whole_and_in_order_however_they_are_cut(piece: int) -> None:
    wanted = [(number, content(number, size)) for number, size in enumerate(SIZES)]
    assert feed(MessageParser(place_for), STREAM, piece) == wanted


def test_a_large_message_is_put_where_it_belongs() -> None:
    places: list[Array] = []

    def place(found: MessageHead) -> Array:
        places.append(np.empty(found.fields.nbytes, np.uint8))
        return places[-1]

    parser = MessageParser(place)
    head = encode(item(1, 200_000))
    assert feed(parser, head, len(head)) == []
    space = parser.space()
    assert np.may_share_memory(np.frombuffer(space, np.uint8), places[0])
    assert len(space) == 200_000


def test_the_place_of_a_message_is_asked_for_when_the_one_before_is_taken() -> None:
    """Both may be for one receive, which has its message then."""
    seen: list[tuple[str, int]] = []

    def place(found: MessageHead) -> Array:
        seen.append(("place", found.number))
        return place_for(found)

    parser = MessageParser(place)
    data = b"".join(encode(item(number, 2)) + b"ab" for number in (1, 2))
    parser.space()[: len(data)] = data
    seen.extend(("taken", whole.head.number) for whole in parser.fed(len(data)))
    assert seen == [("place", 1), ("taken", 1), ("place", 2), ("taken", 2)]


@pytest.mark.parametrize(
    ("nbytes", "is_alone"),
    [
        (LARGE_BYTES - 1, False),
        (LARGE_BYTES, True),
        (HEAD_ALONE_BYTES, True),
        (HEAD_ALONE_BYTES + 1, False),
    ],
)
def test_behind_a_large_message_the_next_head_is_read_alone(nbytes: int, is_alone: bool) -> None:
    parser, head = MessageParser(place_for), encode(item(1, nbytes))
    feed(parser, head + content(1, nbytes), 1 << 20)
    assert len(parser.space(head_alone=True)) == (len(head) if is_alone else BUFFER_BYTES)
    assert len(parser.space()) == BUFFER_BYTES, "the control thread reads what there is"
    feed(parser, head, 1 << 20)
    assert len(parser.space()) == (BUFFER_BYTES if nbytes < LARGE_BYTES else nbytes)


def test_a_longer_head_behind_a_large_message_is_read_in_two_pieces() -> None:
    parser = MessageParser(place_for)
    feed(parser, encode(item(1, LARGE_BYTES)) + content(1, LARGE_BYTES), 1 << 20)
    longer = item(70_000, 3)
    assert feed(parser, encode(longer) + b"abc", 1 << 20) == [(70_000, b"abc")]


def test_the_longest_head_is_taken() -> None:
    longest = MessageItem(
        2**31 - 1, b"t" * MAX_TAG, 2**32 - 1, bytes(16), 3, 14, (2**40,) * MAX_DIMS, 0
    )
    assert len(encode(longest)) <= MAX_HEAD


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (encode(FetchEnd("no")), "expected a message, got FetchEnd"),
        ((MAX_HEAD + 1).to_bytes(4, "big"), "control frame of 4097 bytes, at most 4096"),
        (bytes(4), "control frame of 0 bytes"),
        ((3).to_bytes(4, "big") + b"abc", "."),
    ],
    ids=["other", "long", "empty", "no message"],
)
def test_other_bytes_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        feed(MessageParser(place_for), data, len(data))
