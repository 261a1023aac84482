"""The operator's side of a conversation with a tracker: dial, prove, ask, read the answer."""

import contextlib
from collections.abc import AsyncGenerator
from typing import TypeVar

import trio

from ftcomm.errors import AuthenticationError, ProtocolError, TrackerLostError
from ftcomm.protocol.codec import Decoder, encode
from ftcomm.protocol.handshake import control_key
from ftcomm.protocol.messages import ControlMessage
from ftcomm_tracker.server.connections.authentication import prove
from ftcomm_tracker.server.connections.listener import join_address

Answer = TypeVar("Answer", bound=ControlMessage)
ANSWER_WITHIN_S = 10.0  # a tracker that is up answers in milliseconds; twice its own deadlines


async def ask_tracker(
    address: tuple[str, int], token: bytes, request: ControlMessage, kind: type[Answer]
) -> Answer:
    """Send one operator's request to the tracker at `address`, and return its answer of `kind`.

    Raises:
        TrackerLostError: nobody answers there.
        AuthenticationError, ProtocolVersionError, ProtocolError: what answers is not our tracker.
    """
    where = join_address(*address)
    remedy = "check the address, and that the tracker runs"
    try:
        with trio.fail_after(ANSWER_WITHIN_S):
            async with open_operator(address, token) as stream:
                return await Conversation(stream).ask(request, kind)
    except AuthenticationError:  # an OSError too, of a tracker that is there
        raise
    except (OSError, trio.BrokenResourceError) as error:
        raise TrackerLostError(f"no tracker at {where}: {error}", remedy=remedy) from error
    except trio.TooSlowError as error:
        cause = f"the tracker at {where} did not answer within {ANSWER_WITHIN_S:g} s"
        raise TrackerLostError(cause, remedy=remedy) from error


@contextlib.asynccontextmanager
async def open_operator(
    address: tuple[str, int], token: bytes
) -> AsyncGenerator[trio.SocketStream, None]:
    """A connection to the tracker at `address` on which both sides have proven themselves.

    Raises:
        OSError, trio.BrokenResourceError: nobody answers there.
        AuthenticationError, ProtocolVersionError, ProtocolError: what answers is not our tracker.
    """
    async with await trio.open_tcp_stream(*address) as stream:
        await prove(stream, control_key(token))
        yield stream


class Conversation:
    """One question after the other on one connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        """Speak on `stream`, on which both sides have proven themselves."""
        self._stream = stream
        self._decoder = Decoder()

    async def ask(self, request: ControlMessage, kind: type[Answer]) -> Answer:
        """Send a request and return its answer.

        Raises:
            ProtocolError: the tracker ends the connection, or answers something else.
        """
        await self._stream.send_all(encode(request))
        while data := await self._stream.receive_some():
            for message in self._decoder.feed(data):
                if isinstance(message, kind):
                    return message
                raise ProtocolError(f"the tracker answered with {type(message).__name__}")
        raise ProtocolError("the tracker ended the connection without an answer")


async def open_conversation(stream: trio.SocketStream, token: bytes) -> Conversation:
    """Prove both sides on a fresh connection to a tracker.

    Raises:
        AuthenticationError, ProtocolVersionError, ProtocolError: what answers is not our tracker.
    """
    await prove(stream, control_key(token))
    return Conversation(stream)
