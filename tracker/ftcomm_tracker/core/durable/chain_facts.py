"""ChainFacts: the store's chain as the tracker's cores know it; pure."""

from dataclasses import dataclass

from ftcomm.durable.records import EndedRecord, EpochRecord
from ftcomm.protocol.durable.store_messages import ObjectWritten
from ftcomm.protocol.host_groups import Grouping
from ftcomm.protocol.messages import FatalDecision
from ftcomm.protocol.position import PRELUDE
from ftcomm_tracker.core.durable.store_facts import ExpectedDigest, StoreFacts


@dataclass(frozen=True, slots=True)
class RecordedVersion:
    """A version record: its number in the chain, who wrote it, and the prelude's objects.

    Attributes:
        written_at: when, in microseconds of the clock of that tracker's host.
    """

    record: int
    attempt: int
    version: int
    prelude: tuple[ObjectWritten, ...] = ()
    written_at: int = 0

    def age_s(self, now_us: int) -> float:
        """Return its age in seconds."""
        return max(now_us - self.written_at, 0) / 1e6


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """An attempt record: its number, the version record that it began from (0: none), its nonce."""

    attempt: int
    parent: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class ChainFacts:
    """Facts of the chain, in its order.

    Attributes:
        length: records in it.
        series: name of the job over all its attempts; empty before its record.
        world_size: of all attempts, 0 before the series record.
        settings: on which the bytes of results depend, likewise.
        grouping: of the first attempt; empty before the series record.
        tables: digest of the algorithm tables, likewise.
        attempts: all of them.
        versions: all of them, oldest first.
        damaged: records of versions that cannot be read: number, and what is wrong.
        finished: the version at which the job finished, -1 before.
        epochs: of the newest attempt, oldest first; of trackers with a standby alone.
        ended: the end of the newest attempt, likewise.
        first_nonce: by which the tracker of attempt 1 knows its records; empty in an empty chain.
        expected: of the newest attempt, see `StoreFacts`; where it is taken up from the store.
    """

    length: int = 0
    series: str = ""
    world_size: int = 0
    settings: tuple[tuple[str, str], ...] = ()
    grouping: Grouping = ()
    tables: bytes = b""
    attempts: tuple[RecordedAttempt, ...] = ()
    versions: tuple[RecordedVersion, ...] = ()
    damaged: tuple[tuple[int, str], ...] = ()
    finished: int = PRELUDE
    epochs: tuple[EpochRecord, ...] = ()
    ended: EndedRecord | None = None
    first_nonce: bytes = b""
    expected: ExpectedDigest | None = None

    @property
    def newest_attempt(self) -> int:
        """Number of the newest attempt: 1 with the series record, 0 in an empty chain."""
        numbers = [each.attempt for each in self.attempts]
        return max([*numbers, 1 if self.series else 0])

    @property
    def newest_generation(self) -> int:
        """The highest of a tracker that has led the newest attempt, 0 for none."""
        return max([0, *(each.generation for each in self.epochs)])

    @property
    def fatal_decision(self) -> FatalDecision | None:
        """The end of the newest attempt, as its tracker told it."""
        end = self.ended
        if end is None:
            return None
        return FatalDecision(end.error, end.cause, end.epoch, end.position, end.rank)

    def facts_of(self, attempt: int, now_us: int) -> StoreFacts:
        """Return the facts that the tracker of `attempt` begins with."""
        parent = next((each.parent for each in self.attempts if each.attempt == attempt), 0)
        own = [each for each in self.versions if attempt == each.attempt or parent == each.record]
        newest = max(own, key=lambda each: each.version, default=None)
        # Of the parent's prelude a copy may be damaged: only the attempt's beginning knew of it.
        has_own = newest is not None and newest.record != parent
        prelude = newest.prelude if newest is not None and has_own else None
        return StoreFacts(
            attempt,
            PRELUDE if newest is None else newest.version,
            prelude,
            None if newest is None else newest.age_s(now_us),
            is_begun=attempt in [each.attempt for each in self.attempts],
            is_finished=self.finished > PRELUDE,
            parent_version=self._version_of(parent),
            expected=self.expected,
        )

    def _version_of(self, record: int) -> int:
        found = [each.version for each in self.versions if each.record == record]
        return found[0] if found else PRELUDE
