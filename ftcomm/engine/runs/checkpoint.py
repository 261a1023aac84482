"""CheckpointRuns: checkpoints committed in two phases, and loaded (rule R6)."""

import struct
import time
from collections.abc import Callable

from ftcomm.config.setting_kinds import CheckpointPeriod
from ftcomm.control.hub import CompleteCall, Hub
from ftcomm.engine.locked_machine import Answer, LockedMachine
from ftcomm.engine.runs.cut_check import CutCheck
from ftcomm.engine.runs.replay_check import ReplayCheck
from ftcomm.execution.data_plane import DataPlane
from ftcomm.execution.header_check import CallHeader
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import MismatchSeen
from ftcomm.recovery.machine import Checkpoint, NextStep
from ftcomm.recovery.recent_calls import Called
from ftcomm.requests.request import DIGEST_BYTES, CheckpointPayload, CollectiveSpec
from ftcomm.state.layout import Packed

# What each rank tells all others: the digest of its state, the length of its local state, the
# balance of its messages, whether that may change, and whether the version goes to the store, of
# which rank 0 decides.
_RECORD = struct.Struct(f"<{DIGEST_BYTES}sQQ??")


class CheckpointRuns:
    """Checkpoints of one communicator; used by the user's thread alone."""

    def __init__(
        self,
        hub: Hub,
        plane: DataPlane,
        machine: LockedMachine,
        cut: CutCheck,
        fault: Callable[[str], None],
    ) -> None:
        """`fault` is called at each point where a planned fault may happen."""
        self._hub, self._plane, self._machine = hub, plane, machine
        self._cut, self._fault = cut, fault
        self._core = hub.core
        self._view, self._progress = hub.core.view, hub.core.progress
        self._clock = MarkClock(hub)
        self._check = ReplayCheck(hub, plane)

    @property
    def has_store(self) -> bool:
        """True if checkpoints are written to a store."""
        return bool(self._hub.settings.checkpoint)

    # --- committing -----------------------------------------------------------------------------

    def checkpoint(self, saving: CheckpointPayload, form: CollectiveSpec) -> int:
        """Keep a copy, compare the digests, have local states copied, then commit."""
        self._cut.begin()
        try:
            with self._hub.lock:
                version = self._progress.offer_checkpoint(saving.state, saving.digest, saving.local)
            self._fault("saved")
            self._commit(version, saving, form)
        finally:
            self._cut.end()
        if saving.durable or not self._core.durables.is_idle:
            self._await_store(version, saving, Called(form.signature, form.site))
        self._fault("committed")
        return version

    def _commit(self, version: int, saving: CheckpointPayload, form: CollectiveSpec) -> None:
        """Return when `version` is committed: by this rank's own collective, or by a plan."""
        while True:
            answer, turn = self._machine.ask(self._begin, version, form)
            if answer is None:  # a plan has committed it meanwhile
                return
            if answer is NextStep.EXECUTE:
                mark = self._agree(saving, form, CallHeader(*turn, form.suffix))
                if mark is not None and self._machine.complete_checkpoint(turn[0], mark):
                    return
            elif isinstance(answer, LogEntry):  # others ran a collective here: not one program
                if self._check.matches(answer, (form.signature,)):
                    self._machine.replay()
            else:
                self._hub.sleep()

    def _begin(self, version: int, form: CollectiveSpec) -> Answer:
        if self._view.error is None and self._progress.position.version >= version:
            return None
        return self._progress.begin(form.signature, form.site)

    def _agree(
        self, saving: CheckpointPayload, form: CollectiveSpec, header: CallHeader
    ) -> bool | None:
        """Phase one: every rank holds the tentative version, the same one, and local states.

        One exchange; others follow only where messages may be open or local states are copied.

        Returns:
            whether rank 0 marks it to be written to the store; None if the core must be asked.
        """
        digest, local = saving.digest, saving.local
        length = 0 if local is None else len(local)
        own = _RECORD.pack(
            digest, length, *self._cut.opening(header.epoch), self._is_marked(saving)
        )
        rows = self._plane.gather(own, header)
        if rows is None:
            return None
        records = _RECORD.iter_unpack(rows)
        digests, lengths, balances, changing, marks = zip(*records, strict=True)
        for rank, theirs in enumerate(digests):
            if theirs != digest:
                seen = MismatchSeen(header.epoch, rank, form.signature, form.site, states=True)
                self._plane.accuse(seen)
                return None
        if not self._cut.is_level("checkpoint()", form.site, balances, changing, header):
            return None
        if local is not None and not self._plane.copy_locals(local, lengths, header):
            return None
        return bool(marks[0])

    # --- the store --------------------------------------------------------------------------------

    def _is_marked(self, saving: CheckpointPayload) -> bool:
        """Rank 0's word: this version is to be written to the store."""
        if self._view.rank != 0 or not self.has_store:
            return False
        with self._hub.lock:
            is_idle = self._core.durables.is_idle
        version = self._progress.position.version + 1
        is_due = self._clock.is_due(version, time.monotonic(), is_idle=is_idle)
        return saving.durable or is_due

    def _await_store(self, version: int, saving: CheckpointPayload, call: Called) -> None:
        """Wait until the store's readers need nothing more that the user may write to.

        That is the state of an older lazy version, until it is packed.  With ``durable=True``, wait
        for the record too.
        """
        durables = self._core.durables
        waits = f"had committed version {version} and was waiting for the store"
        self._hub.keep_deadline(CompleteCall("checkpoint()", call.site, waits))
        self._machine.wait_for(lambda: not durables.must_pack(version - 1))
        if saving.durable:
            self._machine.await_record(version, call)

    # --- loading ----------------------------------------------------------------------------------

    @property
    def known_version(self) -> int | None:
        """The version that `load` would give now, None if that is not known yet."""
        with self._hub.lock:
            return self._view.known_version

    def local_state(self, version: int) -> Packed | None:
        """This rank's own local state of the loaded `version`; None if that has none."""
        with self._hub.lock:
            local: Packed | None = self._core.archive.locals.get(version, self._view.rank)
            return local

    def load(self, raw: Packed, form: CollectiveSpec) -> Checkpoint:
        """Served below the frontier, else executed by all, who get rank 0's `raw`."""
        while True:
            answer, turn = self._machine.ask(self._progress.begin_load, form.signature, form.site)
            if isinstance(answer, Checkpoint):
                if self._machine.replay_load(answer):
                    return answer
            elif isinstance(answer, LogEntry):
                if self._check.matches(answer, (form.signature,)):
                    self._machine.replay()
            elif answer is NextStep.EXECUTE:
                value = self._plane.broadcast_default(raw, CallHeader(*turn, form.suffix))
                if value is not None and self._machine.complete_load(turn[0], value):
                    return Checkpoint(0, value)
            else:
                self._hub.sleep()


class MarkClock:
    """Rank 0's clock.

    A version is due when the job's period has passed since the last one that was due, and no marked
    version is still being written: the next one is then the newest.  The first checkpoint of a
    process is due, since it does not know what was marked before.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._due_at = float("-inf")
        self._due_version = 0
        self._last_due = -1

    def is_due(self, version: int, now: float, *, is_idle: bool) -> bool:
        """Tell whether `version` is to be marked, at the time `now` in seconds."""
        if version == self._last_due:  # once more: an epoch ended its exchange
            return True
        if not is_idle:
            return False
        period = CheckpointPeriod.of(self._hub.settings.checkpoint_every)
        is_due = version >= self._due_version if period.versions else now >= self._due_at
        if is_due:
            self._due_at, self._due_version = now + period.seconds, version + period.versions
            self._last_due = version
        return is_due
