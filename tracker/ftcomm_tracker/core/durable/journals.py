"""Journals: the results from which a later attempt goes on, behind its checkpoint (rule R16).

Members report what the journals of an earlier attempt have.  Before the first plan one epoch of
that attempt is chosen: results are used together only as its members held them.  The frontier is
the end of what they hold without a gap.  Nothing is executed before all members have journalled
that anew and the store has a record of it; until then the earlier attempt's journals count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ftcomm.protocol.durable.journal_messages import ReadJournal
from ftcomm.protocol.messages import Report
from ftcomm.protocol.position import PRELUDE, START, PositionRange
from ftcomm_tracker.core.durable.store_facts import StoreFacts


class Journals:
    """Results that one attempt takes over from journals.

    Attributes:
        version: of the checkpoint that the attempt began from.
        holds: nothing may be executed yet.
        epoch: of the earlier attempt, whose results count; 0 for none.
        frontier: the sequence number behind them.
        planned: where the attempt goes on, as members have heard it.
    """

    def __init__(self, facts: StoreFacts, *, is_on: bool, epoch: int = 0) -> None:
        self._facts = facts
        self.version = facts.parent_version
        self.holds = is_on and facts.parent_version > PRELUDE and not facts.has_begun
        self.epoch = epoch
        self.frontier = 0
        self.planned = START
        self._journalled: dict[int, int] = {}  # by rank, the epoch of which all is
        self._is_asked = False

    def order(self, rank: int) -> ReadJournal | None:
        """Return what a member reads before it reports, None for nothing."""
        if not self.holds:
            return None
        return ReadJournal(self._facts.journal_attempt, self.version, rank)

    def choose(self, reports: Mapping[int, Report]) -> None:
        """Choose the epoch that the attempt goes on from; only before its first plan is sent."""
        if not self.holds:
            return
        epochs = {found.epoch for report in reports.values() for found in report.journals}
        ends = {epoch: self._end(reports, epoch) for epoch in epochs}
        self.epoch = max(epochs, key=lambda epoch: (ends[epoch], epoch), default=0)

    def with_found(self, reports: Mapping[int, Report]) -> Mapping[int, Report]:
        """The reports by rank, with what counts of the journals in their runs."""
        if not self.holds or not self.epoch:
            return reports
        self.frontier = self._end(reports, self.epoch)
        return {
            rank: replace(report, runs=(*report.runs, *self._counted(report)))
            for rank, report in reports.items()
        }

    def _end(self, reports: Mapping[int, Report], epoch: int) -> int:
        """The first sequence number that no report has, of logs and of journals in `epoch`."""
        held: set[int] = set()
        for report in reports.values():
            for run in (*report.runs, *_runs_in(report, epoch)):
                if run.version == self.version:
                    held.update(run.seqnos())
        end = 0
        while end in held:
            end += 1
        return end

    def _counted(self, report: Report) -> Iterable[PositionRange]:
        for run in _runs_in(report, self.epoch):
            seqnos = [seqno for seqno in run.seqnos() if seqno < self.frontier]
            if run.version == self.version and seqnos:
                yield replace(run, hi=seqnos[-1] + 1)

    # --- the beginning --------------------------------------------------------------------------

    def on_journalled(self, rank: int, epoch: int) -> None:
        """A member has journalled what it keeps, as the plan of `epoch` has it."""
        self._journalled[rank] = epoch

    def may_begin(self, members: Iterable[int], epoch: int) -> bool:
        """Tell, once, that all members of `epoch` have journalled: the record is to be put."""
        if self._is_asked or not self.holds:
            return False
        self._is_asked = all(self._journalled.get(rank) == epoch for rank in members)
        return self._is_asked

    def on_begun(self) -> None:
        """The store has the record."""
        self.holds = False


def _runs_in(report: Report, epoch: int) -> Iterable[PositionRange]:
    return (run for found in report.journals if found.epoch == epoch for run in found.runs)
