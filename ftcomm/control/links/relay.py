"""Relays: a third rank passes bytes on between two that cannot reach each other (rule R12).

The dialling end connects to the relay that the plan names and says whom it wants; the relay dials
that rank and from then on copies bytes both ways.  The two ends run the ordinary handshake of a
`data` or `fetch` link through this pipe: what travels in it, and who may, is theirs to judge, and
nothing else in either end knows of the detour.  A pipe belongs to one epoch and ends with it.

If a pipe carries nothing, its ends can blame each other alone.  The relay knows better: the kernel
tells it which end does not acknowledge what it was sent.
"""

import contextlib
import socket
import sys
from collections.abc import Mapping

import trio

from ftcomm.control.driver import Driver
from ftcomm.control.links.dial import BROKEN, RelayLost, connect, open_direct
from ftcomm.control.message_stream import receive_message, send_message
from ftcomm.diagnostics.os_errors import describe
from ftcomm.errors import ProtocolError
from ftcomm.protocol.handshake import HANDSHAKE_DEADLINE_S, DataContext
from ftcomm.protocol.link_messages import Relayed
from ftcomm.recovery.events import LinkDown

PIECE_BYTES = 256 * 1024  # in each direction; what is not taken yet stays with its sender
# Of the dialler's patience, for each of the two ways: it is to know which of them ends nowhere.
HOP_SHARE = 0.8
# The relay looks at its pipes so often within `detect_within`, and suspects an end that all but one
# of these looks find at fault: the other end blames the pair only when all that time is over.  It
# must be most of it: after an outage the kernel waits as long again before it tries once more.
LOOKS = 6


# --- the dialling end -------------------------------------------------------------------------


async def open_through(driver: Driver, epoch: int, rank: int, via: int) -> trio.socket.SocketType:
    """A pipe to `rank` through `via`, on which a handshake can begin.

    Raises:
        RelayLost: `via` cannot be reached.
        ProtocolError: `via` cannot reach `rank`; the text says why.
        OSError, PeerClosed, trio.TooSlowError: the relay broke off.
    """
    # In a scope that is cancelled, or just over, nothing is left.
    left_s = max(0.0, trio.current_effective_deadline() - trio.current_time())
    try:
        with trio.fail_after(HOP_SHARE * left_s):
            sock = await open_direct(driver, epoch, via, "relay", to_rank=rank)
    except BROKEN as error:
        raise RelayLost(via, describe(error)) from error
    try:
        await _hear_relay(sock, rank, via)
    except BaseException:
        sock.close()
        raise
    return sock


async def _hear_relay(sock: trio.socket.SocketType, rank: int, via: int) -> None:
    with trio.fail_after(HANDSHAKE_DEADLINE_S):
        answer = await receive_message(sock)
    if not isinstance(answer, Relayed):
        raise ProtocolError(f"expected a relay's answer, got {type(answer).__name__}")
    if answer.failure:
        raise ProtocolError(f"the relay, rank {via}, cannot reach rank {rank}: {answer.failure}")


# --- the relay --------------------------------------------------------------------------------


async def serve_relay(driver: Driver, sock: trio.socket.SocketType, context: DataContext) -> None:
    """Connect to the wanted rank and copy both ways until both directions or the epoch end."""
    with driver.epoch_scopes.opened():
        try:
            await _relay(driver, sock, context)
        except BROKEN as error:
            ends = (context.from_rank, context.to_rank)
            driver.hub.log.debug("relaying between ranks %d and %d ended: %r", *ends, error)


async def _relay(driver: Driver, sock: trio.socket.SocketType, context: DataContext) -> None:
    target = context.to_rank
    patience_s = min(HANDSHAKE_DEADLINE_S, driver.hub.settings.detect_within)
    try:
        onward = await connect(driver, target, deadline_s=HOP_SHARE * patience_s)
    except BROKEN as error:
        cause = describe(error)
        await send_message(sock, Relayed(cause))
        driver.apply(LinkDown(context.epoch, target, f"cannot connect, as a relay: {cause}"))
        return
    with onward, driver.hub.kept_from_children(onward):
        await send_message(sock, Relayed())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                _watch, driver, context.epoch, {context.from_rank: sock, target: onward}
            )
            async with trio.open_nursery() as pipe:
                pipe.start_soon(_copy, sock, onward, pipe.cancel_scope)
                pipe.start_soon(_copy, onward, sock, pipe.cancel_scope)
            nursery.cancel_scope.cancel()


async def _watch(driver: Driver, epoch: int, ends: Mapping[int, trio.socket.SocketType]) -> None:
    """Suspect an end of a pipe, by rank, that has acknowledged nothing for a while."""
    found = dict.fromkeys(ends, 0)
    while True:
        await trio.sleep(driver.hub.settings.detect_within / LOOKS)
        for rank, sock in ends.items():
            found[rank] = found[rank] + 1 if _is_sent_again(sock) else 0
            if found[rank] == LOOKS - 1:
                driver.apply(LinkDown(epoch, rank, "does not acknowledge what a relay sends"))


def _is_sent_again(sock: trio.socket.SocketType) -> bool:
    """True if the kernel waits for an acknowledgement, and has sent the same bytes again."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a Unix socket, which loses nothing
            return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 3)[2] > 0  # retransmits
    return False


async def _copy(
    source: trio.socket.SocketType, sink: trio.socket.SocketType, pipe: trio.CancelScope
) -> None:
    """Pass bytes on until the source ends, then end that direction; a broken side ends the pipe."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    try:
        while received := await source.recv_into(buffer):
            piece = buffer[:received]
            while piece:
                piece = piece[await sink.send(piece) :]
        with contextlib.suppress(OSError):  # the sink has ended both directions itself
            sink.shutdown(trio.socket.SHUT_WR)
    except OSError:
        pipe.cancel()
