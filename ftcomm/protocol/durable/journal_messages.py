"""Messages about journals of results, between a worker and its tracker (rule R16)."""

from dataclasses import dataclass

from ftcomm.protocol.field_types import U32, RankOrNone
from ftcomm.protocol.position import Position, PositionRanges, Version

MAX_JOURNALLED_EPOCHS = 8  # that one report names: more make it no likelier to go on farther


@dataclass(frozen=True, slots=True)
class JournalRuns:
    """Results in a journal of an earlier attempt, as its writer held them in ``epoch``."""

    epoch: U32
    runs: PositionRanges


@dataclass(frozen=True, slots=True)
class ReadJournal:
    """Report what this host has of ``version`` in journals of ``rank``, as ``attempt`` left them.

    It comes before `Revoke`, like `Restore`; the report follows when all has been read.
    """

    attempt: U32
    version: Version
    rank: RankOrNone


@dataclass(frozen=True, slots=True)
class ResultsJournalled:
    """All below the ``frontier`` of ``epoch`` that this member keeps is in its journal, and synced.

    Repeated after each welcome until `AttemptBegun` comes.
    """

    epoch: U32
    frontier: Position


@dataclass(frozen=True, slots=True)
class AttemptBegun:
    """The store has the record: collectives of ``attempt`` may be executed."""

    attempt: U32
