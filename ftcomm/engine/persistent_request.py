"""Persistent requests: a call like one before it, in a healthy epoch, in few Python steps.

A call of a few bytes takes as long as its Python does, and of one of 100 KB that is half.  What
follows from the form of a call is made once, here; what the core would be asked is answered by one
flag, `CallProgress.quiescent`, which falls with everything that the control thread hears or does.
Where anything is special, the call takes the slow path through the engine, which does the same.
"""

import time
from _thread import get_ident
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ftcomm.collectives.schedules.direct import DIRECT_BYTES
from ftcomm.control.hub import HostSegment, Hub
from ftcomm.core import Form
from ftcomm.execution.data_plane import DataPlane
from ftcomm.execution.direct import DirectCall
from ftcomm.execution.executor import Move
from ftcomm.execution.header_check import CallHeader
from ftcomm.memory.pool import Array, LoggedResult, Pool
from ftcomm.protocol.position import MAX_SEQNO
from ftcomm.protocol.signature import Algorithm, Kind
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.recent_calls import NO_CALL, Called
from ftcomm.recovery.unasked_calls import UNTIL_NS
from ftcomm.requests.request import CollectiveSpec

NOT_SHARED = HostSegment(0)
Complete = Callable[[int, LogEntry, bool], bool]


@dataclass(frozen=True, slots=True, eq=False)
class LoggedCall:
    """Calls of one form, as the core logs them (`ftcomm.recovery.unasked_calls`)."""

    called: Called
    form: CollectiveSpec

    def entry(self, raw: bytes) -> LogEntry:
        """The entry of a result."""
        form = self.form
        stored = LoggedResult(np.frombuffer(raw, form.dtype), form.shape)
        return LogEntry(form.signature, stored, form.nbytes)


class PersistentRequest:
    """The calls of one form; used by the user's thread alone.

    Attributes:
        progress: of the worker's machine.
        repeats: the core has calls of this form that it completes by itself (`repeated`).
    """

    __slots__ = (
        "_call",
        "_complete",
        "_copies",
        "_form",
        "_hub",
        "_is_broadcast",
        "_is_direct",
        "_is_root",
        "_moves",
        "_plane",
        "_pooled",
        "_reducer",
        "_schedule",
        "_synchronising",
        "_unasked",
        "_view",
        "progress",
        "repeats",
    )

    def __init__(
        self,
        hub: Hub,
        plane: DataPlane,
        form: CollectiveSpec,
        moves: tuple[Move, ...],
        complete: Complete,
    ) -> None:
        """`complete` is the engine's, for a call during which something has happened."""
        assert form.schedule is not None, "a call of one schedule"
        self._hub = hub
        self._view, self.progress = hub.core.view, hub.core.progress
        self._unasked = hub.core.log.unasked
        self._plane = plane
        self._form = form
        self._call = Called(form.signature, form.site)
        self._moves = moves
        self._is_direct = form.schedule.algorithm is Algorithm.DIRECT
        self._schedule = form.schedule
        self._copies = self._schedule.copies
        self._pooled = form.nbytes >= Pool.MIN_BYTES
        self._complete = complete
        self.repeats = False
        self._is_broadcast = form.kind is Kind.BROADCAST
        self._is_root = self._is_broadcast and form.root == self._view.rank
        self._synchronising = not self._is_broadcast
        self._reducer = form.reducer

    def run(self, sendbuf: Array, out: Array | None = None) -> LoggedResult | None:
        """One more call; None if it is not completed, and the slow path must be taken.

        Args:
            sendbuf: of the form's dtype and count, 1-D and contiguous; it is never written.
            out: of the result's shape, contiguous, and apart from `sendbuf`; it gets the result,
                and maybe a part of it if that is None.
        """
        progress, form, plane, unasked = self.progress, self._form, self._plane, self._unasked
        epoch = self._view.epoch  # before the flag: while that is up there is no other
        position = unasked.position
        if not unasked.words[UNTIL_NS] or position.seqno >= MAX_SEQNO:
            return None
        try:
            # Without the lock: a report that is taken meanwhile comes with a Revoke, after which
            # this call is not completed and enters anew.
            unasked.asking = self._call
            header = CallHeader(epoch, position, form.suffix)
            recvbuf = self._run(header, sendbuf, out)
            if recvbuf is not None:
                stored = LoggedResult(recvbuf, form.shape)
                entry = LogEntry(form.signature, stored, form.nbytes)
                with self._hub.lock:
                    done = progress.complete_next(
                        entry, time.monotonic(), synchronising=self._synchronising
                    )
                    while done:
                        self._hub.pool.give(done.pop())
                if done is not None or self._complete(epoch, entry, self._synchronising):
                    return stored
            unasked.asking = NO_CALL  # the slow path says it again, unless it refuses the call
            return None
        except BaseException as error:
            plane.cut_short(error)
            raise

    def _run(self, header: CallHeader, sendbuf: Array, out: Array | None) -> Array | None:
        """The result; None if something has happened, or this call goes the long way."""
        form, plane = self._form, self._plane
        segment = self._hub.segment if self._is_direct else NOT_SHARED
        if segment is None:
            return None  # it is not decided yet
        core = segment.core_of(self._schedule.world_size)
        if core is not None and segment.epoch != header.epoch:
            return None
        if not self._pooled:
            recvbuf = np.empty(form.recvbuf_count, form.dtype)
        else:
            recvbuf = plane.take(form.recvbuf_count, form.dtype)
        if core is None:
            done = self._run_over_links(header, sendbuf, recvbuf)
            if done is not None and out is not None:
                out[...] = recvbuf.reshape(form.shape)
            return done
        prepared = segment.prepared.get(self)
        if prepared is None:
            assert form.schedule is not None, "a call of one schedule"
            schedule, reducer = form.schedule, form.reducer
            call = plane.direct_call(segment, header, schedule, form.dtype, reducer)
            segment.prepared[self] = prepared = call, self._prepared(call)
        return recvbuf if plane.run_direct(prepared[0], header, sendbuf, recvbuf, out) else None

    def _prepared(self, call: DirectCall) -> Form | None:
        """The form of calls that the core repeats by itself."""
        unasked, form = self._unasked, self._form
        if form.kind is not Kind.ALLREDUCE:
            return None
        logged, pattern = LoggedCall(self._call, form), np.empty(form.shape, form.dtype)
        shared = unasked.words, unasked.calls, unasked.holder, (get_ident(),)
        made = call.prepared(logged, pattern, unasked.share_of(form.nbytes), *shared)
        self.repeats = made is not None
        return made

    @property
    def repeated(self) -> Form | None:
        """The form that the core repeats; None before an epoch's first call, or if it cannot."""
        segment = self._hub.segment
        return None if segment is None else segment.prepared.get(self, (None, None))[1]

    def settle(self, done: object) -> LoggedResult | None:
        """Go on with what `Form.repeat` has returned of a call that is not complete, as `run`."""
        unasked, form = self._unasked, self._form
        unasked.asking = self._call
        segment = self._hub.segment
        if isinstance(done, tuple):
            raw, epoch = done
            entry = LoggedCall(self._call, form).entry(raw)
            if self._complete(epoch, entry, True):
                stored: LoggedResult = entry.value
                return stored
        elif isinstance(done, int) and segment is not None and self in segment.prepared:
            header = CallHeader(segment.epoch, unasked.position, form.suffix)
            self._plane.run_repeated(done, segment.prepared[self][0], header)
        unasked.asking = NO_CALL
        return None

    def cut_short(self, error: BaseException) -> None:
        """The user's call ends with `error`, which the core raised in a repeated call."""
        self._plane.note_turn(self._view.epoch, self.progress.position)
        self._plane.cut_short(error)

    def _run_over_links(self, header: CallHeader, sendbuf: Array, recvbuf: Array) -> Array | None:
        form, plane, schedule = self._form, self._plane, self._schedule
        if self._is_broadcast:
            if self._is_root:
                recvbuf[:] = sendbuf
            sendbuf = recvbuf
        for copy in self._copies:  # first: a step may send on what was copied
            end = copy.work_lo + copy.source_hi - copy.source_lo
            recvbuf[copy.work_lo : end] = sendbuf[copy.source_lo : copy.source_hi]
        if not plane.run_moves(schedule, self._moves, header, sendbuf, recvbuf, self._reducer):
            return None
        if self._is_broadcast:
            plane.note_broadcast(form.signature, header.epoch)
        return recvbuf


def persistent(
    hub: Hub, plane: DataPlane, form: CollectiveSpec, complete: Complete
) -> PersistentRequest | None:
    """For calls that are one schedule; else None."""
    special = hub.faults is not None or hub.settings.verify == "inputs"
    special = special or hub.settings.call_deadline > 0  # which calls like these do not keep
    reducer = form.reducer
    finishes = reducer is not None and reducer.finishes
    if reducer is not None and reducer.ufunc is None:
        special = special or form.nbytes > DIRECT_BYTES  # no segment takes it
    special = special or form.dtype.kind == "V"  # bfloat16, which travels as its bits
    special = special or (form.schedule is not None and form.schedule.levels is not None)
    if special or finishes or form.announcement is not None:
        return None
    moves = plane.persistent_moves(form)
    return None if moves is None else PersistentRequest(hub, plane, form, moves, complete)
