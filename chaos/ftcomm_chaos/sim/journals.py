"""Simulated journals of results: the disks of hosts, and what processes write to them.

A file survives the process that wrote it, and loses what was being written when the host went.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftcomm.protocol.durable.journal_messages import ReadJournal
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.recovery.events import JournalRead, JournalWritten
from ftcomm.recovery.journal.found import FoundJournal, FoundResult
from ftcomm.recovery.journal.journalling import Batch
from ftcomm_chaos.sim.world import Violation
from ftcomm_tracker.core.durable.attempts import PutAttempt
from ftcomm_tracker.core.events import PutBegun, PutVersion
from ftcomm_tracker.core.rebuild.decision import attempt_of

if TYPE_CHECKING:
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

EVERY_S = 0.05
WRITTEN_IN_S = 0.02  # at most, with the sync
RETURNS = 0.8  # share of the hosts whose disks are there again after a loss of everything


@dataclass(slots=True)
class WrittenJournal:
    """The journal of one process for one version."""

    attempt: int
    rank: int
    version: int
    first_epoch: int
    epochs: list[int] = field(default_factory=list)
    results: list[FoundResult] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Its name on its host."""
        return (self.attempt, self.rank, self.version, self.first_epoch)


class JournalDisks:
    """The files of all hosts."""

    def __init__(self, sim: "Simulation") -> None:
        self.sim = sim
        self.files: dict[str, list[WrittenJournal]] = defaultdict(list)  # by host
        self._ever: dict[tuple[int, int], set[int]] = defaultdict(set)  # by attempt and version

    def append(self, host: str, attempt: int, batch: Batch, results: list[bool]) -> None:
        """Append to a file, which may be new; of `results` those that are not held are left out."""
        key = (attempt, batch.rank, batch.version, batch.first_epoch)
        named = [
            f for f in self.files[host] if key == (f.attempt, f.rank, f.version, f.first_epoch)
        ]
        if not named:
            named = [WrittenJournal(*key)]
            self.files[host] += named
        self._ever[attempt, batch.version] |= {
            position.seqno
            for (position, _), is_held in zip(batch.results, results, strict=False)
            if is_held
        }
        if batch.begins_epoch:
            named[0].epochs.append(batch.epoch)
        for (position, entry), is_held in zip(batch.results, results, strict=False):
            if is_held:
                named[0].results.append(FoundResult(batch.epoch, position, entry))

    def read(self, host: str, order: ReadJournal) -> tuple[FoundJournal, ...]:
        """Return the journals that `order` names."""
        wanted = (order.attempt, order.rank, order.version)
        return tuple(
            FoundJournal(tuple(f.epochs), tuple(f.results))
            for f in self.files[host]
            if (f.attempt, f.rank, f.version) == wanted
        )

    def delete(self, host: str, attempt: int) -> None:
        """Delete what attempts up to this one have left."""
        self.files[host] = [f for f in self.files[host] if f.attempt > attempt]

    def lose_hosts(self) -> None:
        """Everything is lost: some hosts do not come back."""
        for host in sorted(self.files):
            if not self.sim.world.chance(RETURNS):
                self.files[host] = []
                self.sim.counters["journals not back"] += 1

    def written(self, attempt: int, version: int) -> set[int]:
        """Sequence numbers of `version` that some journal of `attempt` has, or had."""
        return self._ever[attempt, version]


class JournalAccess:
    """A worker's writer and reader.

    Args:
        process: whose it is.
        disks: of all hosts.
    """

    def __init__(self, process: "SimulatedProcess", disks: JournalDisks) -> None:
        self.process, self.disks, self.world = process, disks, process.world
        self.host = process.sim.host_of(process.worker_id)
        self.world.after(EVERY_S, process.deliver, self._look)

    @property
    def attempt(self) -> int:
        """The attempt that the process takes part in."""
        return int(self.process.core.contact.job_id.rpartition(".")[2] or 0)

    def _look(self) -> None:
        self.world.after(EVERY_S, self.process.deliver, self._look)
        journalling = self.process.core.journalling
        self.disks.delete(self.host, journalling.obsolete_before)
        batch = journalling.take()
        if batch is not None:
            seconds = self.world.between(0.001, WRITTEN_IN_S)
            self.world.after(seconds, self._write, batch, self.attempt)

    def _write(self, batch: Batch, attempt: int) -> None:
        held = self.process.core.journalling.still_held(batch)
        if not self.process.alive:  # the system has written a part
            part = self.world.rng.randrange(len(held) + 1)
            self.disks.append(self.host, attempt, batch, held[:part])
            return
        self.disks.append(self.host, attempt, batch, held)
        self.process.sim.counters["journalled"] += sum(held)
        self.process.deliver(self.process.hear, JournalWritten(batch.number))
        self.process.point("journalled")

    def read(self, order: ReadJournal) -> None:
        """Read what `order` names."""
        seconds = self.world.between(0.001, WRITTEN_IN_S)
        self.world.after(seconds, self.process.deliver, self._read, order)

    def _read(self, order: ReadJournal) -> None:
        found = self.disks.read(self.host, order)
        self.process.sim.counters["journals read"] += len(found)
        self.process.hear(JournalRead(order, found))


class JournalRules:
    """Checks of one attempt that goes on from journals (rule R16).

    Args:
        sim: the job.
        job_id: of the attempt.
        restore: number of the version record that it began from, 0 for none.

    Attributes:
        holds: nothing may be executed before the attempt's record.
        version: of the checkpoint that it began from.
    """

    def __init__(self, sim: "Simulation", job_id: str, restore: int) -> None:
        self._sim = sim
        self._series, self._attempt = attempt_of(job_id)
        self._restore = restore
        record = sim.store.records[restore - 1] if sim.store is not None and restore else None
        self.version = record.version if isinstance(record, PutVersion) else PRELUDE
        self.holds = bool(sim.settings.journal) and restore > 0

    def served(self) -> set[Position]:
        """Results that may be served: executed in the last attempt that has begun, if it counts."""
        store = self._sim.store
        if not self.holds or store is None:
            return set()
        begun = {each.attempt for each in store.records if isinstance(each, PutBegun)}
        attempts = {
            each.attempt: each.parent
            for each in store.records
            if isinstance(each, PutAttempt) and each.attempt < self._attempt
        }
        last = max((a for a, parent in attempts.items() if a in begun or not parent), default=0)
        record = store.records[self._restore - 1]
        assert isinstance(record, PutVersion)
        if last != record.attempt and attempts.get(last) != self._restore:
            return set()
        # By its whole name: another tracker may have begun an attempt 1 that no record has.
        executed = self._sim.monitors[f"{self._series}.{last}"].executed
        return {p for p in executed if p.version == self.version}

    def on_begun(self, record: PutBegun) -> None:
        """The record is put: what it goes on from is journalled anew."""
        if record.attempt != self._attempt or not self.holds:
            raise Violation(f"{record} in attempt {self._attempt}, which has begun (R16)")
        self.holds = False
        frontier = record.frontier
        lacks = set(range(frontier.seqno))
        lacks -= self._sim.journals.written(self._attempt, frontier.version)
        if lacks:
            raise Violation(f"{record}, and results {sorted(lacks)} are in no journal of it (R16)")
        self._sim.counters["attempts behind journals"] += frontier.seqno > 0
