"""Setup of an epoch's segment, in which the ranks of a host reduce.

The lowest rank of the host leads.  It makes the segment and gives its descriptor to every other
one, behind the handshake of a Unix socket.  All use it or none does, so the leader decides when it
has heard of all:

    another rank                                 the leader
                               <-------------    Sharing() + descriptor
    maps it
    Sharing()                  ------------->    has heard of all
                               <-------------    Sharing()

A rank that cannot use it gives its reason instead, and calls go over links.  A rank that does not
hear the decision cannot know what the others do: its link to the leader is down.
"""

import array
import contextlib
import logging
import mmap
import os
import socket

import trio

from ftcomm.config.platforms import why_no_shared_memory
from ftcomm.control.driver import Driver
from ftcomm.control.hub import HostSegment, Hub
from ftcomm.control.links.dial import BROKEN, is_by_tcp, link_down, open_direct, patiently
from ftcomm.control.message_stream import (
    PeerClosed,
    receive_exactly,
    receive_message,
    send_all,
    send_message,
)
from ftcomm.core import open_core
from ftcomm.core.segment import MAX_RANKS, segment_bytes
from ftcomm.diagnostics.os_errors import describe
from ftcomm.errors import ProtocolError
from ftcomm.protocol.codec import LENGTH_BYTES, decode_body, encode, frame_length
from ftcomm.protocol.handshake import HANDSHAKE_DEADLINE_S, DataContext
from ftcomm.protocol.link_messages import Sharing
from ftcomm.protocol.messages import Frame
from ftcomm.transport.shm_segment import NoSharedMemory, make_segment, map_segment

_CLOSE_ON_EXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # Linux alone comes here
_FD_BYTES = array.array("i").itemsize


def sharing_ranks(hub: Hub) -> tuple[int, ...]:
    """The ranks of this host that look for a segment; empty for none.  All of them agree."""
    view = hub.core.view
    host = view.members[view.rank].host
    ranks = tuple(rank for rank, member in enumerate(view.members) if member.host == host)
    if hub.settings.transport == "tcp" or not 2 <= len(ranks) <= MAX_RANKS:
        return ()
    is_routed = any(route.a in ranks and route.b in ranks for route in view.routes)
    are_here = all(view.members[rank].present for rank in ranks)
    return ranks if are_here and not is_routed else ()


def _why_links(hub: Hub) -> str:
    """Fault injection: the reason why calls of this rank must go over links; empty for none."""
    needed = hub.faults is not None and hub.faults.needs_links
    return "a fault of links is planned" if needed else ""


class _Round:
    """The leader's view of one epoch: who has joined the segment, and the decision.

    Attributes:
        epoch: the epoch.
        ranks: those that share it.
        fd: of the segment; -1 once it is decided.
        memory: the segment; None without one.
        decision: a reason if there is none.
        over: set when it is decided.
    """

    def __init__(self, hub: Hub) -> None:
        self.epoch = hub.core.view.epoch
        self.ranks = sharing_ranks(hub)
        self.fd = -1
        self.memory: mmap.mmap | None = None
        self.decision = Sharing(_why_links(hub))
        self.over = trio.Event()
        self._awaited = set(self.ranks[1:])
        if self.decision.failure:
            self.end()
            return
        try:
            self.fd = make_segment(segment_bytes(len(self.ranks)))
            self.memory = map_segment(self.fd, segment_bytes(len(self.ranks)))
        except NoSharedMemory as error:
            self._fail(str(error))

    def hear(self, rank: int, answer: Sharing) -> None:
        """Rank `rank` has joined, or says why not."""
        self._awaited.discard(rank)
        if self.over.is_set():
            return
        if answer.failure:
            self._fail(f"rank {rank}: {answer.failure}")
        if not self._awaited:
            self.end()

    def give_up(self) -> None:
        """The time is over."""
        if not self.over.is_set():
            self._fail(f"rank {min(self._awaited)} did not come")

    def end(self) -> None:
        """It is decided: nobody else is given the descriptor."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        self.over.set()

    def _fail(self, reason: str) -> None:
        self.decision = Sharing(reason)
        self.end()


class SegmentSetup:
    """Makes or joins the segment of each epoch, on the control thread."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._round: _Round | None = None

    async def keep(self) -> None:
        """Begin with each plan, whatever the user's thread does meanwhile."""
        driver, newest = self._driver, 0
        view = driver.hub.core.view
        while True:
            changed = driver.changed
            if view.is_live and view.epoch != newest:
                newest = view.epoch
                driver.nursery.start_soon(self._share, newest)
            await changed.wait()

    async def serve(
        self, driver: Driver, sock: trio.socket.SocketType, context: DataContext
    ) -> None:
        """The leader's part, behind the handshake of that epoch."""
        with driver.epoch_scopes.opened():
            view, ranks = driver.hub.core.view, sharing_ranks(driver.hub)
            is_led = ranks[:1] == (view.rank,) and context.from_rank in ranks[1:]
            if view.epoch != context.epoch or not is_led:
                return
            current = self._of_epoch(context.epoch)
            try:
                answer = await self._offered(current, sock)
            except BROKEN as error:
                answer = Sharing(describe(error))
            current.hear(context.from_rank, answer)
            await current.over.wait()
            with contextlib.suppress(*BROKEN):  # then that rank suspects this one
                await send_message(sock, current.decision)

    async def _offered(self, current: _Round, sock: trio.socket.SocketType) -> Sharing:
        """Give the descriptor away; the answer says whether the other end has use of it."""
        with trio.fail_after(HANDSHAKE_DEADLINE_S):
            if is_by_tcp(sock):
                await send_message(sock, Sharing("it is not reached within this host"))
            elif current.fd < 0:
                await send_message(sock, current.decision)
            else:
                await send_with(sock, Sharing(), current.fd)
            return await receive_sharing(sock)

    def _of_epoch(self, epoch: int) -> _Round:
        if self._round is None or self._round.epoch != epoch:
            self._round = _Round(self._driver.hub)
        return self._round

    async def _share(self, epoch: int) -> None:
        driver, hub = self._driver, self._driver.hub
        with driver.epoch_scopes.opened():
            if hub.core.view.epoch != epoch:
                return
            ranks = sharing_ranks(hub)
            if not ranks:
                self._decided(HostSegment(epoch))
            elif hub.core.view.rank == ranks[0]:
                await self._lead(epoch)
            else:
                await self._join(epoch, ranks)

    async def _lead(self, epoch: int) -> None:
        current = self._of_epoch(epoch)
        try:
            with trio.move_on_after(self._driver.hub.settings.detect_within):
                await current.over.wait()
            current.give_up()
            failure = current.decision.failure
            if failure:
                # What can be repaired is a warning, of the leader alone.
                is_usual = failure == why_no_shared_memory() or self._driver.hub.faults is not None
                level = logging.INFO if is_usual else logging.WARNING
                self._say(level, failure)
            self._open(epoch, current.ranks, current.memory, current.decision)
        finally:
            current.end()
            current.memory = None  # the hub has it, for as long as the epoch runs

    async def _join(self, epoch: int, ranks: tuple[int, ...]) -> None:
        driver, leader = self._driver, ranks[0]
        try:
            sock = await patiently(
                driver, lambda: open_direct(driver, epoch, leader, "segment", to_rank=leader)
            )
            with sock, driver.hub.kept_from_children(sock):
                memory = await self._taken(sock, ranks)
                with trio.fail_after(2 * driver.hub.settings.detect_within):
                    decision = await receive_sharing(sock)
        except BROKEN as error:
            driver.apply(link_down(epoch, leader, error))
            return
        if decision.failure:
            self._say(logging.INFO, decision.failure)
        self._open(epoch, ranks, memory, decision)

    async def _taken(
        self, sock: trio.socket.SocketType, ranks: tuple[int, ...]
    ) -> mmap.mmap | None:
        """Map what the leader offers, and say whether that worked."""
        with trio.fail_after(HANDSHAKE_DEADLINE_S):
            offer, fd = await receive_with(sock)
        failure, memory = offer.failure or _why_links(self._driver.hub), None
        if fd is None:
            failure = failure or "the segment's descriptor did not arrive"
        else:
            try:
                if not failure:
                    memory = map_segment(fd, segment_bytes(len(ranks)))
            except NoSharedMemory as error:
                failure = str(error)
            finally:
                os.close(fd)
        await send_message(sock, Sharing(failure))
        return memory

    def _open(
        self, epoch: int, ranks: tuple[int, ...], memory: mmap.mmap | None, decision: Sharing
    ) -> None:
        """Use the segment as decided."""
        if decision.failure or memory is None:
            self._decided(HostSegment(epoch))
            return
        core = open_core(memory, len(ranks), ranks.index(self._driver.hub.core.view.rank))
        self._decided(HostSegment(epoch, core, ranks))

    def _decided(self, segment: HostSegment) -> None:
        self._driver.hub.decide_segment(segment)
        self._driver.wake_tasks()

    def _say(self, level: int, failure: str) -> None:
        """Say once why the ranks of this host exchange over links."""
        hub = self._driver.hub
        if failure not in hub.causes_told:
            hub.causes_told.add(failure)
            hub.log.log(level, "sharing no memory, calls here go over sockets: %s", failure)


# --- messages ---------------------------------------------------------------------------------


async def receive_sharing(sock: trio.socket.SocketType) -> Sharing:
    """The next message, which must be of this kind; raises ProtocolError."""
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
