"""LinkStream: a link that the control thread uses as it uses a socket."""

import trio

from ftcomm.transport.link import Link


class LinkStream:
    """Sends and receives over a `Link`, which somebody else owns.

    One task at a time may send, and one receive.  The link may not be closed while one waits here.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    async def send(self, data: memoryview, /) -> int:
        """Send some of it; returns how many bytes; raises OSError."""
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self._link.sendmsg((data,), (), 0)
            except BlockingIOError:
                await wait_writable(self._link)

    async def recv_into(self, buffer: memoryview, /) -> int:
        """Receive some bytes; 0: the peer has closed; raises OSError."""
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self._link.recv_into(buffer)
            except BlockingIOError:
                await wait_readable(self._link)


async def wait_readable(link: Link) -> None:
    """Return when `link` may receive; at once where it holds bytes already."""
    for fd, _ in link.poll_for(reading=True, writing=False)[:1]:
        await trio.lowlevel.wait_readable(fd)


async def wait_writable(link: Link) -> None:
    """Return when `link` may send."""
    for fd, _ in link.poll_for(reading=False, writing=True)[:1]:
        await trio.lowlevel.wait_writable(fd)
