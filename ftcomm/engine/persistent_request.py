"""Persistent requests: a call like one before it, in a healthy epoch, in few Python steps.

A call of a few bytes takes as long as its Python does, and of one of 100 KB that is half.  What
follows from the form of a call is made once, here; what the core would be asked is answered by one
flag, `CallProgress.quiescent`, which falls with everything that the control thread hears or does.
Where anything is special, the call takes the slow path through the engine, which does the same.
"""

import time
from collections.abc import Callable

import numpy as np

from ftcomm.control.hub import Hub
from ftcomm.execution.data_plane import DataPlane
from ftcomm.execution.executor import Move
from ftcomm.execution.header_check import CallHeader
from ftcomm.execution.shared_results import suits_shared_window
from ftcomm.memory.pool import Array, LoggedResult, Pool
from ftcomm.protocol.position import MAX_SEQNO
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.recent_calls import NO_CALL, Called
from ftcomm.recovery.result_log import LogEntry
from ftcomm.requests.request import CollectiveSpec

Complete = Callable[[int, LogEntry, bool], bool]


class PersistentRequest:
    """The calls of one form; used by the user's thread alone.

    Attributes:
        progress: of the worker's machine.
    """

    __slots__ = (
        "_call",
        "_complete",
        "_copies",
        "_form",
        "_hub",
        "_in_shared_window",
        "_is_broadcast",
        "_is_root",
        "_moves",
        "_plane",
        "_pooled",
        "_schedule",
        "_synchronising",
        "_view",
        "progress",
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
        self._plane = plane
        self._form = form
        self._call = Called(form.signature, form.site)
        self._moves = moves
        self._schedule = form.schedule
        self._copies = form.schedule.copies
        self._pooled = form.nbytes >= Pool.MIN_BYTES
        self._in_shared_window = self._pooled and suits_shared_window(
            self._schedule, form.dtype.itemsize
        )
        self._complete = complete
        self._is_broadcast = form.kind is Kind.BROADCAST
        self._is_root = self._is_broadcast and form.root == self._view.rank
        self._synchronising = not self._is_broadcast

    def run(self, sendbuf: Array) -> LoggedResult | None:
        """One more call; None if nothing is done, and the slow path must be taken.

        Args:
            sendbuf: of the form's dtype and count, 1-D and contiguous; it is never written.
        """
        progress, form, plane = self.progress, self._form, self._plane
        epoch = self._view.epoch  # before the flag: while that is up there is no other
        position = progress.position
        if not progress.is_quiescent or position.seqno >= MAX_SEQNO:
            return None
        try:
            # Without the lock: a report that is taken meanwhile comes with a Revoke, after which
            # this call is not completed and enters anew.
            progress.call = self._call
            header = CallHeader(epoch, position, form.suffix)
            recvbuf = self._run(header, sendbuf)
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
            progress.call = NO_CALL  # the slow path says it again, unless it refuses the call
            return None
        except BaseException as error:
            plane.cut_short(error)
            raise

    def _run(self, header: CallHeader, sendbuf: Array) -> Array | None:
        """The result; None if something has happened."""
        form, plane = self._form, self._plane
        if not self._pooled:
            recvbuf = np.empty(form.recvbuf_count, form.dtype)
        else:
            memory = (
                plane.shared_window.memory_for(form, header) if self._in_shared_window else None
            )
            if memory is not None:
                return plane.run_in_shared_window(header, sendbuf, form, memory)
            recvbuf = plane.take(form.recvbuf_count, form.dtype)
        if self._is_broadcast:
            if self._is_root:
                recvbuf[:] = sendbuf
            sendbuf = recvbuf
        for copy in self._copies:  # first: a step may send on what was copied
            end = copy.work_lo + copy.source_hi - copy.source_lo
            recvbuf[copy.work_lo : end] = sendbuf[copy.source_lo : copy.source_hi]
        done = plane.run_moves(self._schedule, self._moves, header, sendbuf, recvbuf, form.reducer)
        return recvbuf if done else None


def persistent(
    hub: Hub, plane: DataPlane, form: CollectiveSpec, complete: Complete
) -> PersistentRequest | None:
    """For calls that are one schedule; else None."""
    special = hub.faults is not None or hub.settings.verify == "inputs"
    special = special or hub.settings.call_deadline > 0  # which calls like these do not keep
    finishes = form.reducer is not None and form.reducer.finishes
    special = special or form.dtype.kind == "V"  # bfloat16, which travels as its bits
    if special or finishes or form.announcement is not None:
        return None
    moves = plane.persistent_moves(form)
    return None if moves is None else PersistentRequest(hub, plane, form, moves, complete)
