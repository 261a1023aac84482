"""Messages out of bytes that come in any pieces."""

import numpy as np
import pytest

from ftcomm.control.messages.message_parser import (
    BUFFER_BYTES,
    HEAD_ALONE_BYTES,
    LARGE_BYTES,
    MessageParser,
)
from ftcomm.errors import ProtocolError
from ftcomm.memory.pool import Array
from ftcomm.protocol.message_head import MIN_HEAD, NOTHING, HeadEncoder, MessageHead

BYTES = 6  # the code of uint8


def head(number: int, nbytes: int, tag: bytes = b"t") -> bytes:
    return HeadEncoder().encode((0, tag, 0, BYTES, (nbytes,), nbytes), number, bytes(16))


def content(number: int, nbytes: int) -> bytes:
    return np.random.default_rng(number).bytes(nbytes)


def place_for(found: MessageHead) -> Array:
    return np.empty(found.fields.nbytes, np.uint8)


SIZES = (3, 0, 70_000, 1, BUFFER_BYTES, 200_000, LARGE_BYTES, LARGE_BYTES, 0, 300_000, 5_000, 7)
STREAM = b"".join(
    NOTHING + head(number, size) + content(number, size) for number, size in enumerate(SIZES, 1)
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
    wanted = [(number, content(number, size)) for number, size in enumerate(SIZES, 1)]
    assert feed(MessageParser(place_for), STREAM, piece) == wanted


def test_a_large_message_is_put_where_it_belongs() -> None:
    places: list[Array] = []

    def place(found: MessageHead) -> Array:
        places.append(np.empty(found.fields.nbytes, np.uint8))
        return places[-1]

    parser = MessageParser(place)
    first = head(1, 200_000)
    assert feed(parser, first, len(first)) == []
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
    data = b"".join(head(number, 2) + b"ab" for number in (1, 2))
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
    parser, first = MessageParser(place_for), head(1, nbytes)
    feed(parser, first + content(1, nbytes), 1 << 20)
    assert len(parser.space(head_alone=True)) == (len(first) if is_alone else BUFFER_BYTES)
    assert len(parser.space()) == BUFFER_BYTES, "the control thread reads what there is"
    feed(parser, first, 1 << 20)
    assert len(parser.space()) == (BUFFER_BYTES if nbytes < LARGE_BYTES else nbytes)


def test_a_longer_head_behind_a_large_message_is_read_in_two_pieces() -> None:
    parser = MessageParser(place_for)
    feed(parser, head(1, LARGE_BYTES) + content(1, LARGE_BYTES), 1 << 20)
    assert feed(parser, head(2, 3, tag=b"longer") + b"abc", 1 << 20) == [(2, b"abc")]


def test_other_bytes_are_refused() -> None:
    data = bytes(MIN_HEAD - 2) + b"\xff\xff"
    with pytest.raises(ProtocolError, match="claims 255 dimensions and a tag of 255 bytes"):
        feed(MessageParser(place_for), data, len(data))
