"""The handshake of a connection, at both of its ends: each proves that it holds the token."""

import contextlib
import os
import socket
from collections.abc import Iterator

import trio

from ftcomm.errors import AuthenticationError, ProtocolError, ProtocolVersionError
from ftcomm.protocol.codec import READ_BYTES
from ftcomm.protocol.handshake import (
    HANDSHAKE_DEADLINE_S,
    MAX_UNAUTHENTICATED,
    NONCE_BYTES,
    ClientHandshake,
    HandshakeRequest,
    ServerHandshake,
)

LINES_AT_ONCE = 20  # a whole job with a wrong token is still told worker by worker
LINES_PER_S = 1.0  # a scanner tries hundreds of times a second, for months


class SilentPeerError(ProtocolError):
    """A peer connected and left without a word: a probe of the port."""


async def authenticate(stream: trio.SocketStream, key: bytes) -> HandshakeRequest:
    """Run the server's side of the handshake and return what the client asked for.

    Raises:
        AuthenticationError, ProtocolVersionError, ProtocolError: the client was refused.
        SilentPeerError: it left before that.
        trio.BrokenResourceError: it went away.
    """
    handshake = ServerHandshake(os.urandom(NONCE_BYTES))
    try:
        begun = bytes(await stream.receive_some(handshake.bytes_wanted))
        if not begun:
            raise SilentPeerError("who called left without a word")
        while handshake.request is None:
            handshake.receive(await receive_exactly(stream, handshake.bytes_wanted, begun))
            begun = b""
        proof = handshake.use_key(key)
        await _check_waits(stream)
        await stream.send_all(proof)
        while not handshake.done:
            await stream.send_all(handshake.receive(await _receive_proof(stream, handshake)))
    except ProtocolVersionError:
        await _bid_farewell(stream, handshake.farewell)
        raise
    return handshake.request


async def prove(stream: trio.SocketStream, key: bytes) -> None:
    """Run an operator's side of the handshake.

    Raises:
        AuthenticationError, ProtocolVersionError, ProtocolError: what answers is not our tracker.
        trio.BrokenResourceError: it went away.
    """
    handshake = ClientHandshake(key, role="operator", context=b"", nonce=os.urandom(NONCE_BYTES))
    await stream.send_all(handshake.hello())
    while not handshake.done:
        reply = handshake.receive(await receive_exactly(stream, handshake.bytes_wanted))
        if reply:
            await stream.send_all(reply)


async def _check_waits(stream: trio.SocketStream) -> None:
    """Check that the caller is still connected, and so has seen our proof of the token.

    Raises:
        ProtocolError: it has hung up, as workers do while this process is stopped.
    """
    if not stream.socket.is_readable():
        return
    try:
        ended = not await stream.socket.recv(1, socket.MSG_PEEK)
    except OSError:
        ended = True
    if ended:
        raise ProtocolError(
            "the client had hung up before it was answered: this tracker was stopped or kept from"
            " running for longer than a worker waits"
        )


async def _receive_proof(stream: trio.SocketStream, handshake: ServerHandshake) -> bytes:
    try:
        return await receive_exactly(stream, handshake.bytes_wanted)
    except ProtocolError as error:
        cause = (
            "the client left instead of proving itself: it holds another token, or this tracker's"
            " proof did not reach it"
        )
        raise AuthenticationError(cause) from error


async def _bid_farewell(stream: trio.SocketStream, words: bytes) -> None:
    """Tell another version what we are, so that both ends can name both versions."""
    await stream.send_all(words)
    await stream.send_eof()
    while await stream.receive_some(READ_BYTES):  # closing over unread bytes would reset
        pass


async def receive_exactly(stream: trio.SocketStream, count: int, begun: bytes = b"") -> bytes:
    """Read `count` bytes and not one more; the first of them are `begun`.

    Raises:
        ProtocolError: the connection ended before.
    """
    data = bytearray(begun)
    while len(data) < count:
        chunk = await stream.receive_some(count - len(data))
        if not chunk:
            raise ProtocolError(f"the connection ended after {len(data)} of {count} bytes")
        data += chunk
    return bytes(data)


class UnauthenticatedPeers:
    """The connections of one listener that are in their handshake."""

    def __init__(self) -> None:
        self._scopes: dict[int, trio.CancelScope] = {}

    @contextlib.contextmanager
    def admit(self, number: int) -> Iterator[None]:
        """Bound who has not proven itself yet and said what it wants.

        Raises:
            ProtocolError: the deadline has passed, or a newer unauthenticated peer needed the room.
        """
        if len(self._scopes) >= MAX_UNAUTHENTICATED:
            self._scopes.pop(next(iter(self._scopes))).cancel()
        with trio.move_on_after(HANDSHAKE_DEADLINE_S) as scope:
            self._scopes[number] = scope
            try:
                yield
            finally:
                self._scopes.pop(number, None)
        if scope.cancelled_caught:
            raise ProtocolError("it did not prove itself in time, or made room for a newer one")


class RateLimitedLog:
    """Lets through so many lines at once and so many a second; counts the rest."""

    def __init__(self) -> None:
        self._credit = float(LINES_AT_ONCE)
        self._asked_at = 0.0
        self._left_out = 0

    def line(self, text: str, *, now: float) -> str | None:
        """Return the line to log for `text`: None, or the text and the number of lines left out."""
        earned = max(now - self._asked_at, 0.0) * LINES_PER_S
        self._asked_at = now
        self._credit = min(self._credit + earned, float(LINES_AT_ONCE))
        if self._credit < 1:
            self._left_out += 1
            return None
        self._credit -= 1
        left_out, self._left_out = self._left_out, 0
        return f"{text} (and {left_out} more like it)" if left_out else text
