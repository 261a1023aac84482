"""One connection of the tracker after its handshake: framed reading, and a bounded way out.

A connection has a reading task, whose owner is the server, and a writing task that empties a
queue here.  Whoever posts a message never waits: a peer that does not read is cut when its
queue is full, so that one stuck worker cannot hold the tracker's memory or its other workers.
"""

from collections import deque
from collections.abc import AsyncGenerator

import trio

from ftcomm.protocol.codec import READ_BYTES, Decoder, encode
from ftcomm.protocol.member_deltas import MemberDeltaWriter
from ftcomm.protocol.messages import ControlMessage, Member, Plan

MAX_QUEUED_BYTES = 4 << 20  # 16 frames of the largest size; a healthy peer's queue is empty
SEND_DEADLINE_S = 30.0  # for what the kernel did not take at once; a stopped worker is out by then
FLUSH_DEADLINE_S = 2.0  # how long a connection that is being ended may take its last messages
# More is sent as it is: the bytes of a member delta are shared by all connections.
BATCH_BYTES = 16 * 1024


class Connection:
    """A connection after its handshake.

    Attributes:
        number: what the roster calls it; never reused in a tracker's lifetime.
        peer: address of the other side, for people.
        stream: to the peer; whoever opens it closes it too.
        closing: the tracker has decided to end it; what it still says is not heard.
        ended: set once the stream is closed.
    """

    def __init__(
        self, number: int, stream: trio.SocketStream, peer: str, member_deltas: MemberDeltaWriter
    ) -> None:
        self.number = number
        self.peer = peer
        self.closing = False
        self.ended = trio.Event()
        self._peer_ended = trio.Event()
        self.stream = stream
        self._member_deltas = member_deltas
        self._told: tuple[Member, ...] = ()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._wake = trio.Event()
        self._scope = trio.CancelScope()

    def post(self, message: ControlMessage) -> bool:
        """Queue `message`; False if the peer has left too much unread."""
        frames = self._frames(message)
        nbytes = sum(map(len, frames))
        if self._queued_bytes + nbytes > MAX_QUEUED_BYTES:
            return False
        self._queue.extend(frames)
        self._queued_bytes += nbytes
        self._wake.set()
        return True

    def _frames(self, message: ControlMessage) -> list[bytes]:
        if not isinstance(message, Plan):
            return [encode(message)]
        frames = self._member_deltas.frames(message, self._told)
        self._told = message.members
        return frames

    @property
    def unsent(self) -> bool:
        """True while something posted has not gone to the kernel."""
        return self._queued_bytes > 0 and not self.ended.is_set()

    def finish(self) -> None:
        """End the connection once what is queued has gone out."""
        self.closing = True
        self._wake.set()

    def cut(self) -> None:
        """End the connection at once."""
        self.closing = True
        self._scope.cancel()

    async def write(self) -> None:
        """Send what is posted until `finish`, `cut` or an error, then close the stream."""
        try:
            with self._scope:
                while self._queue or not self.closing:
                    await self._send_queued()
                await self._hang_up()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the reading task sees the same end, and says why
        finally:
            self.closing = True
            await trio.aclose_forcefully(self.stream)
            self.ended.set()

    async def _send_queued(self) -> None:
        if not self._queue:
            self._wake = trio.Event()
            await self._wake.wait()
            return
        batch = self._next_batch()
        deadline = FLUSH_DEADLINE_S if self.closing else SEND_DEADLINE_S
        with trio.move_on_after(deadline) as patience:
            await self.stream.send_all(batch)
        self._queued_bytes -= len(batch)
        if patience.cancelled_caught:
            self.cut()

    def _next_batch(self) -> bytes:
        """The first frame, and more with it if they are short."""
        batch = [self._queue.popleft()]
        nbytes = len(batch[0])
        while self._queue and nbytes + len(self._queue[0]) <= BATCH_BYTES:
            batch.append(self._queue.popleft())
            nbytes += len(batch[-1])
        return b"".join(batch)  # of one, that one

    async def _hang_up(self) -> None:
        """Say that nothing more comes, and wait for the peer to do so too.

        Closing while it is still sending would reset the connection, and a reset may take away
        what it has not read yet: the very message that says why it is being ended.
        """
        with trio.move_on_after(FLUSH_DEADLINE_S):
            await self.stream.send_eof()
            await self._peer_ended.wait()

    async def messages(self) -> AsyncGenerator[ControlMessage, None]:
        """Yield the peer's messages until it closes or is disconnected; none after `finish`.

        Raises:
            ProtocolError: it sent something that is not a message.
            trio.BrokenResourceError: the connection broke.
        """
        decoder = Decoder()
        try:
            while data := await self._receive():
                for message in () if self.closing else decoder.feed(data):
                    yield message
        finally:
            self._peer_ended.set()

    async def _receive(self) -> bytes | bytearray:
        try:
            return await self.stream.receive_some(READ_BYTES)
        except trio.ClosedResourceError:
            return b""  # ended here, by the writing task
