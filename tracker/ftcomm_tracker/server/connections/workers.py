"""The tracker's side of its conversations with workers: what one says becomes events."""

from collections.abc import AsyncGenerator, Callable

import trio

from ftcomm.errors import ProtocolError
from ftcomm.protocol.messages import ControlMessage, Hello, WorkerMessage
from ftcomm_tracker.core.events import ConnectionLost, Joined, Said


async def hear_worker(
    conn: int,
    first: ControlMessage,
    messages: AsyncGenerator[ControlMessage, None],
    post: Callable[[Joined | Said | ConnectionLost], None],
) -> None:
    """Post what a worker says, `first` and what follows it, and how its connection has ended.

    Raises:
        ProtocolError: it said what a worker may not say.
    """
    if not isinstance(first, Hello):
        raise ProtocolError(f"a worker began with {type(first).__name__}, not with Hello")
    post(Joined(conn, first))
    reason = "its connection ended"
    try:
        async for message in messages:
            post(Said(conn, of_a_member(message)))
    except trio.BrokenResourceError:
        reason = "its connection was reset"
    except ProtocolError as error:
        reason = f"it broke the protocol: {error.cause}"
        raise
    finally:
        post(ConnectionLost(conn, reason))


def of_a_member(message: ControlMessage) -> WorkerMessage:
    """Convert a worker's message after its hello into an event.

    Raises:
        ProtocolError: no member says so.
    """
    if isinstance(message, Hello) or not isinstance(message, WorkerMessage):
        raise ProtocolError(f"a worker may not send {type(message).__name__} here")
    return message
