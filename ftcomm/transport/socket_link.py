"""Links over sockets, of TCP or within a host: authenticated, non-blocking."""

import contextlib
import os
import select
import socket
import struct
import sys
from collections.abc import Sequence

# Of a Unix socket: a seventh faster for 100 MB than the system's default of 208 KiB, and both ends'
# share of it fits into a second-level cache.
LOCAL_BUFFER_BYTES = 2 * 1024 * 1024
RST_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of no time: what is unsent is given up
_SO_NOSIGPIPE = 0x1022  # of <sys/socket.h> on macOS, where Python may have no MSG_NOSIGNAL


class SocketLink:
    """A `Link` that is one socket.

    Attributes:
        rank: the peer.
        kind: ``unix`` or ``tcp``.
        fd: the socket's descriptor.
        sendmsg: the socket's own method, bound once.
        recv_into: likewise.
    """

    __slots__ = ("_sock", "fd", "kind", "rank", "recv_into", "sendmsg")

    def __init__(self, sock: socket.socket, rank: int, *, buffer_bytes: int | None = None) -> None:
        """Take over a connected socket.

        Args:
            sock: stream socket behind its handshake.
            rank: the peer's rank in this epoch.
            buffer_bytes: fixed kernel buffers; None leaves those of TCP to the kernel, which
                adapts them to the distance, and takes what is best within a host.
        """
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # macOS, if the peer has gone: the first transfer tells
            _tune(sock, buffer_bytes)
        self._sock = sock
        self.rank = rank
        self.kind = "unix" if sock.family == getattr(socket, "AF_UNIX", None) else "tcp"
        self.fd = sock.fileno()
        self.sendmsg = sock.sendmsg
        self.recv_into = sock.recv_into

    def poll_for(self, *, reading: bool, writing: bool) -> Sequence[tuple[int, int]]:
        """The socket, for what is wanted of it."""
        return ((self.fd, reading * select.POLLIN | writing * select.POLLOUT),)

    def shutdown(self) -> None:
        """End both directions at once; safe from any thread, any number of times."""
        with contextlib.suppress(OSError):  # not connected any more: nothing left to end
            self._sock.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Fault injection: have the kernel send RST now; the owner finds a dead descriptor."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST_ON_CLOSE)
        replace_by_dead(self._sock)  # closes the connection: with the lingering off, by RST

    def close(self) -> None:
        """Give the descriptor back; only the owner may."""
        self._sock.close()


def replace_by_dead(sock: socket.socket) -> None:
    """Close a connection under its owner, whose next call finds that the other side is gone."""
    dead, other = socket.socketpair()
    other.close()
    os.dup2(dead.fileno(), sock.fileno())
    dead.close()


def _tune(sock: socket.socket, buffer_bytes: int | None) -> None:
    if sys.platform == "darwin":
        sock.setsockopt(socket.SOL_SOCKET, _SO_NOSIGPIPE, 1)
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    elif buffer_bytes is None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_BUFFER_BYTES)
    if buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
