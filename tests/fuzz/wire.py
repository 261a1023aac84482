"""Feeders of connections' input: messages, headers, handshakes."""

import contextlib
from collections.abc import Iterable

import numpy as np

from ftcomm.collectives.schedules.schedule import REDUCE_SEGMENT_BYTES
from ftcomm.control.messages.message_parser import MessageParser
from ftcomm.errors import ProtocolError
from ftcomm.execution.header_check import CallHeader, check_header
from ftcomm.memory.pool import Array, dtype_from_wire
from ftcomm.protocol.checksum_records import RecordReader, xxh3_digest
from ftcomm.protocol.codec import Decoder, decode_body, encode
from ftcomm.protocol.frame_header import HEADER_BYTES, FrameHeader, pack_header, unpack_header
from ftcomm.protocol.handshake import (
    NONCE_BYTES,
    ClientHandshake,
    DataContext,
    ServerHandshake,
    control_key,
)
from ftcomm.protocol.member_deltas import MemberDeltaReader
from ftcomm.protocol.message_head import MessageHead
from ftcomm.protocol.messages import ControlMessage, Frame
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import Kind, OpCode, Signature, is_compatible, signature_text

KEY = control_key(b"t" * 64)
CLIENT_NONCE, SERVER_NONCE = b"c" * NONCE_BYTES, b"s" * NONCE_BYTES
SIGNATURE = Signature(Kind.ALLREDUCE, OpCode.SUM, 12, count=3, ndim=1, dims=(3, 0, 0, 0))
MESSAGE_LIMIT = 1 << 16
HEADER = FrameHeader(
    7, Position(0, -1, 3), 2, REDUCE_SEGMENT_BYTES, SIGNATURE.encode(), "train.py:12"
)


def feed_body(raw: bytes) -> Frame:
    """One message; what was understood can be said again."""
    message = decode_body(raw)
    assert decode_body(encode(message)[4:]) == message
    return message


def feed_stream(raw: bytes) -> list[ControlMessage]:
    """Messages behind each other; how the bytes were cut into pieces changes nothing."""
    decoder, pieces = Decoder(), Decoder()
    try:
        whole = decoder.feed(raw)
    except ProtocolError as error:
        with contextlib.suppress(ProtocolError):
            decoder.feed(b"")
            raise AssertionError("a peer that broke the protocol was believed again") from error
        raise
    assert [m for at in range(0, len(raw), 7) for m in pieces.feed(raw[at : at + 7])] == whole
    assert pieces.pending == decoder.pending
    member_deltas = MemberDeltaReader()
    for message in whole:
        member_deltas.take(message)
    return whole


def feed_messages(raw: bytes) -> list[tuple[MessageHead, bytes]]:
    """Messages from rank to rank; how the bytes were cut into pieces changes nothing."""
    whole = _messages(raw, len(raw))
    assert _messages(raw, 7) == whole
    return whole


def _messages(raw: bytes, piece: int) -> list[tuple[MessageHead, bytes]]:
    parser, found, at = MessageParser(_place_for), [], 0
    while at < len(raw):
        space = parser.space()
        part = raw[at : at + min(piece, len(space))]
        space[: len(part)] = part
        at += len(part)
        found += [(whole.head, whole.raw.tobytes()) for whole in parser.fed(len(part))]
    return found


def _place_for(head: MessageHead) -> Array:
    fields = head.fields
    dtype_from_wire(fields.dtype, fields.shape, fields.nbytes, MESSAGE_LIMIT)
    return np.empty(fields.nbytes, np.uint8)


def feed_header(raw: bytes) -> FrameHeader:
    """A data frame's header, read by itself."""
    header = unpack_header(raw)
    assert unpack_header(pack_header(header)) == header
    return header


def feed_records(raw: bytes) -> bytes:
    """A stream under checksums; how it was cut into pieces changes nothing."""
    whole = _records(raw, len(raw))
    assert _records(raw, 7) == whole
    return whole


def _records(raw: bytes, piece: int) -> bytes:
    reader, read, target = RecordReader(xxh3_digest), bytearray(), bytearray(100)
    for at in range(0, len(raw), max(piece, 1)):
        part = raw[at : at + piece]
        reader.space()[: len(part)] = part
        reader.arrived(len(part))
        while given := reader.take(target):
            read += target[:given]
    return bytes(read)


def feed_expected(raw: bytes) -> None:
    """A data frame's header, compared with the one that the schedule expects."""
    call = CallHeader(HEADER.epoch, HEADER.position, pack_header(HEADER)[32:])
    check_header(raw, 1, call, HEADER.step, HEADER.length)
    assert raw[: HEADER_BYTES - 24] == pack_header(HEADER)[:-24], "another frame was taken"


def feed_signature(raw: bytes) -> Signature:
    """A signature, its text, and what it is compared with."""
    signature_text(raw)  # never raises
    signature = Signature.decode(raw)
    assert Signature.decode(signature.encode()) == signature
    assert is_compatible(signature.encode(), raw)
    return signature


def feed_context(raw: bytes) -> DataContext:
    """Feed a data link's context."""
    context = DataContext.decode(raw)
    assert context.encode() == raw
    return context


def a_client() -> ClientHandshake:
    context = DataContext("job", 1, 0, 1, 1).encode()
    return ClientHandshake(KEY, role="data", context=context, nonce=CLIENT_NONCE)


def feed_server(raw: bytes) -> None:
    """An unauthenticated peer's bytes, to who listens."""
    server = ServerHandshake(SERVER_NONCE)
    while server.bytes_wanted and len(raw) >= server.bytes_wanted:
        piece, raw = raw[: server.bytes_wanted], raw[server.bytes_wanted :]
        server.receive(piece)
        if server.request is not None and not server.done and not server.bytes_wanted:
            server.use_key(KEY)


def feed_client(raw: bytes) -> None:
    """An unauthenticated peer's bytes, to who dialled."""
    client = a_client()
    while client.bytes_wanted and len(raw) >= client.bytes_wanted:
        piece, raw = raw[: client.bytes_wanted], raw[client.bytes_wanted :]
        client.receive(piece)


class _Wire:
    """One direction of a connection with somebody on it, who turns the bits that `mask` says."""

    def __init__(self, mask: Iterable[int]) -> None:
        self._mask = iter(mask)
        self._buffer = b""
        self.touched = False

    def send(self, data: bytes) -> None:
        mask = [next(self._mask, 0) for _ in data]
        self.touched = self.touched or any(mask)
        self._buffer += bytes(byte ^ bits for byte, bits in zip(data, mask, strict=True))

    def take(self, count: int) -> bytes:
        """Exactly `count` bytes, or none if so many will not come."""
        if not 0 < count <= len(self._buffer):
            return b""
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


def feed_tampered(raw: bytes) -> None:
    """A genuine handshake of which somebody turns bits: nobody may then believe the other.

    The first byte says how many of the others are for what the client sends.
    """
    count = raw[0] if raw else 0
    up, down = _Wire(raw[1 : 1 + count]), _Wire(raw[1 + count :])
    client, server = a_client(), ServerHandshake(SERVER_NONCE)
    up.send(client.hello())
    moved = True
    while moved:
        moved = False
        if piece := up.take(server.bytes_wanted):
            moved = True
            down.send(server.receive(piece))
            if server.request is not None and not server.bytes_wanted and not server.done:
                down.send(server.use_key(KEY))
            assert not (server.done and up.touched), "the server believed altered bytes"
        if piece := down.take(client.bytes_wanted):
            moved = True
            up.send(client.receive(piece))
            assert not (client.done and (up.touched or down.touched)), "the client believed them"
    assert client.done or up.touched or down.touched, "an honest handshake did not end"
