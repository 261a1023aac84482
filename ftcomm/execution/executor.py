"""Executor: runs one rank's schedule over its links, on the caller's thread.

The sending and the receiving half of a step progress together, so full socket buffers never block
a ring.  Small steps take a short path: one ``sendmsg`` of header and payload, one ``recv_into`` of
both into a buffer kept for it, one reduction; what these need of a schedule is worked out once, as
`Move`.  Large ones stream (see `transfers`).  A probe, where
there is one, sends every step through the streams, which can stop in the middle.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.collectives.reductions import Array, Reducer
from ftcomm.collectives.schedules.schedule import (
    NOBODY,
    REDUCE_SEGMENT_BYTES,
    Reduce,
    Schedule,
    Step,
)
from ftcomm.core import ExchangeFrames, exchange_of_frames
from ftcomm.execution.fp_errors import IgnoredFpErrors
from ftcomm.execution.frames import Frames, frames_of
from ftcomm.execution.header_check import CallHeader, check_header
from ftcomm.execution.transfers import NO_SIGNAL, Incoming, Outgoing, Probe, byte_view
from ftcomm.protocol.frame_header import (
    DATA_FRAME,
    FRAME_MAGIC,
    HEADER_BYTES,
    PREFIX,
    PREFIX_BYTES,
)
from ftcomm.requests.request import NOTHING
from ftcomm.transport.interruptions import Interrupted, LinkLost
from ftcomm.transport.link import Link
from ftcomm.transport.waiting import Waiter, WaitProgress
from ftcomm.transport.waker import Waker

# Up to here copying a received payload once more is cheaper than the streams: two ranks took
# 76 us for 256 KiB this way, and 92 the other.  Above it there was little between them.
SMALL_BYTES = 256 * 1024
assert SMALL_BYTES <= REDUCE_SEGMENT_BYTES, "a small step is one segment"

FRAMES_KEPT = 128  # schedules, of which each round has a table
MOVES_KEPT = 8192  # schedules and their steps; about 4 MB
NO_REDUCTION, INCOMING_FIRST = Reduce.NONE, Reduce.INCOMING_FIRST  # looked up once
_Given = tuple[Mapping[int, Link], CallHeader, Array, Array, Reducer | None]


@dataclass(frozen=True, slots=True)
class Move:
    """One step in bytes and views.

    Attributes:
        step: where it comes from.
        sends: payload bytes to send.
        receives: payload bytes to receive.
        small: both fit into the small buffer.
        alike: what is sent and what is received have one header; true where one of them is not.
        length: the payload in that header, in bytes.
        send_part: which part of sendbuf or work leaves; None is all of it.
        recv_part: which part of work the incoming block meets; None is all of it.
        frame: the incoming frame's place in the small buffer.
        incoming: its payload's place, as elements.
    """

    step: Step
    sends: int
    receives: int
    small: bool
    alike: bool
    length: int
    send_part: slice | None
    recv_part: slice | None
    frame: memoryview
    incoming: Array


class Moves:
    """The moves of the schedules in use; forgets all of them when they are too many."""

    __slots__ = ("_buffer", "_known", "_steps")

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._known: dict[tuple[Schedule, AnyDtype], tuple[Move, ...]] = {}
        self._steps = 0

    def of(self, schedule: Schedule, dtype: AnyDtype) -> tuple[Move, ...]:
        """The moves of `schedule` on arrays of `dtype`."""
        known = self._known.get((schedule, dtype))
        if known is not None:
            return known
        moves = tuple(self._move(schedule, step, dtype) for step in schedule.steps)
        size = len(moves) + 1  # the entry itself counts: a group of one has no steps at all
        if self._steps + size > MOVES_KEPT:
            self._known.clear()
            self._steps = 0
        self._known[schedule, dtype] = moves
        self._steps += size
        return moves

    def _move(self, schedule: Schedule, step: Step, dtype: AnyDtype) -> Move:
        sends = (step.send_hi - step.send_lo) * dtype.itemsize
        elements = step.recv_hi - step.recv_lo
        receives = elements * dtype.itemsize
        small = sends <= SMALL_BYTES and receives <= SMALL_BYTES
        one_way = NOBODY in (step.send_to, step.recv_from)
        frame_bytes = HEADER_BYTES + receives if small else 0
        available = schedule.sendbuf_count if step.send_from_sendbuf else schedule.recvbuf_count
        return Move(
            step=step,
            sends=sends,
            receives=receives,
            small=small,
            alike=one_way or sends == receives,
            length=receives if step.send_to == NOBODY else sends,
            send_part=_part(step.send_lo, step.send_hi, available),
            recv_part=_part(step.recv_lo, step.recv_hi, schedule.recvbuf_count),
            frame=memoryview(self._buffer)[:frame_bytes],
            incoming=np.frombuffer(self._buffer, dtype, elements if small else 0, HEADER_BYTES),
        )


def _part(lo: int, hi: int, count: int) -> slice | None:
    return None if (lo, hi) == (0, count) else slice(lo, hi)


class ScratchBuffer:
    """Bytes for what comes in and is reduced at once; kept, since fresh pages cost a copy."""

    def __init__(self) -> None:
        self._memory: Array = np.empty(REDUCE_SEGMENT_BYTES, np.uint8)

    def take(self, nbytes: int) -> Array:
        """Exactly `nbytes`, until the next call of this."""
        if len(self._memory) < nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes]


class Executor:
    """Runs schedules; one per communicator, used by one thread at a time.

    Attributes:
        progress: whom this thread is waiting for, for the control thread to read.
        probe: called as ``probe(point, step)`` in the middle of each transfer, or None.
        waiter: sleeps while no link may move.
    """

    _call: CallHeader

    def __init__(self, waker: Waker, probe: Probe | None = None) -> None:
        self.progress = WaitProgress()
        self.probe = probe
        self._waker = waker
        self.waiter = Waiter(waker, self.progress)
        self._head = bytearray(HEADER_BYTES)  # of the frame that is being sent
        self._other_head = bytearray(HEADER_BYTES)  # of one that comes in with another length
        self._expected = self._head
        self._small = bytearray(HEADER_BYTES + SMALL_BYTES)
        self._head_view = memoryview(self._head)
        self._small_view = memoryview(self._small)
        self._moves = Moves(self._small)
        self._quiet = IgnoredFpErrors()
        self._scratch = ScratchBuffer()
        self._exchange: ExchangeFrames | None = None
        self._frames: dict[tuple[Schedule, int], tuple[Frames, ...]] = {}  # on `_framed`
        self._framed: Mapping[int, Link] = {}
        # of the call that is running
        self._links: Mapping[int, Link] = {}
        self._source: Array = NOTHING
        self._work: Array = NOTHING
        self._reducer: Reducer | None = None

    def run(
        self,
        schedule: Schedule,
        links: Mapping[int, Link],
        header: CallHeader,
        sendbuf: Array,
        recvbuf: Array,
        reducer: Reducer | None = None,
        *,
        step_base: int = 0,
    ) -> None:
        """Execute one collective.

        Args:
            schedule: this rank's part.
            links: a link for every peer of the schedule.
            header: epoch, position, signature and call site of the call.
            sendbuf: this rank's input: 1-D, contiguous, native byte order; never written.
            recvbuf: the result's place, `schedule.recvbuf_count` elements of the same dtype.  Where
                the schedule reads no source, or is a broadcast, `sendbuf` may be `recvbuf`.
            reducer: for reducing kinds; to `finish` is the caller's.
            step_base: added to every step's number, for calls of several schedules.

        Raises:
            Interrupted: the waker is set.
            LinkLost: a link is of no more use.
            SignatureMismatch: a peer runs something else.
        """
        body = self._run_rounds if schedule.rounds else self._run
        self._guarded((links, header, sendbuf, recvbuf, reducer), body, schedule, step_base)

    def run_moves(
        self,
        moves: tuple[Move, ...],
        links: Mapping[int, Link],
        header: CallHeader,
        sendbuf: Array,
        recvbuf: Array,
        reducer: Reducer | None,
    ) -> None:
        """Run the moves of a schedule whose copies have been made; see `run`."""
        self._guarded((links, header, sendbuf, recvbuf, reducer), self._run_moves, moves, header)

    def read_ahead(self, link: Link) -> bytes:
        """The header of the next frame from `link`; whoever runs a call must be given it again.

        Raises:
            Interrupted: the waker is set.
            LinkLost: the link is of no more use.
        """
        view, got, spins = self._small_view[:HEADER_BYTES], 0, 0
        try:
            while got < HEADER_BYTES:
                more = self._receive_some(link, view[got:])
                got += more
                spins = 0 if more else spins + 1
                if not more:
                    self.waiter.pause(spins, link, None)
        except LinkLost as lost:
            if self._waker.is_set:
                raise Interrupted from lost
            raise
        return bytes(view)

    def moves_of(self, schedule: Schedule, dtype: AnyDtype) -> tuple[Move, ...]:
        """The moves of `schedule`, for `run_moves`."""
        return self._moves.of(schedule, dtype)

    def _guarded(self, given: _Given, body: Callable[..., None], *arguments: object) -> None:
        """Run `body` on what was given, with what every call needs around it."""
        if self._waker.is_set:
            raise Interrupted
        self._links, self._call, self._source, self._work, self._reducer = given
        self._head[PREFIX_BYTES:] = self._call.suffix
        reducer = self._reducer
        try:
            if reducer is not None and reducer.floating:
                self._quiet.run(body, *arguments)
            else:
                body(*arguments)
        except LinkLost as lost:
            if self._waker.is_set:  # this side's control thread shut the link down
                raise Interrupted from lost
            raise
        finally:
            self._source = self._work = NOTHING  # the caller's arrays are the caller's

    def _run_moves(self, moves: tuple[Move, ...], header: CallHeader) -> None:
        epoch, (branch, version, seqno), _ = header
        head = self._head
        for move in moves:
            tag, length = move.step.tag, move.length
            if move.alike:  # as `_prepare`, without a call
                PREFIX.pack_into(
                    head, 0, FRAME_MAGIC, DATA_FRAME, 0, epoch, branch, version, seqno, tag, length
                )  # fmt: skip
                self._expected = head
                self.progress.step = tag
            else:
                self._prepare(move, tag)
            if move.small:
                self._small_step(move, tag)
            else:
                self._large_step(move.step, tag)

    def _run(self, schedule: Schedule, step_base: int) -> None:
        sendbuf, recvbuf = self._source, self._work
        if sendbuf is not recvbuf:
            for copy in schedule.copies:  # first: a step may send on what was copied
                end = copy.work_lo + copy.source_hi - copy.source_lo
                recvbuf[copy.work_lo : end] = sendbuf[copy.source_lo : copy.source_hi]
        self._run_steps(schedule, step_base)

    def _run_steps(self, schedule: Schedule, step_base: int) -> None:
        for move in self._moves.of(schedule, self._work.dtype):
            tag = move.step.tag + step_base
            self._prepare(move, tag)
            if move.small and self.probe is None:
                self._small_step(move, tag)
            else:
                self._large_step(move.step, tag)

    # --- direct exchanges -------------------------------------------------------------------------

    def _run_rounds(self, schedule: Schedule, step_base: int) -> None:
        sendbuf, recvbuf, reducer = self._source, self._work, self._reducer
        assert reducer is not None, "a reduction"
        size = recvbuf.itemsize
        memory = self._scratch.take(schedule.rounds[0].row * schedule.world_size * size)
        rows = memory.view(recvbuf.dtype)
        together = self._frames_of(schedule, size)
        for number, one in enumerate(schedule.rounds):
            if together and len(together[number].table):
                self._move(together[number], sendbuf, recvbuf, memory, step_base)
            else:
                self._source, self._work = sendbuf, rows
                self._run_steps(one.gather, step_base)
                self._source = self._work = recvbuf
                self._run_steps(one.spread, step_base)
            operands = one.operands(sendbuf, rows)
            reducer.fold(operands, recvbuf[one.lo : one.hi])

    def _frames_of(self, schedule: Schedule, size: int) -> tuple[Frames, ...]:
        """The frames of each round that the compiled core moves at once; none where it cannot."""
        if self.probe is not None:
            return ()
        if self._framed is not self._links or len(self._frames) >= FRAMES_KEPT:
            self._framed, self._frames = self._links, {}
        frames = self._frames.get((schedule, size))
        if frames is None:
            self._exchange = exchange_of_frames()
            given = schedule.rounds if self._exchange is not None else ()
            frames = frames_of(given, self._links, schedule.peers, size)
            self._frames[schedule, size] = frames
        return frames

    def _move(
        self, frames: Frames, sendbuf: Array, recvbuf: Array, rows: Array, step_base: int
    ) -> None:
        """Move the frames of a round until all are whole."""
        exchange = self._exchange
        assert exchange is not None, "there are frames"
        epoch, (branch, version, seqno), _ = self._call
        fields = (0, epoch, branch, version, seqno, step_base, 0)
        PREFIX.pack_into(self._head, 0, FRAME_MAGIC, DATA_FRAME, *fields)
        progress, waiter = self.progress, self.waiter
        progress.step = step_base + frames.tag
        try:
            while end := exchange(frames.table, self._head, sendbuf, recvbuf, rows, waiter.spins):
                if end[0] >= 0:
                    frames.refuse(*end, self._call, step_base)
                tag, masks, peers = frames.awaited()
                progress.step = step_base + tag
                waiter.wait_for(masks, peers)
        except BaseException:
            self._frames = {}  # these stopped anywhere
            raise
        if self._waker.is_set:
            raise Interrupted

    def _prepare(self, move: Move, tag: int) -> None:
        """Make the header to send and the one that is expected."""
        epoch, (branch, version, seqno), suffix = self._call
        self.progress.step = tag
        fields = (0, epoch, branch, version, seqno, tag)
        PREFIX.pack_into(self._head, 0, FRAME_MAGIC, DATA_FRAME, *fields, move.length)
        self._expected = self._head
        if not move.alike:
            PREFIX.pack_into(self._other_head, 0, FRAME_MAGIC, DATA_FRAME, *fields, move.receives)
            self._other_head[PREFIX_BYTES:] = suffix
            self._expected = self._other_head

    def _accept(self, rank: int, tag: int, length: int) -> None:
        """Judge the header at the beginning of the small buffer."""
        if not self._small.startswith(self._expected):
            check_header(self._small_view, rank, self._call, tag, length)

    # --- small steps ------------------------------------------------------------------------------

    def _small_step(self, move: Move, tag: int) -> None:
        """One frame out, one in, and what is done with it, in few Python steps."""
        step = move.step
        rest = None if step.send_to == NOBODY else self._send_small(move)
        if step.recv_from == NOBODY:
            self._pump(rest, None)
            return
        link = self._links[step.recv_from]
        try:
            got = link.recv_into(move.frame)
        except BlockingIOError:
            got = 0
        except OSError as error:
            raise LinkLost(link.rank, f"receiving failed: {error}") from error
        else:
            if got == 0:
                raise LinkLost(link.rank, "the peer closed the connection")
        if got == HEADER_BYTES + move.receives and rest is None:
            if not self._small.startswith(self._expected):
                self._accept(step.recv_from, tag, move.receives)
        else:
            self._receive_rest(move, tag, got, rest)
        self._combine_small(move)

    def _send_small(self, move: Move) -> Outgoing | None:
        """Send header and block; what the kernel did not take comes back."""
        step = move.step
        block = self._source if step.send_from_sendbuf else self._work
        if move.send_part is not None:
            block = block[move.send_part]
        link = self._links[step.send_to]
        try:
            sent = link.sendmsg((self._head, block.data), (), NO_SIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise LinkLost(link.rank, f"sending failed: {error}") from error
        if sent == HEADER_BYTES + move.sends:
            return None
        return Outgoing(link, self._head_view, byte_view(block), sent=sent)

    def _combine_small(self, move: Move) -> None:
        step, out = move.step, self._work
        own = self._source if step.own_in_sendbuf else out
        if move.recv_part is not None:
            out, own = out[move.recv_part], own[move.recv_part]
        if step.reduce is NO_REDUCTION:
            out[:] = move.incoming
            return
        assert self._reducer is not None, "a reducing step needs a reducer"
        if step.reduce is INCOMING_FIRST:
            self._reducer.combine(move.incoming, own, out)
        else:
            self._reducer.combine(own, move.incoming, out)

    def _receive_rest(self, move: Move, tag: int, got: int, outgoing: Outgoing | None) -> None:
        """Fill the small buffer with one whole frame, and let `outgoing` leave meanwhile."""
        link, frame = self._links[move.step.recv_from], move.frame
        total, spins = len(frame), 0
        checked = False
        if not got and outgoing is None:  # it was tried just now: let the peer run first
            spins = 1
            self.waiter.pause(spins, link, None)
        while got < total or outgoing is not None:
            if not checked and got >= HEADER_BYTES:  # another program's frame may be shorter
                checked = True
                self._accept(link.rank, tag, move.receives)
            more = self._receive_some(link, frame[got:]) if got < total else 0
            got += more
            if outgoing is not None:
                more += outgoing.advance()
                if outgoing.done:
                    outgoing = None
            if more:
                spins = 0
            else:
                spins += 1
                sending = None if outgoing is None else outgoing.link
                self.waiter.pause(spins, link if got < total else None, sending)
        if not checked:
            self._accept(link.rank, tag, move.receives)

    def _receive_some(self, link: Link, view: memoryview) -> int:
        try:
            more = link.recv_into(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LinkLost(link.rank, f"receiving failed: {error}") from error
        if more == 0:
            raise LinkLost(link.rank, "the peer closed the connection")
        return more

    # --- large steps ------------------------------------------------------------------------------

    def _large_step(self, step: Step, tag: int) -> None:
        outgoing = incoming = None
        if step.send_to != NOBODY:
            block = (self._source if step.send_from_sendbuf else self._work)[
                step.send_lo : step.send_hi
            ]
            link = self._links[step.send_to]
            outgoing = Outgoing(link, self._head_view, byte_view(block), probe=self.probe, step=tag)
        if step.recv_from != NOBODY:
            incoming = self._incoming(step, tag)
        self._pump(outgoing, incoming)
        if incoming is not None and step.deferred and step.reduce is not Reduce.NONE:
            incoming.reduce_held()

    def _incoming(self, step: Step, tag: int) -> Incoming:
        part, reducer = slice(step.recv_lo, step.recv_hi), self._reducer
        out = self._work[part]
        length = out.nbytes
        whole = step.deferred or (reducer is not None and reducer.whole)
        return Incoming(
            self._links[step.recv_from],
            step,
            head=self._small_view[:HEADER_BYTES],
            accept=functools.partial(self._accept, step.recv_from, tag, length),
            own=self._source[part] if step.own_in_sendbuf else out,
            out=out,
            reducer=reducer,
            scratch=self._scratch.take(length if whole else REDUCE_SEGMENT_BYTES),
            probe=self.probe,
            tag=tag,
        )

    def _pump(self, outgoing: Outgoing | None, incoming: Incoming | None) -> None:
        """Advance both halves until both are done."""
        spins = 0
        while outgoing is not None or incoming is not None:
            moved = False
            if incoming is not None:
                moved = incoming.advance()
                if incoming.done:
                    incoming = None
            if outgoing is not None:
                moved = outgoing.advance() or moved
                if outgoing.done:
                    outgoing = None
            if moved:
                spins = 0
                if self._waker.is_set:
                    raise Interrupted
                continue
            spins += 1
            self.waiter.pause(
                spins,
                None if incoming is None else incoming.link,
                None if outgoing is None else outgoing.link,
            )
