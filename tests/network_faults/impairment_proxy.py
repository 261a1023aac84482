"""A TCP proxy that makes impaired network: it stands where others dial, and passes bytes on badly.

The two directions of a connection have conditions of their own: `up` is from who dialled to the
target, `down` is back.  A change of impairments holds at once, for open connections too.
"""

import contextlib
import socket
from dataclasses import dataclass, field

import trio

from ftcomm.transport.socket_link import RST_ON_CLOSE
from tests.network_faults.impairments import (
    CUTS,
    FAIR,
    FIN,
    RST,
    ImpairedStream,
    Impairments,
    Piece,
)

READ_BYTES = 64 * 1024
MAX_HELD_BYTES = 4 * 1024 * 1024  # under way in one direction: then the sender has to wait
MAX_PIECES = 100_000  # under way in one direction, where they are a byte each
CONNECT_WITHIN_S = 10.0
LINGER_S = 5.0  # behind a FIN: closed with bytes unread, a socket would send RST

BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError)


@dataclass(slots=True)
class _Direction:
    """One direction of one connection, and what is on its way."""

    source: trio.SocketStream
    drain: trio.SocketStream
    stream: ImpairedStream
    held: int = 0
    room: trio.Event = field(default_factory=trio.Event)


class _Connection:
    """Both directions between who dialled and the target."""

    def __init__(self, proxy: "Proxy", near: trio.SocketStream, far: trio.SocketStream) -> None:
        seed = f"{proxy.seed}/{len(proxy.streams)}"
        self.up = _Direction(near, far, ImpairedStream(f"{seed}/up"))
        self.down = _Direction(far, near, ImpairedStream(f"{seed}/down"))
        self._proxy = proxy
        self.scope = trio.CancelScope()
        self._how = ""

    def cut(self, how: str) -> None:
        """End both ends now, with FIN or RST; what was on its way is lost."""
        self._how = self._how or how
        self.scope.cancel()

    async def run(self) -> None:
        ends = (self.up.source, self.down.source)
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    for direction, up in ((self.up, True), (self.down, False)):
                        send, receive = trio.open_memory_channel[Piece](MAX_PIECES)
                        nursery.start_soon(self._read, direction, send, up)
                        nursery.start_soon(self._write, direction, receive, up)
            if self._how == FIN:
                async with trio.open_nursery() as nursery:
                    for stream in ends:
                        nursery.start_soon(_end_with_fin, stream)
        finally:
            for stream in ends:
                _close(stream, reset=self._how == RST)

    async def _read(
        self, direction: _Direction, send: trio.MemorySendChannel[Piece], up: bool
    ) -> None:
        with send:
            while True:
                await self._fair_enough(up)
                try:
                    data = await direction.source.receive_some(READ_BYTES)
                except BROKEN:
                    self.cut(RST)
                    return
                if not data:
                    break
                now = trio.current_time()
                for piece in direction.stream.take(
                    bytes(data), self._proxy.impairments(up), now=now
                ):
                    direction.held += len(piece.data)
                    await send.send(piece)
                while direction.held > MAX_HELD_BYTES:
                    direction.room = trio.Event()
                    await direction.room.wait()
            if direction.stream.deaf or self._proxy.impairments(up).swallow:
                await trio.sleep_forever()  # nobody tells the other end that this one has gone

    async def _write(
        self, direction: _Direction, receive: trio.MemoryReceiveChannel[Piece], up: bool
    ) -> None:
        async for piece in receive:
            with trio.move_on_at(piece.due_at):
                await trio.sleep_forever()
            await self._fair_enough(up)
            direction.held -= len(piece.data)
            direction.room.set()
            try:
                await direction.drain.send_all(piece.data)
            except BROKEN:
                self.cut(RST)
                return
            if piece.cut:
                self.cut(piece.cut)
                return
        with contextlib.suppress(*BROKEN):
            await direction.drain.send_eof()

    async def _fair_enough(self, up: bool) -> None:
        """Return when this direction is not paused."""
        while self._proxy.impairments(up).paused:
            await self._proxy.changed.wait()


class Proxy:
    """Listens, dials the target for everyone who comes, and passes bytes through its impairments.

    Attributes:
        target: where to dial; may be set until somebody comes.
        seed: of all that is drawn; the n-th connection draws the same in every run.
        address: where it listens, once `serve` has returned.
        streams: of all connections so far, in pairs: up, down.
        changed: set, and another one put in its place, at each change of the impairments.
    """

    def __init__(self, target: tuple[str, int], *, seed: str = "") -> None:
        self.target = target
        self.seed = seed
        self.address = ("", 0)
        self.streams: list[tuple[ImpairedStream, ImpairedStream]] = []
        self.changed = trio.Event()
        self._up = self._down = FAIR
        self._open: set[_Connection] = set()

    def impairments(self, up: bool) -> Impairments:
        """The conditions of one direction now."""
        return self._up if up else self._down

    def set_impairments(self, up: Impairments = FAIR, down: Impairments | None = None) -> None:
        """Change the conditions; `down` is like `up` unless it is given."""
        self._up, self._down = up, up if down is None else down
        self.changed.set()
        self.changed = trio.Event()

    def cut_all(self, how: str = RST) -> int:
        """End all open connections with FIN or RST, and say how many these were."""
        assert how in CUTS, how
        for connection in self._open:
            connection.cut(how)
        return len(self._open)

    async def serve(
        self, nursery: trio.Nursery, *, host: str = "127.0.0.1", port: int = 0
    ) -> tuple[str, int]:
        """Begin to listen, in the background; returns the address.

        Raises:
            OSError: the address cannot be used.
        """
        listeners = await trio.open_tcp_listeners(port, host=host)
        nursery.start_soon(trio.serve_listeners, self._pass_on, listeners)
        name = listeners[0].socket.getsockname()
        self.address = (str(name[0]), int(name[1]))
        return self.address

    async def _pass_on(self, near: trio.SocketStream) -> None:
        try:
            with trio.fail_after(CONNECT_WITHIN_S):
                far = await trio.open_tcp_stream(*self.target)
        except (OSError, trio.TooSlowError):  # as if the target's own port had refused
            _close(near, reset=True)
            return
        connection = _Connection(self, near, far)
        self.streams.append((connection.up.stream, connection.down.stream))
        self._open.add(connection)
        try:
            await connection.run()
        finally:
            self._open.discard(connection)


async def _end_with_fin(stream: trio.SocketStream) -> None:
    with contextlib.suppress(*BROKEN), trio.move_on_after(LINGER_S):
        await stream.send_eof()
        while await stream.receive_some(READ_BYTES):
            pass


def _close(stream: trio.SocketStream, *, reset: bool) -> None:
    if reset:
        with contextlib.suppress(OSError):
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST_ON_CLOSE)
    stream.socket.close()
