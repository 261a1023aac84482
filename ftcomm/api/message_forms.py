"""Messages from rank to rank: methods of the communicator.

They are functions here and methods there: `Communicator.send` is `send`.

A message is known by source, destination, tag, and its number among those since the last
checkpoint.  Those of one tag from one rank to another arrive in the order in which they were sent.
There is no receiving from any rank or any tag: a restarted script might get another message than
before.  Messages keep no order with collectives, and take no position.  Each thread may send and
receive, and so may a callback of a handle.

A message is kept by its sender until the next checkpoint, so that a restarted rank gets again what
it had got.  A restarted sender must send the same bytes again, or the job is lost.  A checkpoint,
and the close, are cuts: what was sent since the last one must have been received.
"""

from typing import Any, Protocol

from ftcomm.api.messages import MessageCalls
from ftcomm.api.outputs import Result
from ftcomm.api.public_values import MessageInfo
from ftcomm.config.deadline import Duration
from ftcomm.protocol.signature import Tag
from ftcomm.requests.call_site import passes_on

passes_on(__file__)

Out = Result | None
Deadline = Duration | None


class HasMessages(Protocol):
    """The communicator, as these methods of it need it."""

    _messages: MessageCalls


def send(self: HasMessages, x: Any, to: int, tag: Tag = 0, *, copy: bool = True) -> None:
    """Send an array to one rank; return when it is logged, and do not wait for the receiver.

    Args:
        x: array-like, or one number.
        to: the rank that receives it, another one than this.
        tag: an int, or a str of at most 71 bytes; 1 and ``"1"`` differ. At most 1,024 tags to one
            rank between two checkpoints.
        copy: False leaves `x` itself to the log: it may not be written to until the next checkpoint
            has returned.

    Raises:
        TypeError, ValueError: local mistakes; nothing is sent.
        LogLimitError: what was sent since the last checkpoint passes ``log_limit``; on all ranks.
        JobLostError: after a restart other bytes were sent than before; on all ranks.
        FtcommError: see `allreduce`.
    """
    calls = self._messages
    calls.send(calls.array(x, to, tag, copy=copy))


def recv(
    self: HasMessages, source: int, tag: Tag = 0, *, like: Any = None, out: Out = None,
    deadline: Deadline = None,
) -> Any:  # fmt: skip
    """Receive the next array of one rank and one tag.

    Args:
        source: the rank that sends it.
        tag: as for `send`.
        like: an array or a number, whose dtype and shape the message must have. Without it, and
            without `out`, they come with the message.
        out: where to put it: a writable array of its dtype and shape. Undefined if the call raises.
        deadline: as for `allreduce`.

    Returns:
        `out`, or an own writable array; for one number a number of its type.

    Raises:
        TypeError, ValueError: a local mistake, or a message that does not fit. It is not taken and
            can be received otherwise.
        JobLostError: the source has closed, and is gone with its messages.
        FtcommError: see `allreduce`.
    """
    calls = self._messages
    return calls.receive_now(calls.receive(source, tag, like, out, deadline))


def sendrecv(
    self: HasMessages, x: Any, to: int, source: int, *, send_tag: Tag = 0, recv_tag: Tag = 0,
    like: Any = None, out: Out = None, copy: bool = True, deadline: Deadline = None,
) -> Any:  # fmt: skip
    """Send `x` to one rank, and receive from one, perhaps the same; see `send` and `recv`.

    All arguments are looked at before anything is sent. `out` may be `x`, unless that is lent.
    """
    calls = self._messages
    message = calls.array(x, to, send_tag, copy=copy)
    receive = calls.receive(source, recv_tag, like, out, deadline)
    return calls.exchange(message, receive)


def probe(
    self: HasMessages, source: int, tag: Tag = 0, *, deadline: Deadline = None
) -> MessageInfo:
    """Wait until a message is there, and return what it is; the next `recv` gets it.

    There is no nonblocking probe: its answer would depend on timing, and a restarted script could
    get another one.

    Args:
        source: as for `recv`.
        tag: likewise.
        deadline: as for `allreduce`.
    """
    return self._messages.probe(source, tag, deadline)


def send_object(self: HasMessages, obj: Any, to: int, tag: Tag = 0) -> None:
    """Send an object to one rank, as `send` does; see `broadcast_object` for what it may be."""
    calls = self._messages
    calls.send(calls.object(obj, to, tag))


def recv_object(self: HasMessages, source: int, tag: Tag = 0, *, deadline: Deadline = None) -> Any:
    """Receive the next object of one rank and one tag, as `recv` does."""
    calls = self._messages
    return calls.wait(calls.receive_object(source, tag, deadline))
