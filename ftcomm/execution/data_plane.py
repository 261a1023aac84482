"""Data plane: runs the schedules of one call over this epoch's links, on the caller's thread.

Returns nothing but "done" or "ask the core again": what broke has been told to the core by then.
"""

import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ftcomm.collectives.chunking import STATE_LIMIT, pieces
from ftcomm.collectives.dtypes import AnyDtype, as_executed
from ftcomm.collectives.reductions import Reducer
from ftcomm.collectives.schedules.direct import DIRECT_BYTES, SPREAD_TAG
from ftcomm.collectives.schedules.pairwise_exchange import shift
from ftcomm.collectives.schedules.schedule import NOBODY, Levels, Schedule
from ftcomm.collectives.selection import allgatherv_schedule, schedule_for
from ftcomm.control.hub import HostSegment, Hub
from ftcomm.control.thread import ControlThread
from ftcomm.execution.direct import DirectCall
from ftcomm.execution.executor import Executor, Move
from ftcomm.execution.fp_errors import IgnoredFpErrors
from ftcomm.execution.header_check import CallHeader, announced_signature
from ftcomm.memory.pool import Array, LoggedResult, Pool
from ftcomm.protocol.frame_header import make_suffix
from ftcomm.protocol.host_groups import members_of
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import SIGNATURE_BYTES, Algorithm, Kind
from ftcomm.recovery.archive.placement import local_distances
from ftcomm.recovery.events import LinkDown, MismatchSeen
from ftcomm.recovery.recent_calls import NO_CALL
from ftcomm.recovery.unasked_calls import EPOCH, STEP
from ftcomm.requests.request import (
    NOTHING,
    CollectiveSpec,
    OpenBroadcast,
    Request,
    in_result_dtype,
    row_elements,
    stored_rows,
)
from ftcomm.state.layout import Packed, behind_each_other
from ftcomm.transport.interruptions import Interrupted, LinkLost, SignatureMismatch
from ftcomm.transport.link import Link
from ftcomm.transport.pushback_link import UnreadLink
from ftcomm.transport.waiting import spins_before_sleep

# Sub-collectives of one position (a load is a length, a payload and a barrier) are told apart by
# the frame's step number; no schedule has as many steps.
STAGE = 1 << 20
VERIFY_STAGE = 3  # behind the stages of every kind
# Of a checkpoint or close, behind its first exchange.  No two are alike, so that steps grow: a rank
# in an earlier one would seem to wait for what has been sent, and its link be blamed (rule R12).
HELD_STAGE, TOTALS_STAGE = 1, 2  # of the check that no message is open
LOCALS_STAGE = 3  # one for each holder of a local state, and one for the barrier

_CHECKSUM = struct.Struct("<I")
_BYTE: AnyDtype = np.dtype(np.uint8)
_OF_ROWS = (Kind.ALLGATHERV, Kind.ALLGATHER_OBJECT)


Turn = tuple[int, Position]  # permission to execute: the epoch and position that the core gave


class DataPlane:
    """Links and executor of one communicator; used by the user's thread alone."""

    def __init__(self, hub: Hub, control: ControlThread) -> None:
        self._hub = hub
        self._core = hub.core
        self._view = hub.core.view
        self._control = control
        self._executor = Executor(hub.interrupt, None if hub.faults is None else hub.fault)
        hub.progress = self._executor.progress
        self._turn: Turn | None = None  # of the newest call that was executed
        self._linked: Mapping[int, Link] = {}  # an epoch's links, and the schedule that has all its
        self._linked_for: Schedule | None = None
        self._unread: UnreadLink | None = None  # of which `learn` has read a header
        self._quiet = IgnoredFpErrors()
        # With a checksum of this epoch's broadcasts.  A root hears of nobody, so exchanges in the
        # segment, checkpoints and the close compare it (R7).
        self._words = hub.core.log.unasked.words

    def execute(self, call: Request, turn: Turn) -> LoggedResult | None:
        """Run a call into fresh memory; None if the core must be asked again."""
        header = CallHeader(*turn, call.form.suffix)
        try:
            stored = self._execute(call, header)
        finally:
            self._unread = None
        return None if stored is None else self.verified(call, stored, header)

    def verified(
        self, call: Request, stored: LoggedResult, header: CallHeader
    ) -> LoggedResult | None:
        """The result with the digests of all ranks' inputs, where the job verifies them."""
        if self._hub.settings.verify != "inputs":
            return stored
        digests = self.gather(call.digest(self._view.rank), header, stage=VERIFY_STAGE)
        if digests is None:
            return None
        stored.digests = digests
        return stored

    def learn(self, call: OpenBroadcast, turn: Turn) -> bytes | None:
        """The whole signature of a broadcast, from its first frame; `execute` comes next.

        None if the core must be asked again.
        """
        header = CallHeader(*turn, make_suffix(call.known, call.site))
        parent = next(s.recv_from for s in call.announcement.steps if s.recv_from != NOBODY)
        try:
            self._turn = turn
            links = self._hub.links
            self._hub.progress.step = -1
            if not self._ensure_links(call.announcement, links, header.epoch):
                return None
            raw = self._executor.read_ahead(links[parent])
            signature = announced_signature(raw, parent, header)
        except (Interrupted, LinkLost, SignatureMismatch) as fault:
            self._tell(fault, header.epoch)
            return None
        self._unread = UnreadLink(links[parent], raw)
        return signature

    def _execute(self, call: Request, header: CallHeader) -> LoggedResult | None:
        form = call.form
        if form.schedule is not None:
            return self._one_schedule(call, form.schedule, header)
        if form.kind in _OF_ROWS:
            return self._gather_rows(call, header)
        blob = self._broadcast_blob(call.sendbuf, form.root, header, call.admit)
        return None if blob is None else LoggedResult(blob, blob.shape)

    def _one_schedule(
        self, call: Request, schedule: Schedule, header: CallHeader
    ) -> LoggedResult | None:
        form, sendbuf = call.form, call.sendbuf
        recvbuf = self.take(form.recvbuf_count, form.work_dtype)
        if form.kind is Kind.BROADCAST:
            if form.root == self._view.rank:
                recvbuf[:] = sendbuf
            sendbuf = recvbuf
        stage = 0
        if form.announcement is not None:
            if not self.run(form.announcement, header, NOTHING, NOTHING):
                return None
            stage = 1
        if not self.run(schedule, header, sendbuf, recvbuf, form.reducer, stage=stage):
            return None
        if call.flush and not self._barrier(header, stage=stage + 1):
            return None
        if form.kind is Kind.BROADCAST and not call.flush:
            self.note_broadcast(form.signature, header.epoch)
        result = in_result_dtype(form, recvbuf)
        if form.work_dtype != form.dtype:
            self.give_back(recvbuf)
        return LoggedResult(result, form.shape, scalar=form.scalar)

    def _gather_rows(self, call: Request, header: CallHeader) -> LoggedResult | None:
        """Every rank's rows, one after the other: first how many each has, then the rows."""
        form = call.form
        rows: Array = np.empty(self.world_size, np.uint64)
        own: Array = np.array([call.rows], np.uint64)
        if not self.run(self.schedule(Kind.ALLGATHER, 1, 8), header, own, rows):
            return None
        row_size = row_elements(form)
        counts = tuple(int(count) * row_size for count in rows)
        call.admit(sum(counts) * form.dtype.itemsize)
        recvbuf = self.take(sum(counts), form.dtype)
        schedule = self.schedule_of_rows(counts)
        if not self.run(schedule, header, call.sendbuf, recvbuf, stage=1):
            return None
        return stored_rows(form, recvbuf, int(rows.sum()))

    def schedule_of_rows(self, counts: tuple[int, ...]) -> Schedule:
        """The schedule of a stage that gives all ranks ``counts[r]`` elements of each rank r."""
        return allgatherv_schedule(self.world_size, self.rank, counts, self._view.grouping)

    def take(self, count: int, dtype: AnyDtype) -> Array:
        """Memory for a result, of the log's own."""
        if count * dtype.itemsize < Pool.MIN_BYTES:  # the pool would do the same, under the lock
            return np.empty(count, dtype)
        with self._hub.lock:
            return self._hub.pool.take(count, dtype)

    def lend(self, count: int, dtype: AnyDtype) -> Array:
        """Memory for a result that is the user's alone."""
        with self._hub.lock:
            return self._hub.pool.lend(count, dtype)

    def give_back(self, taken: Array) -> None:
        """Use no more what `take` has returned for the run of one call."""
        memory = taken.base  # the pool's bytes, of which it is a view
        if isinstance(memory, np.ndarray):
            with self._hub.lock:
                self._hub.pool.put(memory)

    def suspect(self, rank: int, cause: str, header: CallHeader) -> None:
        """Suspect a rank that contradicts itself."""
        self._tell(LinkLost(rank, cause), header.epoch)

    def gather(self, record: bytes, header: CallHeader, *, stage: int = 0) -> bytes | None:
        """Records of one length of all ranks, by rank; None if the core must be asked again.

        Also if ranks have executed other broadcasts in this epoch, which is reported then.
        """
        executed = _CHECKSUM.pack(self._words[STEP])
        mine: Array = np.frombuffer(executed + record, np.uint8)
        gathered: Array = np.empty((self.world_size, len(mine)), np.uint8)
        schedule = self.schedule(Kind.ALLGATHER, len(mine), 1)
        if not self.run(schedule, header, mine, gathered.reshape(-1), stage=stage):
            return None
        for rank, row in enumerate(gathered):
            if row[: _CHECKSUM.size].tobytes() != executed:
                theirs = header.suffix[:SIGNATURE_BYTES], ""  # the same; one before it was not
                self._tell(SignatureMismatch(rank, header.position, *theirs), header.epoch)
                return None
        return gathered[:, _CHECKSUM.size :].tobytes()

    def copy_locals(self, local: Packed, lengths: Sequence[int], header: CallHeader) -> bool:
        """Send one's local state to its holders and hold those of others; False: ask the core.

        A barrier behind it proves that every rank holds what it should.
        """
        core = self._core
        if not all(self._is_sane(rank, nbytes, header) for rank, nbytes in enumerate(lengths)):
            return False
        distances = local_distances(core.contact.world_size, core.contact.limits.local_replicas)
        for stage, distance in enumerate(distances, LOCALS_STAGE):
            copy = self._shifted(local, distance, lengths, header, stage)
            if copy is None:
                return False
            owner, version = copy[0], header.position.version + 1
            with self._hub.lock:
                if not core.progress.keep_local(header.epoch, version, owner, copy[1]):
                    return False
        return self._barrier(header, stage=LOCALS_STAGE + len(distances))

    def _shifted(
        self, local: Packed, distance: int, lengths: Sequence[int], header: CallHeader, stage: int
    ) -> tuple[int, Packed] | None:
        """Send one's local state so many places along; whose has come instead, and that.

        All ranks go through the pieces of the longest one, also who has nothing left to send.
        """
        core, sender = self._core, -1
        mine: Array = np.frombuffer(local, np.uint8)
        parts: list[Array] = []
        for tag, piece in enumerate(pieces(max(lengths))):
            counts = [len(range(nbytes)[piece]) for nbytes in lengths]
            schedule = shift(core.view.keep_order, core.view.rank, distance, counts, tag)
            part: Array = np.empty(schedule.recvbuf_count, np.uint8)
            if not self.run(schedule, header, mine[piece], part, stage=stage):
                return None
            sender = schedule.steps[0].recv_from
            parts.append(part)
        return sender, behind_each_other(parts)

    def broadcast_default(self, raw: Packed, header: CallHeader) -> Packed | None:
        """Rank 0's bytes to all: a length, the bytes, and a barrier that proves their arrival."""
        mine: Array = np.frombuffer(raw, np.uint8)
        nbytes = self._told_length(mine, 0, header)
        if nbytes is None or not self._is_sane(0, nbytes, header):
            return None
        parts: list[Array] = []
        for piece in pieces(nbytes):
            own = self._view.rank == 0
            parts.append(mine[piece] if own else np.empty(piece.stop - piece.start, np.uint8))
            if not self._broadcast(parts[-1], 0, header, stage=len(parts)):
                return None
        if not self._barrier(header, stage=len(parts) + 1):
            return None
        return raw if self._view.rank == 0 else behind_each_other(parts)

    def _broadcast_blob(
        self, blob: Array, root: int, header: CallHeader, admit: Callable[[int], None]
    ) -> Array | None:
        """The same for a result, for which the log must have room."""
        nbytes = self._told_length(blob, root, header)
        if nbytes is None:
            return None
        admit(nbytes)
        payload = blob if self._view.rank == root else self.take(nbytes, _BYTE)
        if not self._broadcast(payload, root, header, stage=1):
            return None
        return payload if self._barrier(header, stage=2) else None

    def _told_length(self, blob: Array, root: int, header: CallHeader) -> int | None:
        """Return the length in bytes that the root announces."""
        length: Array = np.array([len(blob) if self._view.rank == root else 0], np.uint64)
        schedule = self.schedule(Kind.BROADCAST, 1, 8, root=root)
        return int(length[0]) if self.run(schedule, header, length, length) else None

    def _broadcast(self, payload: Array, root: int, header: CallHeader, *, stage: int) -> bool:
        schedule = self.schedule(Kind.BROADCAST, len(payload), 1, root=root)
        return self.run(schedule, header, payload, payload, stage=stage)

    def _is_sane(self, rank: int, nbytes: int, header: CallHeader) -> bool:
        """Tell whether a state may have so many bytes; if not, suspect `rank`, the announcer."""
        if nbytes <= STATE_LIMIT:
            return True
        cause = f"it announces a state of {nbytes} bytes, the most is {STATE_LIMIT}"
        self.suspect(rank, cause, header)
        return False

    def cut_short(self, error: BaseException) -> None:
        """The user's call ends with `error`: nothing is in flight until the user calls again.

        If it was being executed, half of a frame may be on a link, and the others may be ahead: no
        more can be said on this epoch's links.  No peer is to blame, so this rank names itself.
        By what is no `Exception` this rank leaves the job, and needs no links.
        """
        core = self._core
        self._unread = None  # of this epoch: the call that comes next may have links of another
        with self._hub.lock:
            core.progress.call = NO_CALL
            turn = (core.view.epoch, core.progress.position)
            is_linked = bool(self._hub.links) or self._hub.segment is not None
            at_stake = self._turn == turn and is_linked
        if at_stake and isinstance(error, Exception):
            cause = f"a call was cut short by {error!r}"
            self._control.driver.act(LinkDown(turn[0], core.view.rank, cause))

    def accuse(self, seen: MismatchSeen) -> None:
        """Report a mismatch; the fatal decision will say so to all, this rank included."""
        self._control.driver.act(seen)

    def _barrier(self, header: CallHeader, *, stage: int = 1) -> bool:
        schedule = self.schedule(Kind.BARRIER, 0, 1)
        return self.run(schedule, header, NOTHING, NOTHING, stage=stage)

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._view.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._core.contact.world_size

    def schedule(self, kind: Kind, count: int, itemsize: int, root: int = -1) -> Schedule:
        """The schedule of a stage of `count` elements of so many bytes."""
        core = self._core
        return schedule_for(
            kind,
            core.contact.world_size,
            core.view.rank,
            count,
            itemsize,
            root=root,
            grouping=core.view.grouping,
        )

    def run(
        self,
        schedule: Schedule,
        header: CallHeader,
        sendbuf: Array,
        recvbuf: Array,
        reducer: Reducer | None = None,
        *,
        stage: int = 0,
    ) -> bool:
        """Run one schedule of a call, as its stage; False if the core must be asked again."""
        if recvbuf.dtype.kind == "V":
            sendbuf, recvbuf = (a.view(as_executed(a.dtype)) for a in (sendbuf, recvbuf))
        segment = None
        if schedule.algorithm is Algorithm.DIRECT:
            segment = self._segment(header.epoch)
            if segment is None:
                return False
            if segment.core is None or segment.ranks != self._first_level(schedule):
                segment = None
        small = sendbuf.nbytes <= DIRECT_BYTES
        if reducer is not None and reducer.ufunc is None and not small:
            segment = None  # only payloads of a slot are gathered there
        if schedule.levels is not None and reducer is not None:
            done = self._in_levels(
                schedule, schedule.levels, header, sendbuf, recvbuf, reducer, segment, stage=stage
            )
        elif segment is None:
            done = self._run_over_links(schedule, header, sendbuf, recvbuf, reducer, stage=stage)
        else:
            call = self.direct_call(segment, header, schedule, recvbuf.dtype, reducer)
            done = self.run_direct(call, header, sendbuf, recvbuf, stage=stage)
        if done and reducer is not None:
            reducer.finish(recvbuf, schedule.world_size)
        return done

    def _first_level(self, schedule: Schedule) -> tuple[int, ...]:
        """The ranks that meet first in a direct schedule."""
        if schedule.levels is None:
            return tuple(range(schedule.world_size))
        grouping = self._view.grouping
        return members_of(grouping)[grouping[self._view.rank]]

    def _in_levels(
        self,
        schedule: Schedule,
        levels: Levels,
        header: CallHeader,
        sendbuf: Array,
        recvbuf: Array,
        reducer: Reducer,
        segment: HostSegment | None,
        *,
        stage: int,
    ) -> bool:
        """Run a reduction of two levels; what stays within the host in `segment`, if given."""
        block, spread = recvbuf[levels.lo : levels.hi], levels.spread
        if segment is not None:
            call = self.direct_call(segment, header, schedule, recvbuf.dtype, reducer)
            done = self.run_direct(call, header, sendbuf, recvbuf, stage=stage)
        else:
            done = self._run_over_links(
                levels.within, header, sendbuf, recvbuf, reducer, stage=stage
            )
        if done and levels.across is not None:
            done = self._run_over_links(
                levels.across, header, block.copy(), block, reducer, stage=stage
            )
        if not done:
            return False
        if segment is None or sendbuf.nbytes > DIRECT_BYTES:
            return self._run_over_links(spread, header, block, recvbuf, stage=stage)
        brought = np.empty(len(segment.ranks) * len(recvbuf), recvbuf.dtype)
        call = self.direct_call(segment, header, schedule, recvbuf.dtype, None)
        done = self.run_direct(call, header, recvbuf, brought, stage=stage, step=SPREAD_TAG)
        recvbuf[:] = brought[: len(recvbuf)]  # its lowest rank has the result
        return done

    def _run_over_links(
        self,
        schedule: Schedule,
        header: CallHeader,
        sendbuf: Array,
        recvbuf: Array,
        reducer: Reducer | None = None,
        *,
        stage: int,
    ) -> bool:
        step_base = stage * STAGE
        try:
            self._turn = header.epoch, header.position
            links = self._hub.links  # this epoch's: a later one has another dictionary
            self._hub.progress.step = (
                step_base + schedule.first_tag - 1
            )  # behind the last step before
            if not self._ensure_links(schedule, links, header.epoch):
                return False
            if self._unread is not None:
                links = {**links, self._unread.rank: self._unread}
            self._executor.run(
                schedule,
                links,
                header=header,
                sendbuf=sendbuf,
                recvbuf=recvbuf,
                reducer=reducer,
                step_base=step_base,
            )
        except (Interrupted, LinkLost, SignatureMismatch) as fault:
            self._tell(fault, header.epoch)
            return False
        return True

    def direct_call(
        self,
        segment: HostSegment,
        header: CallHeader,
        schedule: Schedule,
        dtype: AnyDtype,
        reducer: Reducer | None,
    ) -> DirectCall:
        """Calls of a direct schedule, to be run by `run_direct`."""
        assert segment.core is not None, "the ranks share it"
        return DirectCall(
            segment.core, segment.ranks, header.suffix, schedule, dtype, reducer, self._quiet
        )

    def run_direct(
        self,
        call: DirectCall,
        header: CallHeader,
        sendbuf: Array,
        recvbuf: Array,
        out: Array | None = None,
        *,
        stage: int = 0,
        step: int = 0,
    ) -> bool:
        """Like `run`, for a direct schedule in the segment of this epoch, a step of the stage.

        `out` is filled like `recvbuf`, even if the call is not completed then.
        """
        self._turn = header[:2]
        self._hub.progress.step = stage * STAGE + step
        try:
            call.run(sendbuf, recvbuf, header, stage ^ self._words[STEP], out)
        except (Interrupted, LinkLost, SignatureMismatch) as fault:
            self._tell(fault, header.epoch)
            return False
        return True

    def note_turn(self, epoch: int, position: Position) -> None:
        """A call is being executed there."""
        self._turn = epoch, position

    def run_repeated(self, status: int, call: DirectCall, header: CallHeader) -> None:
        """Act on the status of a repeated call that was not completed."""
        self.note_turn(*header[:2])
        try:
            call.refuse(status, header)
        except (Interrupted, LinkLost, SignatureMismatch) as fault:
            self._tell(fault, header.epoch)

    def note_broadcast(self, signature: bytes, epoch: int) -> None:
        """A broadcast has been executed, which proves nothing to its root."""
        with self._hub.lock:  # a plan begins anew
            if epoch == self._words[EPOCH]:
                self._words[STEP] = zlib.crc32(signature, self._words[STEP])

    def _segment(self, epoch: int) -> HostSegment | None:
        """Wait until it is decided whether this host has a segment; None if the epoch ended."""
        hub = self._hub
        while True:
            segment = hub.segment
            if segment is not None and segment.epoch == epoch:
                return segment
            hub.wake.clear()
            segment = hub.segment
            if segment is None and (hub.interrupt.is_set or self._must_ask(epoch)):
                return None
            if segment is None:
                hub.sleep()
            elif segment.epoch != epoch:
                return None

    def run_moves(
        self,
        schedule: Schedule,
        moves: tuple[Move, ...],
        header: CallHeader,
        sendbuf: Array,
        recvbuf: Array,
        reducer: Reducer | None,
    ) -> bool:
        """Like `run`, for the `moves` of a persistent call."""
        links = self._hub.links
        if self._linked_for is not schedule or self._linked is not links:
            if any(rank not in links for rank in schedule.peers):
                return False
            self._linked, self._linked_for = links, schedule
        self._turn = header[:2]
        try:
            if schedule.rounds:
                self._executor.run(schedule, links, header, sendbuf, recvbuf, reducer)
            else:
                self._executor.run_moves(moves, links, header, sendbuf, recvbuf, reducer)
        except (Interrupted, LinkLost, SignatureMismatch) as fault:
            self._tell(fault, header.epoch)
            return False
        return True

    def persistent_moves(self, form: CollectiveSpec) -> tuple[Move, ...] | None:
        """The moves of a form that `run_moves` takes, else None."""
        if form.schedule is None or self._executor.probe is not None:
            return None
        return self._executor.moves_of(form.schedule, form.dtype)

    def _tell(self, fault: Interrupted | LinkLost | SignatureMismatch, epoch: int) -> None:
        """Have the control thread act on what broke."""
        if isinstance(fault, LinkLost):
            self._control.driver.act(LinkDown(epoch, fault.rank, fault.cause))
        elif isinstance(fault, SignatureMismatch):
            self.accuse(
                MismatchSeen(epoch, fault.rank, fault.signature, fault.site, fault.position)
            )

    def _ensure_links(self, schedule: Schedule, links: Mapping[int, Link], epoch: int) -> bool:
        """Wait until every peer of the schedule is connected; False if the epoch ended."""
        hub = self._hub
        missing = [rank for rank in schedule.peers if rank not in links]
        if not missing:
            return True
        own, grouping = self._view.rank, self._view.grouping
        self._executor.waiter.spins = spins_before_sleep(grouping.count(grouping[own]))
        self._control.driver.request_links(epoch, [rank for rank in missing if rank > own])
        hub.progress.since = time.monotonic()
        try:
            while missing:
                hub.wake.clear()
                missing = [rank for rank in missing if rank not in links]
                if hub.interrupt.is_set or self._must_ask(epoch):
                    return False
                if missing:
                    hub.progress.peers = tuple(missing)
                    self._hub.sleep()
        finally:
            hub.progress.peers = ()
        return True

    def _must_ask(self, epoch: int) -> bool:
        core = self._core
        return core.view.epoch != epoch or core.view.is_frozen or core.view.error is not None
