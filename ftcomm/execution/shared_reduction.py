"""An allreduce whose result lies in a shared window of all its ranks.

For schedules of two halves: first the operands are exchanged and reduced until each rank ends with
a block of its own, then the blocks are collected.  The first half stays as it is: the same blocks,
the same operands in the same order (R5).  A rank's last reduction writes its block into the common
result, where all others find it; so in the second half nothing but headers are exchanged, by which
ranks say that blocks are there, those of which they were told included.

Rank 0 decides for all whether there is a place for the result, by a flag in its frames.  Who has
seen the flag sets it too.  In each rank's block there is an operand of rank 0, and with it comes
the flag, at the latest in the frame of the last reduction, just before the place is needed.  Where
there is none the blocks are exchanged as ever.
"""

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.collectives.reductions import Array, Reducer
from ftcomm.collectives.schedules.schedule import REDUCE_SEGMENT_BYTES, Schedule, Step
from ftcomm.collectives.selection import SCHEDULES_KEPT
from ftcomm.errors import ProtocolError
from ftcomm.execution.executor import Executor, Move
from ftcomm.execution.header_check import CallHeader, check_header
from ftcomm.execution.transfers import Incoming, Outgoing, byte_view
from ftcomm.protocol.frame_header import (
    DATA_FRAME,
    FRAME_MAGIC,
    HEADER_BYTES,
    PREFIX,
    SHARED_RESULT_FLAG,
)
from ftcomm.requests.request import NOTHING
from ftcomm.transport.interruptions import LinkLost
from ftcomm.transport.link import Link
from ftcomm.transport.shared_window import SharedWindow


def scratch_elements(schedule: Schedule) -> int:
    """Elements of the two buffers that `run_in_shared_window` uses for partial results."""
    reducing = schedule.steps[: len(schedule.steps) // 2]
    fresh = [step.recv_hi - step.recv_lo for step in reducing[:-1] if step.own_in_sendbuf]
    return max(fresh, default=0) * min(len(fresh), 2)


class ResultSlots(NamedTuple):
    """Memory in which the result of a call may be made.

    Attributes:
        memory: the shared window of all ranks.
        own: makes a place of this rank's own.
        scratch: of `scratch_elements`.
    """

    memory: SharedWindow
    own: Callable[[], Array]
    scratch: Array


@dataclass(slots=True)
class _Run:
    """One call, and what this rank knows of it.

    Attributes:
        schedule: this rank's part.
        header: of its frames.
        sendbuf: this rank's operand.
        places: for the result.
        is_shared_result: it is made in shared window, as far as this rank has heard.
        recvbuf: the result's place, once this rank has needed it.
        partial: what was reduced last and is not complete.
        partial_lo: where in the result that begins.
    """

    schedule: Schedule
    header: CallHeader
    sendbuf: Array
    places: ResultSlots
    is_shared_result: bool = False
    recvbuf: Array | None = None
    partial: Array = field(default_factory=lambda: NOTHING)
    partial_lo: int = 0

    @property
    def dtype(self) -> AnyDtype:
        """Of the elements."""
        return self.sendbuf.dtype

    @property
    def last(self) -> int:
        """Index of the last reduction."""
        return len(self.schedule.steps) // 2 - 1

    def begin(self) -> None:
        """Rank 0 looks for a place; the others have yet to hear of it."""
        if self.schedule.rank == 0 and self.places.memory.is_complete:
            self._take(self.places.memory.place(self.header.position, self._nbytes))

    def hear_of_place(self) -> None:
        """Take the place that rank 0 has announced, if this rank has heard of one.

        Raises:
            ProtocolError: what rank 0 has announced is no place for this result.
        """
        if self.recvbuf is None and self.is_shared_result:
            self._take(self.places.memory.placed(self.header.position, self._nbytes))
        elif self.recvbuf is None:
            self.recvbuf = self.places.own()

    def sends(self, step: Step) -> Array:
        """Return the block that a step of the first half sends."""
        return self._operand(step.send_lo, step.send_hi, fresh=step.send_from_sendbuf)

    def owns(self, step: Step) -> Array:
        """Return the own block that a step of the first half combines with the incoming one."""
        return self._operand(step.recv_lo, step.recv_hi, fresh=step.own_in_sendbuf)

    def keep(self, index: int, step: Step) -> Array:
        """Return the destination of a step's reduction, for all steps but the last."""
        if not step.own_in_sendbuf:
            return self.owns(step)
        scratch = self.places.scratch
        at = 0 if index % 2 == 0 else len(scratch) // 2
        return scratch[at : at + step.recv_hi - step.recv_lo]

    @property
    def _nbytes(self) -> int:
        return self.schedule.recvbuf_count * self.dtype.itemsize

    def _take(self, place: Array | None) -> None:
        if place is not None:
            self.is_shared_result, self.recvbuf = True, place.view(self.dtype)

    def _operand(self, lo: int, hi: int, *, fresh: bool) -> Array:
        if fresh:
            return self.sendbuf[lo:hi]
        return self.partial[lo - self.partial_lo : hi - self.partial_lo]


class SharedResultExecutor(Executor):
    """An executor that knows such calls too."""

    def run_in_shared_window(
        self,
        schedule: Schedule,
        links: Mapping[int, Link],
        *,
        header: CallHeader,
        sendbuf: Array,
        places: ResultSlots,
        reducer: Reducer,
    ) -> Array:
        """Run a schedule that `suits_shared_window`; return the result."""
        run = _Run(schedule, header, sendbuf, places)
        self._guarded((links, header, sendbuf, NOTHING, reducer), self._run_halves, run)
        if run.is_shared_result:
            return places.memory.sealed().view(sendbuf.dtype)
        assert run.recvbuf is not None, "the last reduction needed it"
        return run.recvbuf

    def _run_halves(self, run: _Run) -> None:
        run.begin()
        moves = self._moves.of(run.schedule, run.dtype)
        for index, move in enumerate(moves[: run.last + 1]):
            self._reduce(run, index, move)
        assert run.recvbuf is not None, "the last reduction needed it"
        assert self._reducer is not None, "an allreduce reduces"
        self._work = run.recvbuf
        if run.is_shared_result:
            last = moves[run.last].step
            block = run.recvbuf[last.recv_lo : last.recv_hi]
            self._reducer.finish(block, run.schedule.world_size)
            # A fence, whichever stores were used: taking a free lock is a locked instruction.
            threading.Lock().acquire()
            self._tell(run)
            return
        for move in moves[run.last + 1 :]:
            self._prepare(move, move.step.tag)
            self._large_step(move.step, move.step.tag)
        self._reducer.finish(run.recvbuf, run.schedule.world_size)

    def _reduce(self, run: _Run, index: int, move: Move) -> None:
        """Send what the peer needs, and reduce what comes."""
        step, is_last, own = move.step, index == run.last, run.owns(move.step)
        out = own if is_last else run.keep(index, step)
        self._say(run, step.tag, move.sends)
        incoming = Incoming(
            self._links[step.recv_from],
            step,
            head=self._small_view[:HEADER_BYTES],
            accept=functools.partial(self._hear, run, move, is_last=is_last),
            own=own,
            out=out,
            reducer=self._reducer,
            scratch=self._scratch.take(REDUCE_SEGMENT_BYTES),
            probe=self.probe,
            tag=step.tag,
        )
        self._pump(self._outgoing(step, run.sends(step)), incoming)
        run.partial, run.partial_lo = out, step.recv_lo

    def _tell(self, run: _Run) -> None:
        """Say which blocks are there, and hear it of the others."""
        self._expected = self._head
        for move in self._moves.of(_told(run.schedule), run.dtype):
            self._say(run, move.step.tag, 0)
            if self.probe is None:
                self._small_step(move, move.step.tag)
            else:
                self._large_step(move.step, move.step.tag)

    def _outgoing(self, step: Step, block: Array) -> Outgoing:
        link = self._links[step.send_to]
        body = byte_view(block)
        return Outgoing(link, self._head_view, body, probe=self.probe, step=step.tag)

    def _say(self, run: _Run, tag: int, length: int) -> None:
        """Make the header of the frame to send."""
        epoch, (branch, version, seqno), _ = run.header
        flags = SHARED_RESULT_FLAG if run.is_shared_result else 0
        self.progress.step = tag
        fields = (epoch, branch, version, seqno, tag, length)
        PREFIX.pack_into(self._head, 0, FRAME_MAGIC, DATA_FRAME, flags, *fields)

    def _hear(self, run: _Run, move: Move, *, is_last: bool) -> Array | None:
        """Judge the header that has come, and learn from it; where the last block goes."""
        step = move.step
        if not (move.alike and self._small.startswith(self._head)):  # else it says the same
            raw, length = self._small_view, move.receives
            theirs = check_header(
                raw, step.recv_from, run.header, step.tag, length, shared_window=None
            )
            says = theirs.shared_window
            run.is_shared_result = run.is_shared_result or says
        if not is_last:
            return None
        try:
            run.hear_of_place()
        except ProtocolError as error:
            raise LinkLost(step.recv_from, error.cause) from error
        assert run.recvbuf is not None, "it has just been taken"
        return run.recvbuf[step.recv_lo : step.recv_hi]


@functools.lru_cache(maxsize=SCHEDULES_KEPT)
def _told(schedule: Schedule) -> Schedule:
    """The second half of `schedule`, of empty blocks."""
    steps = (
        replace(step, send_hi=step.send_lo, recv_hi=step.recv_lo)
        for step in schedule.steps[len(schedule.steps) // 2 :]
    )
    return replace(schedule, steps=tuple(steps))
