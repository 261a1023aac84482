"""The state of a job by its chain; pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ftcomm.durable.records import (
    AttemptRecord,
    ChainLink,
    DamagedLink,
    EndedRecord,
    EpochRecord,
    FinishedRecord,
    SeriesRecord,
    VersionRecord,
)
from ftcomm.protocol.position import PRELUDE


@dataclass(frozen=True, slots=True)
class ChainState:
    """The state of a job by its chain."""

    series: SeriesRecord | None  # the first record; None for an empty chain
    attempts: dict[int, AttemptRecord]  # by number of the record, in order
    versions: dict[int, VersionRecord]  # likewise, oldest first
    finished: int = PRELUDE  # the version at which the job finished, `PRELUDE` before
    epochs: tuple[EpochRecord, ...] = ()  # of the newest attempt, oldest first
    # The end of the newest attempt, if a tracker with a standby has recorded one.
    ended: EndedRecord | None = None
    # By number of the record, what is wrong with it: of versions, but for a reader that reads past
    # all damage.
    damaged: dict[int, str] = field(default_factory=dict)

    @property
    def newest_attempt(self) -> int:
        """Number of the newest attempt, 0 before the first."""
        return max((record.attempt for record in self.attempts.values()), default=0)

    def kept(self, keep: int) -> set[int]:
        """Record numbers of the versions whose objects must stay (rule R16, Deletion).

        The `keep` newest, and the parent of the newest attempt until it has `keep` of its own.  One
        whose record is damaged is none of them: nobody knows its objects.
        """
        numbers = sorted(self.versions)
        kept = set(numbers[-keep:])
        newest = max(self.attempts, default=0)
        own = [number for number in numbers if number > newest]
        if newest and len(own) < keep:
            kept |= {self.attempts[newest].parent} & self.versions.keys()
        return kept


def chain_state(links: Sequence[ChainLink]) -> ChainState:
    """Fold the records of a chain."""
    series: SeriesRecord | None = None
    state = ChainState(series, {}, {})
    finished = PRELUDE
    epochs: list[EpochRecord] = []
    ended: EndedRecord | None = None
    for link in links:
        match link.record:
            case SeriesRecord():
                series = link.record
            case AttemptRecord():
                state.attempts[link.number] = link.record
                epochs, ended = [], None
            case EpochRecord():
                epochs.append(link.record)
            case EndedRecord():
                ended = link.record
            case VersionRecord():
                state.versions[link.number] = link.record
            case FinishedRecord(_, version):
                finished = version
            case DamagedLink(why):
                state.damaged[link.number] = why
    return ChainState(
        series, state.attempts, state.versions, finished, tuple(epochs), ended, state.damaged
    )
