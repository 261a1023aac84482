"""FoundJournals: results that an earlier attempt journalled, and which of them may be used.

A position may have been executed twice: the ranks that had completed it died, and the others made
it again, maybe with other bytes.  So results are used together only as one epoch's members held
them.  Every journal says which epochs its writer took part in, and what it held in each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ftcomm.protocol.durable.journal_messages import MAX_JOURNALLED_EPOCHS, JournalRuns
from ftcomm.protocol.field_types import RUNS_OF_A_FRAME
from ftcomm.protocol.position import Position
from ftcomm.recovery.result_log import LogEntry, compress


@dataclass(frozen=True, slots=True)
class FoundResult:
    """One result in a journal, and the epoch in which it was written there."""

    epoch: int
    position: Position
    entry: LogEntry


@dataclass(frozen=True, slots=True)
class FoundJournal:
    """The journal of one process for one version.

    Attributes:
        epochs: in which its writer took part, ascending.
        results: in the order in which they were written.
    """

    epochs: tuple[int, ...]
    results: tuple[FoundResult, ...]


@dataclass(slots=True)
class FoundJournals:
    """All journals of one rank that this process has read."""

    journals: Sequence[FoundJournal] = field(default_factory=tuple)

    def runs(self) -> tuple[JournalRuns, ...]:
        """For a report: by epoch, newest first, the results held in it."""
        pairs = [(epoch, each) for each in self.journals for epoch in each.epochs]
        newest = sorted(pairs, key=lambda pair: -pair[0])[:MAX_JOURNALLED_EPOCHS]
        room = RUNS_OF_A_FRAME
        found = []
        for epoch, journal in newest:
            by_version: dict[int, list[int]] = {}
            for result in _held_in(journal, epoch):
                by_version.setdefault(result.position.version, []).append(result.position.seqno)
            runs = [
                run for version, seqnos in by_version.items()
                for run in compress(version, sorted(seqnos), 1)
            ][:room]  # fmt: skip
            room -= len(runs)
            found.append(JournalRuns(epoch, tuple(runs)))
        return tuple(found)

    def held_in(self, epoch: int, below: Position) -> Iterator[tuple[Position, LogEntry]]:
        """Yield the results of the version of `below`, and below it, that were held in `epoch`."""
        for journal in self.journals:
            if epoch in journal.epochs:
                for result in _held_in(journal, epoch):
                    if result.position.version == below.version and result.position < below:
                        yield result.position, result.entry


def _held_in(journal: FoundJournal, epoch: int) -> Iterator[FoundResult]:
    return (result for result in journal.results if result.epoch <= epoch)
