"""Access of simulated processes to the store: the tracker's to its chain, a worker's to objects."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from ftcomm.durable.records import EndedRecord, EpochRecord
from ftcomm.protocol.durable.store_messages import ObjectWritten
from ftcomm.recovery.events import (
    Event,
    ObjectFailed,
    ObjectStored,
    ObjectWrite,
    PackVersion,
    StartRestore,
    VersionPacked,
    VersionRestored,
    WriteVersion,
)
from ftcomm_chaos.sim.store import FAILS, LANDS, RETRIES_S, Record, SimulatedStore
from ftcomm_chaos.sim.workload import packed, state_digest
from ftcomm_tracker.core.durable.attempts import (
    AttemptStart,
    AttemptStep,
    BeginAttempt,
    PutAttempt,
    ReadChain,
    RefuseAttempt,
    VerifyVersion,
)
from ftcomm_tracker.core.events import (
    ChainRead,
    Claimed,
    EndedPut,
    EpochPut,
    FinishedPut,
    Overtaken,
    PutClaim,
    PutDelayed,
    PutFinished,
    PutSeries,
    PutVersion,
    ReadStore,
    VersionPut,
)

if TYPE_CHECKING:
    from ftcomm_chaos.sim.tracker import SimulatedTracker
    from ftcomm_chaos.sim.worker.process import SimulatedProcess


class ChainAccess:
    """One start of the tracker's process at the chain: a put at a time, in order.

    Args:
        tracker: whose it is.
        store: has the chain.
    """

    def __init__(self, tracker: "SimulatedTracker", store: SimulatedStore) -> None:
        self.tracker, self.store, self.world = tracker, store, tracker.world
        self.is_alive = True
        self._queue: list[Record] = []
        self._is_busy = False
        self._writer = (tracker.place, tracker.process)
        self._length = 0  # of the chain, when it was read last

    def die(self) -> None:
        """The process is gone; what it has sent may take effect all the same."""
        self.is_alive = False

    def _later(self, action: Callable[..., None], *args: object) -> None:
        self.world.after(self.store.request_s(), self._if_alive, action, args)

    def _if_alive(self, action: Callable[..., None], args: tuple[object, ...]) -> None:
        if self.is_alive:
            action(*args)

    # --- the beginning of an attempt ----------------------------------------------------------

    def start(self, start: AttemptStart) -> None:
        """Carry out the steps of `start`."""
        self._step(start, start.begin())

    def _step(self, start: AttemptStart, step: AttemptStep) -> None:
        match step:
            case ReadChain():
                self._later(self._read, start)
            case VerifyVersion(record):
                self._later(self._verify, start, record)
            case PutAttempt():
                self._send(step, lambda landed: self._step(start, start.on_put(taken=not landed)))
            case BeginAttempt(durable, facts):
                expected = self.store.expected(durable.restore)
                self.tracker.begin_attempt(durable, replace(facts, expected=expected))
            case RefuseAttempt(error, cause):
                self.tracker.refuse_attempt(error, cause)
            case _:
                assert_never(step)

    def _read(self, start: AttemptStart) -> None:
        chain = self.store.facts()
        self._length = chain.length
        self._step(start, start.on_chain(chain))

    def _verify(self, start: AttemptStart, record: int) -> None:
        self._step(start, start.on_verified(record, self.store.problem(record)))

    def facts_for(self, asked: ReadStore) -> None:
        """Read the chain of a job that is rebuilt."""
        self._later(self._tell_chain, asked.job_id)

    def _tell_chain(self, job_id: str) -> None:
        chain = self.store.facts()
        self._length = chain.length
        nonce = self.store.nonce_of(job_id.rpartition(".")[0])
        self.tracker.hear(ChainRead(chain, 0, nonce))

    # --- records of an attempt ----------------------------------------------------------------

    def put(self, record: Record) -> None:
        """Put `record` behind those that were given before."""
        self._queue.append(record)
        if isinstance(record, PutSeries):  # both are this tracker's, as far as they are missing
            self.store.names[record.nonce] = self.tracker.journal.job_id.rpartition(".")[0]
            self._queue.append(PutAttempt(1, 0, record.nonce))
        if not self._is_busy:
            self._is_busy = True
            self._later(self._look)

    def is_putting(self, kind: type[Record]) -> bool:
        """Tell whether a record of that kind was given, and is not known to be there."""
        return any(isinstance(record, kind) for record in self._queue)

    def claim(self, claim: PutClaim) -> None:
        """Put the record by which the tracker leads; no other record may be there by then."""
        self._length = claim.after

        def landed(there: bool) -> None:
            self.tracker.has_claimed = claim.record.generation if there else 0
            self.tracker.hear(Claimed(claim.record if there else None))

        self._send(claim.record, landed)

    def _look(self) -> None:
        attempt = self.tracker.journal.attempt
        record = self._queue[0]
        chain = self.store.facts()
        if chain.newest_attempt == attempt and chain.newest_generation > self.tracker.number:
            self.tracker.hear(Overtaken("a later tracker leads", by_tracker=True))
            return
        foreign = self._is_anothers(record)
        if self.store.newest_attempt() > attempt or foreign:
            reason = f"a later attempt than {attempt} has begun, or another"
            by_tracker = bool(foreign) and self.tracker.looks is not None
            self.tracker.hear(Overtaken(reason, by_tracker))
            return
        if foreign is False:
            self._after_put(landed=True)
            return
        looks = self.tracker.looks
        if self.world.chance(FAILS) or (looks is not None and looks.is_away):
            self.tracker.hear(PutDelayed("the store is away"))
            self.world.after(RETRIES_S, self._if_alive, self._look, ())
            return
        self._length = len(self.store.records)
        self._send(self._queue[0], self._after_put)

    def _is_anothers(self, record: Record) -> bool | None:
        """Tell whose that record is, where a chain has it once; None if it is not there."""
        if not isinstance(record, PutSeries | PutAttempt):
            return None
        nonces = [
            each.nonce
            for each in self.store.records
            if isinstance(each, PutSeries | PutAttempt) and type(each) is type(record)
        ]
        return record.nonce != nonces[-1] if nonces else None

    def _after_put(self, landed: bool) -> None:
        if not landed:
            self._look()
            return
        record = self._queue.pop(0)
        if isinstance(record, PutVersion):
            self.tracker.hear(VersionPut(record.version))
        elif isinstance(record, PutFinished):
            self.tracker.hear(FinishedPut())
        elif isinstance(record, EpochRecord):
            self.tracker.hear(EpochPut(record))
        elif isinstance(record, EndedRecord):
            self.tracker.hear(EndedPut())
        if self._queue and self.is_alive:
            self._later(self._look)
        else:
            self._is_busy = False

    def _send(self, record: Record, then: Callable[[bool], None]) -> None:
        """A create-only put: on its way, done or not, and answered, if anyone is left to hear."""
        self.world.after(self.store.request_s(), self._arrives, record, self._length, then)

    def _arrives(self, record: Record, index: int, then: Callable[[bool], None]) -> None:
        if not self.is_alive and not self.world.chance(LANDS):
            return
        landed = self.store.create(index, record, self._writer)
        self.world.after(self.store.request_s(), self._if_alive, then, (landed,))


class ObjectAccess:
    """A worker's background writer and reader.

    Args:
        process: whose it is.
        store: takes the objects.
    """

    def __init__(self, process: "SimulatedProcess", store: SimulatedStore) -> None:
        self.process, self.store, self.world = process, store, process.world
        self._count = 0

    def pack(self, order: PackVersion) -> None:
        """Pack a marked version on another thread; the state may be lazy."""
        self.world.after(self.world.between(0.0, 0.05), self.process.deliver, self._pack, order)

    def _pack(self, order: PackVersion) -> None:
        if not self.process.core.durables.awaits(order.version):
            return  # given up meanwhile: the script may have written to it
        state = packed(order.value)
        nbytes = self.store.state_bytes
        self._hear(VersionPacked(order.version, state, nbytes, state_digest(state)))

    def write(self, order: WriteVersion) -> None:
        """Write what the tracker orders, each object in its time."""
        for write in order.writes:
            self.world.after(self.store.request_s(), self._write, order, write)

    def _write(self, order: WriteVersion, write: ObjectWrite) -> None:
        alive = self.process.alive
        if not alive and not self.world.chance(LANDS):
            return
        if self.world.chance(FAILS):
            self.process.deliver(self._hear, ObjectFailed(order.version, "the disk is full"))
            return
        self._count += 1
        written = ObjectWritten(
            version=order.version,
            order=write.order,
            name=f"{order.attempt}/{order.version}/{self.process}-{self._count}",
            nbytes=1,
            digest=b"",
            state_digest=order.digest,
            prelude=write.prelude,
        )
        content = dict(write.content) if write.prelude else write.content
        self.process.require(content is not None, f"writes {write.order}, which it does not hold")
        self.store.put_object(written, content)
        self.process.sim.counters["objects"] += 1
        self.process.deliver(self._hear, ObjectStored(written))
        self.process.point("wrote")

    def restore(self, order: StartRestore) -> None:
        """Read a whole version."""
        self.world.after(self.store.request_s(), self.process.deliver, self._restore, order.record)

    def _restore(self, record: int) -> None:
        found = self.store.read(record)
        self.process.sim.counters["restored"] += 1
        self._hear(
            VersionRestored(
                record,
                found.version,
                found.state,
                found.locals,
                found.prelude,
                found.prelude_length,
            )
        )

    def _hear(self, event: Event) -> None:
        self.process.hear(event)
