"""Two ends of a link within this process."""

import socket

from ftcomm.protocol.checksum_records import xxh3_digest
from ftcomm.transport.checksum_link import CheckedLink
from ftcomm.transport.link import Link
from ftcomm.transport.socket_link import SocketLink
from ftcomm.transport.striped_link import StripedLink

BUFFER_BYTES = 1 << 16  # of the kernel, so that large messages do not fit


def linked(kind: str) -> tuple[Link, Link]:
    """Ends of a link of a kind: ``socket``, ``striped`` (of three) or ``checked``."""
    pairs = [socket.socketpair() for _ in range(3 if kind == "striped" else 1)]
    near, far = (
        [SocketLink(sock, 1, buffer_bytes=BUFFER_BYTES) for sock in end]
        for end in zip(*pairs, strict=True)
    )
    if kind == "striped":
        return StripedLink(near), StripedLink(far)
    if kind == "checked":
        return tuple(CheckedLink(end, xxh3_digest, _ignore) for end in (near[0], far[0]))
    return near[0], far[0]


def _ignore() -> None:
    """A damaged record is counted elsewhere."""
