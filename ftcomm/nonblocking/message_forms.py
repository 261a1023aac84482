"""Nonblocking forms of messages: methods of the communicator with an i before their names.

Each takes the arguments of its blocking form, see `ftcomm.api.message_forms`, and returns a
`Handle`.  They keep no order with nonblocking collectives.
"""

from typing import Any, Protocol

from ftcomm.api.outputs import Result
from ftcomm.config.deadline import Duration
from ftcomm.nonblocking.handle import Handle
from ftcomm.nonblocking.message_handles import MessageHandles
from ftcomm.protocol.signature import Tag
from ftcomm.requests.call_site import passes_on

passes_on(__file__)

Out = Result | None
Deadline = Duration | None


class HasMessageHandles(Protocol):
    """The communicator, as these methods of it need it."""

    _message_handles: MessageHandles


def isend(
    self: HasMessageHandles, x: Any, to: int, tag: Tag = 0, *, copy: bool = True
) -> Handle[None]:
    """`send`, whose handle is done at once: the log has the message."""
    handles = self._message_handles
    return handles.send(handles.calls.array(x, to, tag, copy=copy))


def irecv(
    self: HasMessageHandles, source: int, tag: Tag = 0, *, like: Any = None, out: Out = None,
    deadline: Deadline = None,
) -> Handle[Any]:  # fmt: skip
    """`recv` without waiting. Receives of one source and tag get messages in their own order.

    `out` belongs to the call until the handle is done. A checkpoint or close raises `ValueError`
    before that.
    """
    handles = self._message_handles
    return handles.receive(handles.calls.receive(source, tag, like, out, deadline))


def isend_object(self: HasMessageHandles, obj: Any, to: int, tag: Tag = 0) -> Handle[None]:
    """`send_object`, whose handle is done at once."""
    handles = self._message_handles
    return handles.send(handles.calls.object(obj, to, tag))


def irecv_object(
    self: HasMessageHandles, source: int, tag: Tag = 0, *, deadline: Deadline = None
) -> Handle[Any]:
    """`recv_object` without waiting; see `irecv`."""
    handles = self._message_handles
    return handles.receive(handles.calls.receive_object(source, tag, deadline))
