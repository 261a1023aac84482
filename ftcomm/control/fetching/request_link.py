"""Request links: one rank asks another once, and what answers it follows on the same link.

Such a link is authenticated as any link of its epoch, and ends with it: the next plan asks again.
Both sides are tasks of control threads, so that a rank answers while its user computes.
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

import trio

from ftcomm.control.driver import Driver
from ftcomm.control.idle_timeout import IdleTimeoutStream
from ftcomm.control.links.checksums import checked_stream
from ftcomm.control.links.dial import BROKEN, patiently
from ftcomm.control.links.manager import open_peer
from ftcomm.control.message_stream import ByteStream, receive_message
from ftcomm.errors import ProtocolError
from ftcomm.protocol.handshake import DataContext
from ftcomm.protocol.link_messages import CopyRequest, FetchRequest, PartRequest

Request = TypeVar("Request", FetchRequest, PartRequest, CopyRequest)


@contextlib.asynccontextmanager
async def request_link(
    driver: Driver, epoch: int, rank: int, role: str
) -> AsyncIterator[ByteStream]:
    """Open a link to `rank`, for one request; closed behind the body.

    Only silence ends it early, and no connection within `detect_within`: a slow link may be as
    slow as it is.

    Raises:
        RelayLost: a relay on the way is gone; `rank` itself is not to blame.
        OSError, ProtocolError, trio.TooSlowError: `rank` cannot be reached; see `BROKEN`.
    """
    sock = await patiently(driver, functools.partial(open_peer, driver, epoch, rank, role))
    with sock, driver.hub.kept_from_children(sock):
        patient = IdleTimeoutStream(sock, driver.hub.settings.detect_within)
        yield checked_stream(driver.hub, patient, rank)


@contextlib.contextmanager
def answering(
    driver: Driver, sock: trio.socket.SocketType, context: DataContext
) -> Iterator[ByteStream]:
    """The other end of a request link; the body is left where the link breaks or the epoch ends."""
    with driver.epoch_scopes.opened():
        try:
            yield checked_stream(driver.hub, sock, context.from_rank)
        except BROKEN as error:
            driver.hub.log.debug("serving rank %d ended: %r", context.from_rank, error)


async def receive_request(stream: ByteStream, epoch: int, kind: type[Request]) -> Request:
    """Return what is asked for.

    Raises:
        ProtocolError: it is something else, or for another epoch.
    """
    request = await receive_message(stream)
    if not isinstance(request, kind) or request.epoch != epoch:
        raise ProtocolError(f"expected a request of epoch {epoch}, got {request!r:.200}")
    return request
