"""Checksums between workers: the pairs that use them, and their control-thread streams.

Both ends of a pair must cut their stream alike, so the rule looks only at what both know: the
job's settings and the plan.  Within a host no network can damage anything, whichever of Unix
sockets, memory or loopback carries the bytes.
"""

from ftcomm.control.hub import Hub
from ftcomm.control.message_stream import ByteStream
from ftcomm.errors import ProtocolError
from ftcomm.protocol.checksum_records import MAX_RECORD_BYTES, Digest, RecordReader, record_head
from ftcomm.transport.checksum_link import CheckedLink
from ftcomm.transport.link import Link


def digest_for(hub: Hub, rank: int) -> Digest | None:
    """The digest under which bytes go to and from `rank`; None for none.

    Checked are pairs on two hosts, pairs that a third rank relays, and all where everything is TCP.
    """
    core = hub.core
    near = core.view.members[rank].host == core.view.members[core.view.rank].host
    if near and hub.settings.transport != "tcp" and core.view.relay_to(rank) is None:
        return None
    return hub.digest


def checked_link(hub: Hub, link: Link) -> Link:
    """The link itself, or one over it that sends its bytes under checksums."""
    digest = digest_for(hub, link.rank)
    return link if digest is None else CheckedLink(link, digest, hub.recovered.note_corrupted)


def checked_stream(hub: Hub, sock: ByteStream, rank: int) -> ByteStream:
    """The same for a connection of the control thread."""
    digest = digest_for(hub, rank)
    return sock if digest is None else _CheckedStream(sock, digest, hub)


def checked_by_default(hub: Hub, sock: ByteStream) -> ByteStream:
    """The same for a spare, which is no pair with any rank: wherever the job has checksums."""
    return sock if hub.digest is None else _CheckedStream(sock, hub.digest, hub)


class _CheckedStream:
    """A stream of records over a socket."""

    def __init__(self, sock: ByteStream, digest: Digest, hub: Hub) -> None:
        self._sock = sock
        self._digest = digest
        self._hub = hub
        self._reader = RecordReader(digest)
        self._number = 0

    async def send(self, data: memoryview, /) -> int:
        """Send one record of it."""
        part = data[:MAX_RECORD_BYTES]
        head = record_head(self._digest, self._number, (part,))
        self._number += 1
        for piece in (memoryview(head), part):
            while piece:
                piece = piece[await self._sock.send(piece) :]
        return len(part)

    async def recv_into(self, buffer: memoryview, /) -> int:
        """Receive what is in order; raises ProtocolError."""
        while not (count := self._take(buffer)):
            arrived = await self._sock.recv_into(self._reader.space())
            if not arrived:
                return 0
            self._reader.arrived(arrived)
        return count

    def _take(self, buffer: memoryview) -> int:
        try:
            return self._reader.take(buffer)
        except ProtocolError:
            self._hub.recovered.note_corrupted()
            raise
