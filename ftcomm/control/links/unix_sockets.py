"""Links within one host by Unix sockets: same handshake, same frames, less processor time.

Beside its TCP address a listener takes an abstract Unix address made of it: as unique as the port,
in the same network namespace, and gone with its process.  Linux alone has such addresses.  Anybody
on the host may take a name, so a dialler that does not find its peer there goes by TCP.
"""

import socket
import sys

import trio


def local_name(address: str, port: int) -> bytes | None:
    """The abstract address beside a TCP address; None where the system has none."""
    return f"\0ftcomm-{address}:{port}".encode() if sys.platform == "linux" else None


async def listen_locally(address: str, port: int) -> trio.socket.SocketType | None:
    """A listening socket beside ``address:port``; None where there can be none."""
    name = local_name(address, port)
    if name is None:
        return None
    sock = trio.socket.socket(socket.AF_UNIX, trio.socket.SOCK_STREAM)
    try:
        await sock.bind(name)
        sock.listen(128)
    except OSError:  # somebody has the name: the others will come by TCP
        sock.close()
        return None
    return sock


async def connect_locally(address: str, port: int) -> trio.socket.SocketType | None:
    """A connection to a listener of this host; None where there is none."""
    name = local_name(address, port)
    if name is None:
        return None
    sock = trio.socket.socket(socket.AF_UNIX, trio.socket.SOCK_STREAM)
    try:
        await sock.connect(name)
    except OSError:  # another host of the same name, or nobody
        sock.close()
        return None
    return sock
