"""A virtual kernel: connections of bytes, listeners, and the network between hosts.

trio's sockets come by trio's own seam, `set_custom_socket_factory`: streams and listeners of trio
run unchanged on `VirtualSocket`.  Those of the data plane are had from the descriptor of one that
has given it up (`descriptors`).  Both are one `ConnectionEnd`.
"""

import errno
import itertools
import socket
import zlib
from collections.abc import Callable
from typing import Any, Self, TypeVar

import trio

from ftcomm_chaos.whole.world import RARE, VirtualProcess, VirtualWorld, current

T = TypeVar("T")
FIRST_FD = 1 << 20  # above all descriptors of the real process
FIRST_PORT = 20_000
WINDOWS = (8192, 65536, 1 << 20)  # bytes that an end takes before its process reads
RESET_WITHIN_S = 0.1
TCP_INFO = 11  # of Linux
YIELDS = 0.25  # share of the calls of a socket that give others a turn; trio's own always do
EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing listens

Address = tuple[str, int]


class VirtualKernel(trio.abc.SocketFactory):
    """Descriptors, and the network of one world.

    Attributes:
        barriers: between two hosts: ``dropped`` loses attempts to connect, ``silent`` all bytes.
        connections: one end of each, in the order in which they were made.
    """

    def __init__(self, world: VirtualWorld) -> None:
        self.world = world
        self.things: dict[int, Descriptor] = {}
        self.listening: dict[Address, ListenQueue] = {}
        self.barriers: dict[frozenset[str], str] = {}
        self.connections: list[ConnectionEnd] = []
        self.ports = itertools.count(FIRST_PORT)

    def add(self, thing: "Descriptor") -> int:
        fd = FIRST_FD + len(self.things)
        self.things[fd] = thing
        return fd

    def socket(
        self,
        family: int = socket.AF_INET,
        type: int = 0,  # noqa: A002, ARG002 - trio's names
        proto: int = 0,  # noqa: ARG002 - likewise
    ) -> "VirtualSocket":
        """Make a socket; trio calls this."""
        return VirtualSocket(self, current(), socket.AddressFamily(family))

    def barrier(self, one: str, other: str) -> str:
        return self.barriers.get(frozenset((one, other)), "")


class Descriptor:
    """Anything that can be polled; tasks that wait look again after each change."""

    def __init__(self, kernel: VirtualKernel) -> None:
        self.kernel, self.world = kernel, kernel.world
        self.watchers: list[trio.Event] = []
        self.fd = kernel.add(self)

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return False

    def changed(self) -> None:
        watchers, self.watchers = self.watchers, []
        for event in watchers:
            self.world.on_loop(event.set)

    async def moved(self) -> None:
        event = trio.Event()
        self.watchers.append(event)
        await event.wait()


class ConnectionEnd(Descriptor):
    """One process's end of a connection.

    Attributes:
        flying: bytes of the peer that are on their way to here.
        arrives_at: the last of ours, which none overtakes.
        is_silent: what this end sends is lost.
        left: bytes of this end that still arrive before the connection is cut; None without a cut.
    """

    peer: "ConnectionEnd"

    def __init__(self, kernel: VirtualKernel, owner: VirtualProcess, name: str) -> None:
        super().__init__(kernel)
        self.owner, self.name = owner, name
        self.inbox = bytearray()
        self.has_eof = self.is_closed = self.has_ended_writing = self.is_silent = False
        self.error = 0
        self.flying = 0
        self.arrives_at = 0.0
        self.left: int | None = None
        self.window = self.world.rng.choice(WINDOWS)
        owner.open[self] = None

    def readable(self) -> bool:
        return bool(self.inbox) or self.has_eof or self.error > 0 or self.is_closed

    def writable(self) -> bool:
        return self.error > 0 or self.is_closed or self.has_ended_writing or self._room() > 0

    def _room(self) -> int:
        return self.peer.window - len(self.peer.inbox) - self.peer.flying

    @property
    def is_open(self) -> bool:
        return not any(end.is_closed or end.error for end in (self, self.peer))

    # --- what the process does ----------------------------------------------------------------

    def _check(self) -> None:
        self.owner.must_live()
        if self.is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def _some(self, count: int) -> int:
        """Sometimes the kernel moves less than it could."""
        rng = self.world.rng
        return rng.randint(1, count) if count > 1 and rng.random() < RARE else count

    def take(self, view: memoryview, flags: int = 0) -> int:
        self._check()
        if self.inbox:
            count = self._some(min(len(view), len(self.inbox)))
            view[:count] = self.inbox[:count]
            if not flags & socket.MSG_PEEK:
                del self.inbox[:count]
                self.peer.changed()
            return count
        if self.error:
            raise ConnectionResetError(self.error, "Connection reset by peer")
        if self.has_eof:
            return 0
        raise BlockingIOError

    def give(self, data: bytes | memoryview) -> int:
        self._check()
        if self.error:
            raise ConnectionResetError(self.error, "Connection reset by peer")
        if self.has_ended_writing:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        room = self._room()
        if room <= 0:
            raise BlockingIOError
        count = self._some(min(room, len(data)))
        if count:
            self.peer.flying += count
            self._send(self._arrive, bytes(data[:count]))
        return count

    def _send(self, arrive: Callable[..., None], *args: object) -> None:
        self.arrives_at = max(self.world.now + self.world.transit(), self.arrives_at)
        self.world.at(self.arrives_at, arrive, *args)

    def _arrive(self, data: bytes) -> None:
        peer = self.peer
        if self.is_silent:
            return  # it stays on its way: at last the sender's buffer is full, as with TCP
        peer.flying -= len(data)
        if self.left is not None:
            data = data[: self.left]
            self.left -= len(data)
        if not (peer.is_closed or peer.error):
            self.world.note(self.name, len(data), f"{zlib.crc32(data):08x}")
            peer.inbox += data
            peer.changed()
        elif peer.is_closed and not self.error:  # the RST of a kernel without that connection
            peer._send(self.learn, errno.ECONNRESET)
        if self.left == 0:
            self.is_silent = True  # no byte behind the gap arrives
            self.cut()

    def end_writing(self) -> None:
        if not self.has_ended_writing:
            self.has_ended_writing = True
            self._send(self._eof_arrives)
            self.changed()

    def _eof_arrives(self) -> None:
        if not self.is_silent and not self.peer.is_closed:
            self.world.note(self.name, "EOF")
            self.peer.has_eof = True
            self.peer.changed()

    def shutdown(self, how: int) -> None:
        self._check()
        if self.error:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        if how != socket.SHUT_RD:
            self.end_writing()
        if how != socket.SHUT_WR:
            self.has_eof = True
            self.changed()

    def kernel_close(self) -> None:
        """By `close`, or at the end of the process: an RST if something was left unread."""
        if self.is_closed:
            return
        self.is_closed = True
        del self.owner.open[self]
        if self.inbox and not self.error and not self.is_silent:
            self._send(self.peer.learn, errno.ECONNRESET)
        else:
            self.end_writing()
        self.changed()

    # --- what the network does ----------------------------------------------------------------

    def learn(self, error: int) -> None:
        """The connection is lost, and this end hears of it; it can read what came before."""
        if not self.error and not self.is_closed:
            self.world.note(self.name, "reset")
            self.error = error
            self.changed()

    def cut(self) -> None:
        """The network ends the connection: each end hears of it by itself."""
        for end in (self, self.peer):
            self.world.after(self.world.between(0.001, RESET_WITHIN_S), end.learn, errno.ECONNRESET)

    def silence(self) -> None:
        """From now on no byte of either end arrives."""
        self.is_silent = self.peer.is_silent = True


class ListenQueue(Descriptor):
    """A bound address, and the connections that wait to be accepted."""

    def __init__(self, kernel: VirtualKernel, owner: VirtualProcess, address: Address) -> None:
        super().__init__(kernel)
        self.owner, self.address = owner, address
        self.waiting: list[tuple[ConnectionEnd, Address]] = []
        kernel.listening[address] = self
        owner.open[self] = None

    def readable(self) -> bool:
        return bool(self.waiting)

    def kernel_close(self) -> None:
        if self.owner.open.pop(self, self) is None:
            del self.kernel.listening[self.address]
            for end, _ in self.waiting:
                end.kernel_close()
            self.changed()


class VirtualSocket(trio.socket.SocketType):
    """A socket of trio's over an end of a connection, or a listening one."""

    def __init__(
        self,
        kernel: VirtualKernel,
        owner: VirtualProcess,
        family: socket.AddressFamily,
        end: ConnectionEnd | None = None,
    ) -> None:
        self._kernel, self._world, self._owner, self._family = kernel, kernel.world, owner, family
        self._end = end
        self._listen_queue: ListenQueue | None = None
        self._own: Address | None = None
        self._peer: Address | None = None
        self._fd = Descriptor(kernel).fd if end is None else end.fd
        self._has_shut = False

    @property
    def family(self) -> socket.AddressFamily:
        return self._family

    @property
    def type(self) -> socket.SocketKind:
        return socket.SOCK_STREAM

    @property
    def proto(self) -> int:
        return 0

    @property
    def did_shutdown_SHUT_WR(self) -> bool:  # noqa: N802 - trio's name
        return self._has_shut

    @property
    def end(self) -> ConnectionEnd:
        if self._end is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return self._end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._fd

    def detach(self) -> int:
        fd, self._fd = self._fd, -1
        return fd

    def getsockname(self) -> Any:
        return self._own

    def getpeername(self) -> Any:
        if self._peer is None or self.end.error:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return self._peer

    def setsockopt(self, *_: Any) -> None:
        pass

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        """An option; of TCP_INFO the number of times that the oldest bytes were sent again."""
        if (level, option) == (socket.IPPROTO_TCP, TCP_INFO):
            lost = self.end.is_silent and self.end.peer.flying > 0
            return bytes((0, 0, lost)).ljust(size, b"\0")
        return int(option == socket.SO_ACCEPTCONN and self._listen_queue is not None)

    async def bind(self, address: Any) -> None:
        await trio.lowlevel.checkpoint()
        if self._family == socket.AF_UNIX:
            raise OSError(errno.EACCES, "no Unix sockets here")
        host, port = address[:2]
        if (host, port) in self._kernel.listening:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._own = (host, port or next(self._kernel.ports))

    def listen(self, _backlog: int = 0) -> None:
        assert self._own is not None
        self._listen_queue = ListenQueue(self._kernel, self._owner, self._own)

    async def accept(self) -> tuple["VirtualSocket", Any]:
        await trio.lowlevel.checkpoint_if_cancelled()
        queue = self._listen_queue
        assert queue is not None
        while not queue.waiting:
            if self._fd < 0:
                raise trio.ClosedResourceError
            await queue.moved()
        end, peer = queue.waiting.pop(0)
        await trio.lowlevel.cancel_shielded_checkpoint()
        accepted = VirtualSocket(self._kernel, self._owner, self._family, end)
        accepted._own, accepted._peer = self._own, peer
        return accepted, peer

    async def connect(self, address: Any) -> None:
        world, kernel, owner = self._world, self._kernel, self._owner
        if self._family == socket.AF_UNIX:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "no Unix sockets here")
        await trio.sleep(world.transit())
        host, port = address[:2]
        barrier = kernel.barrier(owner.host, host)
        if barrier == "dropped":
            await trio.sleep_forever()
        queue = kernel.listening.get((host, port)) or kernel.listening.get((EVERYWHERE, port))
        if queue is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        number = len(kernel.connections)
        near = ConnectionEnd(kernel, owner, f"{owner}>{queue.owner}:{number}")
        far = ConnectionEnd(kernel, queue.owner, f"{queue.owner}>{owner}:{number}")
        near.peer, far.peer = far, near
        if barrier == "silent":
            near.silence()
        kernel.connections.append(near)
        world.note(near.name, "connects")
        self._end, self._fd = near, near.fd
        self._own, self._peer = (owner.host, next(kernel.ports)), (host, port)
        queue.waiting.append((far, self._own))
        queue.changed()
        await trio.sleep(world.transit())

    async def _until_done(self, attempt: Callable[..., T], *args: Any) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._fd < 0:
                raise OSError(errno.EBADF, "Bad file descriptor")
            try:
                result = attempt(*args)
            except BlockingIOError:
                await self.end.moved()
                if self._fd < 0:
                    raise trio.ClosedResourceError("another task closed this socket") from None
                continue
            if self._world.rng.random() < YIELDS:
                await trio.lowlevel.cancel_shielded_checkpoint()
            return result

    async def recv_into(self, buffer: Any, _nbytes: int = 0, flags: int = 0) -> int:
        with memoryview(buffer) as view:
            return await self._until_done(self.end.take, view, flags)

    async def recv(self, size: int, flags: int = 0) -> bytes:
        buffer = bytearray(size)
        count = await self.recv_into(buffer, 0, flags)
        return bytes(buffer[:count])

    async def send(self, data: Any, _flags: int = 0) -> int:
        return await self._until_done(self.end.give, data)

    def shutdown(self, how: int) -> None:
        self.end.shutdown(how)
        self._has_shut = self._has_shut or how != socket.SHUT_RD

    async def wait_writable(self) -> None:
        while not self.end.writable():
            await self.end.moved()

    def is_readable(self) -> bool:
        return self.end.readable()

    def close(self) -> None:
        if self._fd < 0:
            return
        self._fd = -1
        if not self._owner.is_dead:  # then the kernel has done it
            for thing in (self._end, self._listen_queue):
                if thing is not None:
                    thing.kernel_close()
                    thing.changed()
