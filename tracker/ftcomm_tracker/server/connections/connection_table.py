"""The connections of the tracker: who calls is authenticated, then heard until it ends."""

import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NoReturn

import trio

from ftcomm.config.backoff import ACCEPT_PAUSE_S
from ftcomm.errors import FtcommError, ProtocolError
from ftcomm.protocol.member_deltas import MemberDeltaWriter
from ftcomm.protocol.messages import ControlMessage
from ftcomm_tracker.core.control_paths import ControlPath
from ftcomm_tracker.server.connections.authentication import (
    RateLimitedLog,
    SilentPeerError,
    UnauthenticatedPeers,
    authenticate,
)
from ftcomm_tracker.server.connections.connection import FLUSH_DEADLINE_S, Connection
from ftcomm_tracker.server.connections.listener import host_in, path_of, peer_name
from ftcomm_tracker.server.token_file import TokenFile

# A conversation: the connection's number, the caller's role, its first message, and what follows.
Hear = Callable[[int, str, ControlMessage, AsyncGenerator[ControlMessage, None]], Awaitable[None]]

log = logging.getLogger("ftcomm_tracker")


class ConnectionTable:
    """All connections of a tracker, by number; a number is never used again.

    Args:
        listener: on which workers and operators call.
        token: of the job; who does not hold it is refused.
        hear: takes a conversation until the caller ends it; may raise ProtocolError.
        accepted: called for each connection, before its handshake.
    """

    def __init__(
        self,
        listener: trio.SocketListener,
        token: TokenFile,
        hear: Hear,
        accepted: Callable[[], None],
    ) -> None:
        self._listener = listener
        self._token = token
        self._hear = hear
        self._accepted = accepted
        self._connections: dict[int, Connection] = {}
        self._member_deltas = MemberDeltaWriter()
        self._unauthenticated = UnauthenticatedPeers()
        self._refusals = RateLimitedLog()
        self._numbers = 0

    @property
    def is_empty(self) -> bool:
        """True if nobody that is authenticated is connected."""
        return not self._connections

    @property
    def is_all_sent(self) -> bool:
        """True if everything that was sent has been given to the kernel."""
        return not any(connection.unsent for connection in self._connections.values())

    def host_of(self, number: int) -> str:
        """Address from which a connection comes, empty if it has gone."""
        connection = self._connections.get(number)
        return "" if connection is None else host_in(connection.peer)

    def path_of(self, number: int) -> ControlPath | None:
        """Both ends of a connection, None if it has gone."""
        connection = self._connections.get(number)
        return None if connection is None else path_of(connection.stream)

    def send(self, number: int, message: ControlMessage) -> None:
        """Send on a connection that may have ended; returns at once.

        One whose message cannot be sent is cut: no answer may cost more than its connection.
        """
        connection = self._connections.get(number)
        if connection is None or connection.closing:
            return
        try:
            is_queued = connection.post(message)
        except ValueError as error:
            kind = type(message).__name__
            log.warning("a %s cannot be sent to %s: cut: %s", kind, connection.peer, error)
            connection.cut()
            return
        if not is_queued:
            log.warning("%s does not read what the tracker sends: cut", connection.peer)
            connection.cut()

    def finish(self, number: int, reason: str) -> None:
        """End a connection once what was sent has gone out."""
        connection = self._connections.get(number)
        if connection is not None:
            log.debug("ending the connection of %s: %s", connection.peer, reason)
            connection.finish()

    def finish_all(self) -> None:
        """End every connection once what was sent has gone out."""
        for connection in list(self._connections.values()):
            connection.finish()

    async def flush(self) -> None:
        """End every connection; return when each has taken its last messages, or time is up."""
        self.finish_all()
        with trio.move_on_after(FLUSH_DEADLINE_S):
            for connection in list(self._connections.values()):
                await connection.ended.wait()

    async def accept(self) -> NoReturn:
        """Serve all who call."""
        async with self._listener, trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await self._listener.accept()
                except OSError as error:  # out of descriptors: who hangs up gives some back
                    self._note_refusal(f"cannot accept a connection: {error}")
                    await trio.sleep(ACCEPT_PAUSE_S)
                else:
                    nursery.start_soon(self._serve, stream)

    async def close(self) -> None:
        """Give the address back without serving."""
        await self._listener.aclose()

    def abandon(self) -> None:
        """In a forked child: close its copies of our sockets; nothing is shut down."""
        streams = [connection.stream for connection in self._connections.values()]
        for sock in [self._listener.socket, *(stream.socket for stream in streams)]:
            with contextlib.suppress(OSError):  # closed by its owner just before the fork
                os.close(sock.detach())

    async def _serve(self, stream: trio.SocketStream) -> None:
        """One connection, from accept to end; nothing that a peer does may escape from here."""
        self._numbers += 1
        self._accepted()
        connection = Connection(self._numbers, stream, peer_name(stream), self._member_deltas)
        messages = connection.messages()
        try:
            async with stream, contextlib.aclosing(messages):
                with self._unauthenticated.admit(connection.number):
                    request = await authenticate(stream, self._token.key)
                    first = await anext(messages, None)
                if first is not None:
                    await self._converse(connection, request.role, first, messages)
        except SilentPeerError:
            log.debug("%s connected and left without a word", connection.peer)
        except FtcommError as error:
            self._note_refusal(f"refused a connection from {connection.peer}: {error.cause}")
        except (trio.BrokenResourceError, OSError):
            self._note_refusal(f"a connection from {connection.peer} broke in its handshake")

    def _note_refusal(self, text: str) -> None:
        line = self._refusals.line(text, now=trio.current_time())
        if line is not None:
            log.info("%s", line)

    async def _converse(
        self,
        connection: Connection,
        role: str,
        first: ControlMessage,
        messages: AsyncGenerator[ControlMessage, None],
    ) -> None:
        self._connections[connection.number] = connection
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.write)
            try:
                await self._hear(connection.number, role, first, messages)
            except ProtocolError as error:
                log.warning("cut the connection of %s: %s", connection.peer, error.cause)
                connection.cut()
            connection.finish()
        del self._connections[connection.number]
