"""One step's two halves, each advanced by one system call at a time and never blocking.

Both keep views of the caller's arrays and nothing of their own: payload goes from the array to the
kernel and from the kernel to its final place, or to a scratch segment that is reduced while it is
in the cache.
"""

import socket
from collections.abc import Callable

import numpy as np

from ftcomm.collectives.reductions import Array, Reducer
from ftcomm.collectives.schedules.schedule import REDUCE_SEGMENT_BYTES, Reduce, Step
from ftcomm.protocol.frame_header import HEADER_BYTES
from ftcomm.transport.interruptions import LinkLost
from ftcomm.transport.link import Link

Probe = Callable[[str, int], None]

# A send copies this much before the receiving half gets its turn again.
SEND_CHUNK_BYTES = 512 * 1024
# A dead peer is an exception here, never SIGPIPE (rule R10); where this is missing, see `tcp.Link`.
NO_SIGNAL: int = getattr(socket, "MSG_NOSIGNAL", 0)


def byte_view(array: Array) -> memoryview:
    """The bytes of a contiguous 1-D array."""
    return array.view(np.uint8).data


def half_way(payload: int) -> int:
    """Offset in a frame at which a probe is called: half its payload, or half of a bare header."""
    return HEADER_BYTES + (payload + 1) // 2 if payload else HEADER_BYTES // 2


class Outgoing:
    """A frame on its way to the kernel."""

    __slots__ = ("_at", "_body", "_head", "_limit", "_probe", "_step", "_total", "done", "link")

    def __init__(
        self,
        link: Link,
        head: memoryview,
        body: memoryview,
        *,
        sent: int = 0,
        probe: Probe | None = None,
        step: int = 0,
    ) -> None:
        self.link = link
        self.done = False
        self._head = head
        self._body = body
        self._at = sent
        self._total = HEADER_BYTES + len(body)
        self._probe = probe
        self._step = step
        self._limit = self._total if probe is None else half_way(len(body))

    def advance(self) -> bool:
        """Give the kernel what it takes now; False if it takes nothing.

        Raises:
            LinkLost: the kernel refuses the link.
        """
        try:
            sent = self.link.sendmsg(self._next(), (), NO_SIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            raise LinkLost(self.link.rank, f"sending failed: {error}") from error
        self._at += sent
        if self._at >= self._limit:
            self._reach_limit()
        return True

    def _next(self) -> tuple[memoryview, ...]:
        at, end = self._at - HEADER_BYTES, self._limit - HEADER_BYTES
        if at >= 0:
            return (self._body[at : min(end, at + SEND_CHUNK_BYTES)],)
        if end < 0:
            return (self._head[self._at : self._limit],)
        return self._head[self._at :], self._body[: min(end, SEND_CHUNK_BYTES)]

    def _reach_limit(self) -> None:
        if self._probe is not None:
            probe, self._probe = self._probe, None
            self._limit = self._total
            probe("half_sent", self._step)
        self.done = self._at >= self._total


class Incoming:
    """A frame on its way from the kernel to work, reduced segment by segment on the way.

    Args:
        link: where it comes from.
        step: the schedule's step.
        head: 104 bytes to read the header into.
        accept: called once, when the header is complete; raises if it is wrong.  What it returns
            takes the place of `out`, of the same size, where the step reduces.
        own: the own operand, where the step reduces.
        out: the part of work where the block belongs.
        reducer: for reducing steps.
        scratch: bytes for incoming segments; the whole block where the step must be held.
    """

    __slots__ = (
        "_accept",
        "_got",
        "_head",
        "_limit",
        "_out",
        "_own",
        "_probe",
        "_reducer",
        "_scratch",
        "_segment",
        "_segments_done",
        "_step",
        "_tag",
        "_target",
        "_total",
        "done",
        "link",
    )  # fmt: skip

    def __init__(
        self,
        link: Link,
        step: Step,
        *,
        head: memoryview,
        accept: Callable[[], Array | None],
        own: Array,
        out: Array,
        reducer: Reducer | None,
        scratch: Array,
        probe: Probe | None,
        tag: int,
    ) -> None:
        self.link = link
        self.done = False
        self._tag = tag
        self._head = head
        self._accept = accept
        self._step = step
        self._own = own
        self._out = out
        self._reducer = reducer
        self._scratch = scratch
        self._segments_done = 0
        self._got = 0
        self._total = HEADER_BYTES + out.nbytes
        self._probe = probe
        self._limit = self._total if probe is None else half_way(out.nbytes)
        reducing = step.reduce is not Reduce.NONE
        self._segment = len(scratch) if reducing else out.nbytes
        self._target = scratch.data if reducing else byte_view(out)

    def advance(self) -> bool:
        """Take what has arrived, up to the end of the current segment; False if nothing has.

        Raises:
            LinkLost: the peer has closed, or the kernel refuses the link.
            SignatureMismatch: from the header.
        """
        try:
            got = self.link.recv_into(self._next())
        except BlockingIOError:
            return False
        except OSError as error:
            raise LinkLost(self.link.rank, f"receiving failed: {error}") from error
        if got == 0:
            raise LinkLost(self.link.rank, "the peer closed the connection")
        self._got += got
        if self._got == HEADER_BYTES:
            place = self._accept()
            self._out = self._out if place is None else place
        elif self._got > HEADER_BYTES and self._step.reduce is not Reduce.NONE:
            self._reduce_if_complete()
        if self._got >= self._limit:
            self._reach_limit()
        return True

    def _next(self) -> memoryview:
        got = self._got
        if got < HEADER_BYTES:  # alone, so that it is checked before a byte lands in work
            return self._head[got : min(HEADER_BYTES, self._limit)]
        at = got - HEADER_BYTES - self._segments_done
        end = min(self._segment, self._limit - HEADER_BYTES - self._segments_done)
        return self._target[at:end]

    def _reduce_if_complete(self) -> None:
        filled = self._got - HEADER_BYTES - self._segments_done
        if self._step.deferred or (filled < self._segment and self._got < self._total):
            return
        self._reduce(self._segments_done, filled, 0)
        self._segments_done += filled

    def _reduce(self, offset: int, length: int, scratch_at: int) -> None:
        assert self._reducer is not None, "a reducing step needs a reducer"
        out, own = self._out, self._own
        part = slice(offset // out.itemsize, (offset + length) // out.itemsize)
        incoming = self._scratch[scratch_at : scratch_at + length].view(out.dtype)
        if self._step.reduce is Reduce.INCOMING_FIRST:
            self._reducer.combine(incoming, own[part], out[part])
        else:
            self._reducer.combine(own[part], incoming, out[part])

    def reduce_held(self) -> None:
        """The reductions of a held step, once its send has left."""
        assert self._reducer is not None, "a reducing step needs a reducer"
        size = self._out.nbytes
        segment = max(size, 1) if self._reducer.whole else REDUCE_SEGMENT_BYTES
        for offset in range(0, size, segment):
            self._reduce(offset, min(segment, size - offset), offset)

    def _reach_limit(self) -> None:
        if self._probe is not None:
            probe, self._probe = self._probe, None
            self._limit = self._total
            probe("half_received", self._tag)
        self.done = self._got >= self._total
