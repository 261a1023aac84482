"""Handshakes and framed messages over trio sockets."""

import contextlib
import secrets
from collections.abc import Awaitable
from typing import Protocol

import trio

from ftcomm.protocol.codec import LENGTH_BYTES, decode_body, encode, frame_length
from ftcomm.protocol.handshake import (
    HANDSHAKE_DEADLINE_S,
    NONCE_BYTES,
    ClientHandshake,
    ServerHandshake,
)
from ftcomm.protocol.message_splitting import Joiner
from ftcomm.protocol.messages import ControlMessage


class ByteStream(Protocol):
    """Methods of a trio socket that sending and receiving need."""

    def send(self, data: memoryview, /) -> Awaitable[int]:
        """Send some of it; returns how many bytes."""

    def recv_into(self, buffer: memoryview, /) -> Awaitable[int]:
        """Receive some bytes; 0: the peer has closed."""


class PeerClosed(Exception):  # noqa: N818 - an event at the other end
    """The other side ended the connection."""

    def __init__(self, why: str = "the other end closed the connection") -> None:
        super().__init__(why)


def send_at_once(sock: trio.socket.SocketType) -> None:
    """Let a small message not wait for the receipt of the one before, up to 40 ms.

    trio does so for what it dials, and the data plane for its links.
    """
    if sock.family in (trio.socket.AF_INET, trio.socket.AF_INET6):
        with contextlib.suppress(OSError):  # macOS, if the peer has gone: the first transfer tells
            sock.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)


async def send_all(sock: ByteStream, data: bytes | memoryview) -> None:
    """Send everything; large data is not copied."""
    view = memoryview(data)
    while view:
        view = view[await sock.send(view) :]


async def receive_into(sock: ByteStream, view: memoryview) -> None:
    """Fill `view` exactly; raises PeerClosed."""
    while view:
        received = await sock.recv_into(view)
        if received == 0:
            raise PeerClosed
        view = view[received:]


async def receive_exactly(sock: ByteStream, size: int) -> bytes:
    """Read exactly `size` bytes."""
    buffer = bytearray(size)
    await receive_into(sock, memoryview(buffer))
    return bytes(buffer)


async def send_message(sock: ByteStream, message: ControlMessage) -> None:
    """Send one framed message."""
    await send_all(sock, encode(message))


async def receive_message(sock: ByteStream) -> ControlMessage:
    """Read one message, in however many frames it comes, and nothing behind it.

    Raises:
        ProtocolError: it is not a message.
        PeerClosed: the stream ended.
    """
    joiner, message = Joiner(), None
    while message is None:
        length = frame_length(await receive_exactly(sock, LENGTH_BYTES))
        message = joiner.take(decode_body(await receive_exactly(sock, length)))
    return message


async def client_handshake(
    sock: trio.socket.SocketType, key: bytes, role: str, context: bytes
) -> None:
    """Prove each other's token; bounded by one deadline.

    Raises:
        AuthenticationError, ProtocolVersionError, ProtocolError: by `ClientHandshake`.
        PeerClosed: the server hung up: it refuses us, or is no tracker.
        trio.TooSlowError: the deadline passed.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    shake = ClientHandshake(key, role=role, context=context, nonce=nonce)
    with trio.fail_after(HANDSHAKE_DEADLINE_S):
        await send_all(sock, shake.hello())
        while not shake.done:
            answer = shake.receive(await receive_exactly(sock, shake.bytes_wanted))
            if answer:
                await send_all(sock, answer)


async def server_hello(sock: trio.socket.SocketType) -> ServerHandshake:
    """Read a client's hello; its `request` says which key is due."""
    shake = ServerHandshake(secrets.token_bytes(NONCE_BYTES))
    while shake.request is None:
        await _server_step(sock, shake)
    return shake


async def server_proof(sock: trio.socket.SocketType, shake: ServerHandshake, key: bytes) -> None:
    """Finish a handshake with the key that fits its request."""
    await send_all(sock, shake.use_key(key))
    while not shake.done:
        await _server_step(sock, shake)


async def _server_step(sock: trio.socket.SocketType, shake: ServerHandshake) -> None:
    data = await receive_exactly(sock, shake.bytes_wanted)
    try:
        answer = shake.receive(data)
    finally:
        if shake.farewell:
            await send_all(sock, shake.farewell)
    if answer:
        await send_all(sock, answer)
