"""Opened: the parts of a future link, and the link that is made of them."""

import socket
from collections.abc import Sequence
from typing import NamedTuple

import trio

from ftcomm.control.hub import Hub
from ftcomm.control.links.checksums import checked_link
from ftcomm.transport.link import Link
from ftcomm.transport.shm_link import SharedLink
from ftcomm.transport.shm_segment import Segment
from ftcomm.transport.socket_link import SocketLink
from ftcomm.transport.striped_link import StripedLink


class Opened(NamedTuple):
    """Authenticated connections to one peer, and shared memory if there is any."""

    conns: Sequence[trio.socket.SocketType]
    segment: Segment | None = None

    def as_link(self, hub: Hub, rank: int) -> Link:
        """Return the link to `rank` that they make, under checksums if the job has them.

        It owns them from now on.
        """
        socks = [socket.socket(fileno=conn.detach()) for conn in self.conns]
        link: Link
        if self.segment is not None:
            link = SharedLink(socks[0], rank, self.segment)
        elif len(socks) == 1:
            link = SocketLink(socks[0], rank)
        else:
            link = StripedLink([SocketLink(sock, rank) for sock in socks])
        return checked_link(hub, link)
