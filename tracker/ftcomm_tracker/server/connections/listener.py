"""The tracker's address: listening on one, and writing one down."""

import errno
import socket
from collections.abc import Sequence

import trio

from ftcomm.config.environment import WILDCARDS
from ftcomm.config.ip_addresses import is_link_local, is_loopback
from ftcomm.errors import ConfigError
from ftcomm_tracker.core.control_paths import ControlPath

BACKLOG = 2048  # a whole job may dial at once


async def open_listener(host: str, port: int) -> trio.SocketListener:
    """Listen on the first address of `host`; port 0 takes a free one.

    Raises:
        ConfigError: the address cannot be used.
    """
    try:
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
        family, address = found[0][0], str(found[0][4][0])
        if is_link_local(address):
            raise ConfigError(
                f"--host {host} is a link-local address, which workers cannot advertise",
                remedy="give an address of this machine that is valid on all its interfaces",
            )
        if address in WILDCARDS:
            await _check_own_name(host, family)
        listeners: Sequence[trio.SocketListener] = await trio.open_tcp_listeners(
            port, host=address, backlog=BACKLOG
        )
    except (OSError, UnicodeError) as error:  # the latter: a name that no resolver takes
        cause = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {join_address(host, port)}: {cause}",
            remedy=_remedy(error),
        ) from error
    return listeners[0]


async def _check_own_name(host: str, family: int) -> None:
    """See that what is dialled in place of a wildcard has an address of the family that listens.

    A name that only the workers' resolver knows passes.

    Raises:
        ConfigError: it has others alone.
    """
    name = socket.gethostname()
    try:
        found = await trio.socket.getaddrinfo(name, None, type=trio.socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    if family in {each[0] for each in found}:
        return
    kind, own = ("IPv6", "::1") if family == socket.AF_INET6 else ("IPv4", "127.0.0.1")
    raise ConfigError(
        f"--host {host}: workers dial the name of this machine, and {name} has no {kind} address",
        remedy=f"give the {kind} address that they reach, or {own} if all run on this machine",
    )


def _remedy(error: OSError | UnicodeError) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "if another tracker runs there, end it; else give another --host or --port"
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return "give another --port: low ones are the system's own"
    return "give a name or an address of this machine as --host"


def dial_address(listener: trio.SocketListener) -> tuple[str, int]:
    """Return the address that workers dial: the bound one, or the host name for a wildcard."""
    host, port = listener.socket.getsockname()[:2]
    return (socket.gethostname() if host in WILDCARDS else str(host)), int(port)


def peer_name(stream: trio.SocketStream) -> str:
    """The other side's address, for people."""
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:  # it has gone already
        return "an unknown address"
    return join_address(host, port)


def path_of(stream: trio.SocketStream) -> ControlPath | None:
    """Both ends of a worker's connection, None if it has gone.

    Whoever dials an own address of its machine has that address, or loopback, at its end too.
    """
    try:
        peer = str(stream.socket.getpeername()[0])
        own, port = stream.socket.getsockname()[:2]
    except OSError:
        return None
    return ControlPath(peer, join_address(own, port), is_loopback(peer) or peer == own)


def join_address(host: str, port: int) -> str:
    """``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def without_brackets(host: str) -> str:
    """The host as a resolver takes it, of an IPv6 address that was given as in a URL."""
    is_bracketed = host.startswith("[") and host.endswith("]") and ":" in host
    return host[1:-1] if is_bracketed else host


def host_in(address: str) -> str:
    """The host of what `join_address` made."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")
