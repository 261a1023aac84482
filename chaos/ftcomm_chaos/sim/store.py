"""The simulated store: a chain of create-only records, and objects that take time to write.

Whoever writes may die before its put takes effect, or before it hears that it did.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ftcomm.durable.records import EndedRecord, EpochRecord
from ftcomm.protocol.durable.store_messages import ObjectWritten
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.recovery.archive.results import LogEntry
from ftcomm_chaos.sim.workload import state_digest
from ftcomm_chaos.sim.world import Violation
from ftcomm_tracker.core.durable.attempts import PutAttempt
from ftcomm_tracker.core.durable.chain_facts import ChainFacts, RecordedAttempt, RecordedVersion
from ftcomm_tracker.core.durable.pending_version import LOCAL, PRELUDE_KIND, STATE
from ftcomm_tracker.core.durable.store_facts import ExpectedDigest
from ftcomm_tracker.core.events import PutFinished, PutNextDigest, PutSeries, PutVersion

if TYPE_CHECKING:
    from ftcomm_chaos.sim.history import RecordingMonitor
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.standby.leader_checks import Writer

# As if a state were so large: in some jobs several parts of it are written, in others one.
STATE_BYTES = (1, 100, 20 << 20, 60 << 20)
SLOW_S = 3.0  # the longest that a request takes
SLOW = 0.1  # share of the requests that take long
FAILS = 0.1  # share of the requests that fail and are made again
LANDS = 0.5  # share of the requests of a dead writer that take effect all the same
RETRIES_S = 1.0

Record = PutAttempt | PutSeries | PutVersion | PutFinished | EpochRecord | EndedRecord


def series_of(nonce: bytes) -> str:
    """Name of the series that a tracker with this nonce begins, unlike all others."""
    return f"sim{nonce.decode()}"


@dataclass(frozen=True)
class SimulatedObject:
    """Content of one object: the state that it is a part of, a local state, or results."""

    written: ObjectWritten
    content: Any


@dataclass(frozen=True)
class RestoredVersion:
    """Content of all objects of a record."""

    version: int
    state: int
    locals: Mapping[int, int] | None
    prelude: tuple[tuple[Position, LogEntry], ...]
    prelude_length: int


class SimulatedStore:
    """The chain and the objects, which survive everything.

    Attributes:
        records: the chain.
        damaged: names of objects whose bytes have changed.
        names: of series, by the nonce of their record.
    """

    def __init__(self, sim: "Simulation", state_bytes: int) -> None:
        self.sim, self.world = sim, sim.world
        self.state_bytes = state_bytes
        self.records: list[Record] = []
        self.objects: dict[str, SimulatedObject] = {}
        self.damaged: set[str] = set()
        self.names: dict[bytes, str] = {}
        self._next: dict[int, ExpectedDigest] = {}  # by number of the record before it

    def request_s(self) -> float:
        """Return how long a request takes."""
        slow = self.world.chance(SLOW)
        return self.world.between(0.001, SLOW_S if slow else 0.05)

    def put_object(self, written: ObjectWritten, content: Any) -> None:
        """An object is there, whole. Its name is new."""
        if written.name in self.objects:
            raise Violation(f"object {written.name} is written twice (R16)")
        self.objects[written.name] = SimulatedObject(written, content)

    def create(self, index: int, record: Record, writer: "Writer") -> bool:
        """Create record number `index`, from 0; False if it exists."""
        if index < len(self.records):
            return False
        assert index == len(self.records), "a gap in the chain"
        self.records.append(record)
        self._monitor_of(record).on_record(record, index + 1)
        self.sim.leader_checks.on_record(record, writer)
        return True

    def _monitor_of(self, record: Record) -> "RecordingMonitor":
        if isinstance(record, PutSeries):
            return self.sim.monitor
        return self.sim.monitor_of(f"{self.facts().series}.{record.attempt}")

    def nonce_of(self, series: str) -> bytes:
        """The nonce in the record of a series; empty if the chain has none of that name."""
        return next((nonce for nonce, name in self.names.items() if name == series), b"")

    def newest_attempt(self) -> int:
        """Number of the newest attempt."""
        return self.facts().newest_attempt

    def facts(self) -> ChainFacts:
        """Return the facts of the chain."""
        attempts, versions = [], []
        series = next((r for r in self.records if isinstance(r, PutSeries)), None)
        finished = PRELUDE
        epochs: list[EpochRecord] = []
        ended: EndedRecord | None = None
        for number, record in enumerate(self.records, 1):
            match record:
                case PutAttempt(attempt, parent, nonce):
                    attempts.append(RecordedAttempt(attempt, parent, nonce))
                    epochs, ended = [], None
                case EpochRecord():
                    epochs.append(record)
                case EndedRecord():
                    ended = record
                case PutVersion():
                    prelude = tuple(w for w in record.objects if w.order.kind == PRELUDE_KIND)
                    versions.append(
                        RecordedVersion(number, record.attempt, record.version, prelude)
                    )
                case PutFinished(_, version):
                    finished = version
        return ChainFacts(
            length=len(self.records),
            series="" if series is None else self.names[series.nonce],
            world_size=0 if series is None else self.sim.world_size,
            grouping=() if series is None else series.grouping,
            tables=b"" if series is None else series.tables,
            attempts=tuple(attempts),
            versions=tuple(versions),
            finished=finished,
            epochs=tuple(epochs),
            ended=ended,
            first_nonce=b"" if series is None else series.nonce,
            expected=self.expected(attempts[-1].parent) if attempts else None,
        )

    def keep_next(self, put: PutNextDigest) -> None:
        """Keep the digest behind the newest durable version, and no other."""
        for number, record in enumerate(self.records, 1):
            if isinstance(record, PutVersion) and record.version == put.version - 1:
                binding = ExpectedDigest(put.version, put.digest, put.attempt, is_binding=True)
                self._next = {number: binding}

    def expected(self, number: int) -> ExpectedDigest | None:
        """The digest behind the version of record `number`; all runs of a script give the same."""
        return self._next.get(number)

    def problem(self, number: int) -> str:
        """Explain why the version of record `number` cannot be used; empty if it can."""
        record = self.records[number - 1]
        assert isinstance(record, PutVersion)
        for written in record.objects:
            if written.name not in self.objects:
                raise Violation(f"a record names {written.name}, which does not exist (R16)")
            if written.name in self.damaged:
                return f"{written.name} has other bytes"
        return ""

    def damage_newest(self, rng: random.Random) -> None:
        """Change one byte of the newest version, if an older one is left whole."""
        versions = [n for n, r in enumerate(self.records, 1) if isinstance(r, PutVersion)]
        whole = [number for number in versions if not self.problem(number)]
        if len(whole) < 2:
            return
        newest, older = self.records[whole[-1] - 1], self.records[whole[-2] - 1]
        assert isinstance(newest, PutVersion)
        assert isinstance(older, PutVersion)
        shared = {written.name for written in older.objects}
        own = [written.name for written in newest.objects if written.name not in shared]
        self.damaged.add(rng.choice(own))

    def read(self, number: int) -> RestoredVersion:
        """Put together what the objects of record `number` hold; a hole is a violation."""
        record = self.records[number - 1]
        assert isinstance(record, PutVersion)
        reached, states, locals_, prelude = 0, set(), {}, {}
        for written in record.objects:
            stored = self.objects[written.name]
            order = written.order
            if order.kind == STATE:
                if order.lo != reached:
                    raise Violation(f"record {number} lacks bytes {reached} to {order.lo} (R16)")
                reached = order.hi
                states.add(stored.content)
            elif order.kind == LOCAL:
                locals_[order.rank] = stored.content
            else:
                prelude.update(stored.content)
        whole = reached == record.nbytes and len(states) == 1
        whole = whole and state_digest(next(iter(states))) == record.digest
        ranks = None if record.local_ranks is None else tuple(sorted(locals_))
        positions = sorted(prelude)
        due = [Position(0, PRELUDE, seqno) for seqno in range(record.prelude_length)]
        if not whole or ranks != record.local_ranks or positions != due:
            raise Violation(f"record {number} of checkpoint {record.version} is not whole (R16)")
        return RestoredVersion(
            record.version,
            states.pop(),
            None if ranks is None else locals_,
            tuple((position, prelude[position]) for position in positions),
            record.prelude_length,
        )
