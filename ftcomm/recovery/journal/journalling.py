"""Journalling: what this member's journal of results still lacks (rule R16).

The driver takes a batch now and then, writes it, and says so.  Nothing waits for that but the
beginning of a later attempt: it executes nothing before what it goes on from is journalled anew.
Only results of a version that is durable, or is being made so, are of use to a later attempt.
"""

from dataclasses import dataclass

from ftcomm.protocol.durable.journal_messages import ReadJournal, ResultsJournalled
from ftcomm.protocol.messages import Plan
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.protocol.signature import is_contributed, is_copied
from ftcomm.recovery.call_progress import CallProgress
from ftcomm.recovery.epoch_view import EpochView
from ftcomm.recovery.events import (
    Effect,
    JournalRead,
    JournalWritten,
    SendControl,
    StartJournalRead,
)
from ftcomm.recovery.journal.found import FoundJournals
from ftcomm.recovery.marked_versions import MarkedVersions
from ftcomm.recovery.messages.message_reach import MessageReach
from ftcomm.recovery.result_log import LogEntry, ResultLog
from ftcomm.recovery.states import WorkerState

BATCH_BYTES = 64 << 20  # written at once, but for a larger result
BATCH_RESULTS = 512  # found in less than a millisecond, for which calls may have to wait


@dataclass(frozen=True, slots=True)
class Batch:
    """Results to be appended to the journal of `version`.

    Attributes:
        number: of the batch.
        version: of all its results.
        rank: of this member.
        first_epoch: in which the journal of `version` was begun; with rank and version its name.
        epoch: the present one, in which all these results are held.
        begins_epoch: the journal does not say yet that its writer takes part in `epoch`.
        results: to write; the log may release their memory meanwhile.
        is_last: nothing more is to be written for now.
        proves: all below the frontier of `epoch` that this member keeps is in it, or was before.
    """

    number: int
    version: int
    rank: int
    first_epoch: int
    epoch: int
    begins_epoch: bool
    results: tuple[tuple[Position, LogEntry], ...]
    is_last: bool
    proves: bool


class Journalling:
    """The journal of one worker. All methods are for the holder of the machine's lock.

    Attributes:
        found: what was read of an earlier attempt.
        is_reading: the report waits for that.
        reach: results that are not journalled, as they may depend on a message.
    """

    def __init__(
        self,
        view: EpochView,
        progress: CallProgress,
        log: ResultLog,
        durables: MarkedVersions,
        reach: MessageReach,
    ) -> None:
        self._view = view
        self._progress = progress
        self._log = log
        self._durables = durables
        self.reach = reach
        self.found = FoundJournals()
        self.is_reading = False
        self._order: ReadJournal | None = None
        self._version = PRELUDE  # of the journal that is written
        self._first_epoch = 0
        self._epoch = 0  # that the journal has last
        self._written: set[int] = set()
        self._next = 0  # all below it was looked at, in this epoch
        self._batch: Batch | None = None
        self._number = 0
        self._proven = 0  # the epoch whose frontier the journal has reached

    # --- an earlier attempt's -----------------------------------------------------------------

    def on_order(self, order: ReadJournal) -> list[Effect]:
        """Read what an earlier attempt has left here."""
        if order == self._order:
            return []
        self._order, self.is_reading = order, True
        return [StartJournalRead(order)]

    def on_read(self, read: JournalRead) -> bool:
        """Hold what was found; False if it was not ordered, or is here already."""
        if read.order != self._order or not self.is_reading:
            return False
        self.is_reading = False
        self.found = FoundJournals(read.journals)
        return True

    def forget(self) -> None:
        """Another job has begun, and this process had no plan of the one before, nor a journal."""
        self.found, self.is_reading, self._order = FoundJournals(), False, None

    def take_plan(self, plan: Plan) -> None:
        """Log the results that the plan goes on from; drop all others."""
        if plan.journal:
            for position, entry in self.found.held_in(plan.journal, plan.frontier):
                self._log.add(position, entry)
        self.found = FoundJournals()

    @property
    def obsolete_before(self) -> int:
        """Attempts up to this one have left journals of no more use; 0 while they may be needed."""
        if self._order is None or self._view.holds or not self._view.epoch:
            return 0
        return self._order.attempt

    # --- this attempt's -----------------------------------------------------------------------

    def take(self) -> Batch | None:
        """The next batch to write, None for nothing; one at a time, then `on_written`."""
        version = self._current_version()
        if self._batch is not None or not self._is_of_use(version):
            return None
        view = self._view
        if version != self._version or view.epoch != self._epoch:
            self._next = 0
        if version != self._version:
            self._version, self._first_epoch, self._epoch = version, view.epoch, 0
            self._written = set()
        results, is_last = self._unwritten()
        proves = is_last and view.holds and view.state is WorkerState.RUNNING
        begins = view.epoch != self._epoch
        if not results and not begins and not (proves and self._proven != view.epoch):
            return None
        self._number += 1
        self._batch = Batch(
            self._number, version, view.rank, self._first_epoch, view.epoch, begins,
            tuple(results), is_last, proves,
        )  # fmt: skip
        return self._batch

    def still_held(self, batch: Batch) -> list[bool]:
        """Tell of each result whether the log still has it, so that a copy of it is whole."""
        return [self._log.get(position) is entry for position, entry in batch.results]

    def on_written(self, written: JournalWritten) -> list[Effect]:
        """The batch is synced, or cannot be: then a later attempt finds less."""
        batch, self._batch = self._batch, None
        assert batch is not None
        assert batch.number == written.number
        self._written.update(position.seqno for position, _ in batch.results)
        self._epoch = batch.epoch
        if batch.proves and batch.epoch == self._view.epoch:
            self._proven = batch.epoch
        return self.on_welcome()

    def on_welcome(self) -> list[Effect]:
        """Tell the tracker, again if need be, that the attempt may begin."""
        view = self._view
        if not view.holds or self._proven != view.epoch:
            return []
        return [SendControl(ResultsJournalled(view.epoch, view.frontier))]

    def _current_version(self) -> int:
        position, frontier = self._progress.position, self._view.frontier
        return max(position.version, frontier.version if frontier.past_load else PRELUDE)

    def _is_of_use(self, version: int) -> bool:
        if version <= PRELUDE or self._view.is_over or not self._view.epoch:
            return False
        resumed = self._order is not None and self._order.version == version
        if self._view.holds or resumed:
            return True
        return self._durables.durable == version or self._durables.awaits(version)

    def _passed(self, version: int) -> int:
        """The first sequence number of `version` that this member has not completed."""
        position = self._progress.position
        return position.seqno if position.version == version else 0

    def _unwritten(self) -> tuple[list[tuple[Position, LogEntry]], bool]:
        """Results that the journal lacks, as many as one batch takes, and whether these are all.

        Below what this member has passed it is not looked again, once all is here.
        """
        view, version = self._view, self._version
        passed = self._passed(version)
        end = max(passed, view.frontier.seqno) if view.frontier.version == version else passed
        results: list[tuple[Position, LogEntry]] = []
        room, looked_to, is_last = BATCH_BYTES, passed, False
        for seqno in range(self._next, end):
            position = Position(0, version, seqno)
            entry = self._log.get(position)
            if seqno in self._written or entry is None or not self._log.keeps(position):
                continue
            if is_contributed(entry.signature) or is_copied(entry.signature):
                # R20: a later attempt makes all from there anew
                looked_to, is_last = seqno, True
                break
            if self.reach.covers(position) and not view.holds:
                # R16: a later attempt makes all messages again.  While this one holds, nothing was
                # executed, and what it goes on from was journalled because it is free of them.
                looked_to, is_last = seqno, True
                break
            if results and (len(results) == BATCH_RESULTS or entry.nbytes > room):
                looked_to = seqno
                break
            results.append((position, entry))
            room -= entry.nbytes
        else:
            is_last = True
        if not view.pending_fetches:
            self._next = looked_to
        return results, is_last
