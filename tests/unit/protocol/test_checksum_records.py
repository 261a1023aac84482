"""Streams that are cut into records: what goes in comes out, and no changed bit does."""

import random

import pytest

from ftcomm.errors import ProtocolError
from ftcomm.protocol.checksum_records import (
    HEAD_BYTES,
    MAX_RECORD_BYTES,
    RecordReader,
    record_head,
    xxh3_digest,
)


def record(number: int, payload: bytes) -> bytes:
    return record_head(xxh3_digest, number, (memoryview(payload),)) + payload


def read_all(stream: bytes, piece: int, wanted: int = 1000) -> bytes:
    """Return the bytes that a reader yields of a stream that arrives in pieces."""
    reader, read, target = RecordReader(xxh3_digest), bytearray(), bytearray(wanted)
    for at in range(0, len(stream), piece):
        part = stream[at : at + piece]
        while part:
            space = reader.space()
            count = min(len(space), len(part))
            space[:count] = part[:count]
            part = part[count:]
            reader.arrived(count)
            while given := reader.take(target):
                read += target[:given]
    return bytes(read)


@pytest.mark.parametrize("piece", [1, 7, HEAD_BYTES, 5000, 10**6])
def test_what_was_cut_into_records_comes_out_however_it_arrives(piece: int) -> None:
    dice = random.Random(piece)
    sizes = [1, 2, 96, 3000] + [MAX_RECORD_BYTES, MAX_RECORD_BYTES - 1] * (piece > 1000)
    payloads = [dice.randbytes(size) for size in sizes]
    stream = b"".join(record(number, each) for number, each in enumerate(payloads))
    assert read_all(stream, piece) == b"".join(payloads)


def test_parts_have_the_digest_of_the_whole() -> None:
    parts = [memoryview(bytes([n]) * n) for n in (3, 1, 200)]
    assert xxh3_digest(5, parts) == xxh3_digest(5, [memoryview(b"".join(parts))])


def test_every_changed_bit_is_found_before_a_byte_is_handed_out() -> None:
    payload = bytes(range(40))
    good = record(0, payload)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError, match="checksum of record 0 does not match"):
            read_all(bytes(bad), len(bad))


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0, 2)])
def test_a_record_that_is_lost_repeated_or_exchanged_is_found(order: tuple[int, int]) -> None:
    records = [record(number, bytes([number]) * 50) for number in range(3)]
    with pytest.raises(ProtocolError, match="does not match"):
        read_all(b"".join(records[number] for number in order), 10**6)


def test_a_record_cannot_ask_for_more_room_than_there_is() -> None:
    for length in (0, MAX_RECORD_BYTES + 1, 2**32 - 1):
        head = length.to_bytes(4, "little") + (length ^ 0xFFFFFFFF).to_bytes(4, "little") + bytes(8)
        with pytest.raises(ProtocolError, match="its head is damaged"):
            read_all(head, 100)
