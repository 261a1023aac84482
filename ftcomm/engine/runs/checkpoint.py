"""CheckpointRuns: checkpoints committed in two phases, and loaded (rule R6)."""

import time
from collections.abc import Callable

from ftcomm.config.setting_kinds import CheckpointPeriod
from ftcomm.control.hub import CompleteCall, Hub
from ftcomm.engine.locked_machine import Answer, LockedMachine
from ftcomm.engine.runs.cut_check import OPENING_BYTES, CutCheck
from ftcomm.engine.runs.replay_check import ReplayCheck
from ftcomm.execution.data_plane import DataPlane, Turn
from ftcomm.recovery.events import MismatchSeen
from ftcomm.recovery.machine import Checkpoint, NextStep
from ftcomm.recovery.recent_calls import Called
from ftcomm.recovery.result_log import LogEntry
from ftcomm.requests.request import CheckpointPayload
from ftcomm.state.layout import Packed

MARKED, NOT_MARKED = b"\x01", b"\x00"  # rank 0's byte in a checkpoint's exchange
LENGTH_BYTES = 8  # of a local state, beside the digest


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

    def checkpoint(self, saving: CheckpointPayload, signature: bytes, site: str) -> int:
        """Keep a copy, compare the digests, have local states copied, then commit."""
        with self._hub.lock:
            self._cut.note_threads()  # before the tentative version can be reported
            version = self._progress.offer_checkpoint(saving.state, saving.digest, saving.local)
        self._fault("saved")
        with self._cut.taken():
            self._commit(version, saving, signature, site)
        if self.has_store:
            self._await_store(version, saving, Called(signature, site))
        self._plane.shared_window.next_version()
        self._fault("committed")
        return version

    def _commit(self, version: int, saving: CheckpointPayload, signature: bytes, site: str) -> None:
        """Return when `version` is committed: by this rank's own collective, or by a plan."""
        while True:
            answer, turn = self._machine.ask(self._begin, version, signature, site)
            if answer is None:  # a plan has committed it meanwhile
                return
            if answer is NextStep.EXECUTE:
                mark = self._agree(saving, signature, site, turn)
                if mark is not None and self._machine.complete_checkpoint(turn[0], mark):
                    return
            elif isinstance(answer, LogEntry):  # others ran a collective here: not one program
                if self._check.matches(answer, (signature,)):
                    self._machine.replay()
            else:
                self._hub.sleep()

    def _begin(self, version: int, signature: bytes, site: str) -> Answer:
        if self._view.error is None and self._progress.position.version >= version:
            return None
        return self._progress.begin(signature, site)

    def _agree(
        self, saving: CheckpointPayload, signature: bytes, site: str, turn: Turn
    ) -> bool | None:
        """Phase one: every rank holds the tentative version, the same one, and local states.

        Returns:
            whether rank 0 marks it to be written to the store; None if the core must be asked.
        """
        digest, local = saving.digest, saving.local
        length = b"" if local is None else len(local).to_bytes(LENGTH_BYTES, "little")
        mine = digest + length + self._cut.opening(turn) + self._mark(saving)
        answers = self._plane.gather_digests(mine, signature, site, turn)
        if answers is None:
            return None
        digests = [answer[: len(digest)] for answer in answers]
        different = [rank for rank, theirs in enumerate(digests) if theirs != digest]
        if not different:
            end = len(digest) + len(length)
            lengths = [int.from_bytes(answer[len(digest) : end], "little") for answer in answers]
            behind = end + OPENING_BYTES
            openings = [answer[end:behind] for answer in answers]
            if not self._cut.is_level("checkpoint()", openings, signature, site, turn):
                return None
            if local is not None and not self._plane.copy_locals(
                local, lengths, signature, site, turn
            ):
                return None
            return answers[0][behind:] == MARKED
        self._plane.accuse(MismatchSeen(turn[0], different[0], signature, site, states=True))
        return None

    # --- the store --------------------------------------------------------------------------------

    def _mark(self, saving: CheckpointPayload) -> bytes:
        """Rank 0's byte: this version is to be written to the store. Empty without a store."""
        if not self.has_store:
            return b""
        with self._hub.lock:
            is_idle = self._core.durables.is_idle
        version = self._progress.position.version + 1
        is_due = self._clock.is_due(version, time.monotonic(), is_idle=is_idle)
        return MARKED if saving.durable or is_due else NOT_MARKED

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
            local: Packed | None = self._core.checkpoints.locals.get(version, self._view.rank)
            return local

    def load(self, raw: Packed, signature: bytes, site: str) -> Checkpoint:
        """Served below the frontier, else executed by all, who get rank 0's `raw`."""
        while True:
            answer, turn = self._machine.ask(self._progress.begin_load, signature, site)
            if isinstance(answer, Checkpoint):
                if self._machine.replay_load(answer):
                    return answer
            elif isinstance(answer, LogEntry):
                if self._check.matches(answer, (signature,)):
                    self._machine.replay()
            elif answer is NextStep.EXECUTE:
                value = self._plane.broadcast_default(raw, signature, site, turn)
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
