"""Setup of shared memory between two workers of one host, after their socket's handshake.

    dialler                                      listener
    makes a segment, writes a nonce into it
    Sharing(nonce) + descriptor  ------------->    maps it, finds the nonce, writes its own
                               <-------------    Sharing(its nonce)
    finds that nonce
    Sharing()                    ------------->

A side that cannot says so instead, with its reason; then both go on with the plain socket, and the
side that could not warns, once.  Anything else that happens breaks the connection.
"""

import array
import contextlib
import logging
import os
import secrets
import socket

import trio

from ftcomm.config.job_settings import JobSettings
from ftcomm.config.platforms import why_no_shared_memory
from ftcomm.control.driver import Driver
from ftcomm.control.message_stream import (
    PeerClosed,
    receive_exactly,
    receive_message,
    send_all,
    send_message,
)
from ftcomm.errors import ProtocolError
from ftcomm.protocol.codec import LENGTH_BYTES, decode_body, encode, frame_length
from ftcomm.protocol.handshake import HANDSHAKE_DEADLINE_S
from ftcomm.protocol.link_messages import Sharing
from ftcomm.protocol.messages import Frame
from ftcomm.transport.shm_layout import NONCE_BYTES
from ftcomm.transport.shm_segment import (
    NoSharedMemory,
    Segment,
    make_segment,
    take_segment,
)

_CLOSE_ON_EXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # Linux alone comes here
_FD_BYTES = array.array("i").itemsize


def shares_memory(settings: JobSettings) -> bool:
    """Tell whether workers of one host negotiate a segment; both sides compute the same answer."""
    return settings.transport != "tcp"


async def offer_segment(driver: Driver, sock: trio.socket.SocketType, rank: int) -> Segment | None:
    """The dialler's part; None: the link is the socket itself.

    Raises:
        ProtocolError, PeerClosed, OSError, trio.TooSlowError: the connection is of no use.
    """
    with trio.fail_after(HANDSHAKE_DEADLINE_S):
        nonce = secrets.token_bytes(NONCE_BYTES)
        try:
            segment = make_segment(nonce)
        except NoSharedMemory as error:
            await send_message(sock, Sharing(failure=str(error)))
            _note(driver, rank, str(error))
            return None
        with contextlib.ExitStack() as unless_agreed:
            unless_agreed.callback(segment.close)
            await send_with(sock, Sharing(nonce), segment.fd)
            segment.forget_fd()
            answer = await _receive(sock)
            if answer.failure:
                driver.hub.log.info("rank %d shares no memory: %s", rank, answer.failure)
                return None
            if answer.nonce != segment.answer:
                failure = "the listener's nonce is not in the segment"
                await send_message(sock, Sharing(failure=failure))
                _note(driver, rank, failure)
                return None
            await send_message(sock, Sharing())
            unless_agreed.pop_all()
        return segment


async def answer_offer(driver: Driver, sock: trio.socket.SocketType, rank: int) -> Segment | None:
    """The listener's part; None: the link is the socket itself.

    Raises:
        ProtocolError, PeerClosed, OSError, trio.TooSlowError: the connection is of no use.
    """
    with trio.fail_after(HANDSHAKE_DEADLINE_S):
        offer, fd = await receive_with(sock)
        if offer.failure or fd is None:
            if fd is not None:
                os.close(fd)
            cause = offer.failure or "its descriptor did not arrive"
            driver.hub.log.info("rank %d shares no memory: %s", rank, cause)
            return None
        try:
            segment = take_segment(fd, offer.nonce)
        except NoSharedMemory as error:
            await send_message(sock, Sharing(failure=str(error)))
            _note(driver, rank, str(error))
            return None
        with contextlib.ExitStack() as unless_agreed:
            unless_agreed.callback(segment.close)
            segment.answer = secrets.token_bytes(NONCE_BYTES)
            await send_message(sock, Sharing(segment.answer))
            decision = await _receive(sock)
            if decision.failure:
                driver.hub.log.info("rank %d shares no memory: %s", rank, decision.failure)
                return None
            unless_agreed.pop_all()
        return segment


# --- messages ---------------------------------------------------------------------------------


async def _receive(sock: trio.socket.SocketType) -> Sharing:
    return _as_share(await receive_message(sock))


def _as_share(message: Frame) -> Sharing:
    if not isinstance(message, Sharing):
        raise ProtocolError(f"expected a word on shared memory, got {type(message).__name__}")
    return message


async def send_with(sock: trio.socket.SocketType, message: Sharing, fd: int) -> None:
    """Send a message whose first byte brings a descriptor."""
    frame = encode(message)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
    sent = await sock.sendmsg([frame], [rights])
    await send_all(sock, frame[sent:])


async def receive_with(sock: trio.socket.SocketType) -> tuple[Sharing, int | None]:
    """A message, and the descriptor that came with its first byte; the caller closes it."""
    room = socket.CMSG_SPACE(_FD_BYTES)
    head, ancillary, _, _ = await sock.recvmsg(LENGTH_BYTES, room, _CLOSE_ON_EXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    with contextlib.ExitStack() as unless_understood:
        for fd in fds:
            unless_understood.callback(os.close, fd)
        if not head:
            raise PeerClosed
        head += await receive_exactly(sock, LENGTH_BYTES - len(head))
        body = await receive_exactly(sock, frame_length(head))
        offer = _as_share(decode_body(body))
        if len(fds) > 1:
            raise ProtocolError(f"{len(fds)} descriptors instead of one")
        unless_understood.pop_all()
    return offer, fds[0] if fds else None


def _note(driver: Driver, rank: int, cause: str) -> None:
    """Say why links of this host are sockets; what can be repaired is a warning, and said once."""
    hub = driver.hub
    level = logging.INFO if cause == why_no_shared_memory() else logging.WARNING
    if cause not in hub.causes_told:
        hub.causes_told.add(cause)
        hub.log.log(
            level,
            "sharing no memory with rank %d, links within this host are sockets: %s",
            rank,
            cause,
        )
