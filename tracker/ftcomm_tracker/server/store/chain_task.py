"""The tracker's part of durable checkpoints: attempts and records, put by threads beside the loop.

The pure cores decide (`core.durable`).  Here their steps become calls of the store, which block, so
each runs in a thread.  One call runs at a time: the records of one tracker come in order.
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar, assert_never

import trio

from ftcomm.config.backoff import TRACKER_BACKOFF
from ftcomm.durable.chain import NONCE_BYTES, Chain, OvertakenError
from ftcomm.durable.chain_state import ChainState, chain_state
from ftcomm.durable.container import open_container
from ftcomm.durable.opening import leave_sign, probe
from ftcomm.durable.records import (
    AttemptRecord,
    BegunRecord,
    ChainRecord,
    FinishedRecord,
    SeriesRecord,
    StoredPart,
    VersionRecord,
)
from ftcomm.durable.store import DamagedObjectError, MissingObjectError, Store, StoreError
from ftcomm.errors import FtcommError, error_named
from ftcomm.protocol.durable.store_messages import ObjectOrder, ObjectWritten
from ftcomm_tracker.core.durable.attempts import (
    AttemptStart,
    AttemptStep,
    BeginAttempt,
    ChainFacts,
    PutAttempt,
    ReadChain,
    RecordedAttempt,
    RecordedVersion,
    RefuseAttempt,
    VerifyVersion,
)
from ftcomm_tracker.core.durable.pending_version import PRELUDE_KIND, STATE
from ftcomm_tracker.core.durable.versions import StoreFacts
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    BegunPut,
    Event,
    FinishedPut,
    Overtaken,
    PutBegun,
    PutDelayed,
    PutFinished,
    PutSeries,
    PutVersion,
    VersionPut,
)
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.server.journal import Journal
from ftcomm_tracker.server.store.beat import BEATS, StoreBeat

# A store that cannot be read when an attempt begins: a restart of its server, not more.
READ_WITHIN_S = 60.0
# Settings on which the bytes of results depend; the series has the first attempt's.
BIT_SETTINGS = ("algorithm", "algorithm_table")
MAX_PUTS = 64  # records that wait; a job has two in flight at most, and its end

T = TypeVar("T")
Put = PutSeries | PutVersion | PutFinished | PutBegun

log = logging.getLogger("ftcomm_tracker")


class ChainTask:
    """The chain of one job, and what a tracker does with it.

    Args:
        store: has it.
        keep: versions whose objects stay.
        max_attempts: more than these the job may not have.
        resume: the operator's choice, see `AttemptStart`.

    Attributes:
        must_begin: the present attempt is over, and the job goes on in the next one.
    """

    def __init__(self, store: Store, *, keep: int, max_attempts: int, resume: str = "auto") -> None:
        self.must_begin = False
        self._store = store
        self._keep = keep
        self._max_attempts = max_attempts
        self._tried = Counter[int]()
        self._beat = StoreBeat(store)
        self._resume = resume
        self._chain = Chain(store)
        self._durable = Durable.fresh("", 1)
        self._puts, self._orders = trio.open_memory_channel[Put](MAX_PUTS)
        self._deleted: set[int] = set()  # records of versions whose objects are gone

    # --- the beginning of an attempt ----------------------------------------------------------

    async def refuse_second(self) -> None:
        """Return if no other tracker works on the store; see `StoreBeat.refuse_second`."""
        await self._patiently(self._store.list, BEATS)  # it may be away for a moment
        await self._beat.refuse_second()

    async def begin(self, before: Durable, *, survivors: bool) -> tuple[Durable, StoreFacts]:
        """Begin the next attempt, or go on with that of `before`.

        Args:
            before: what the journal has.
            survivors: members of its attempt may live.

        Raises:
            FtcommError: there is none to begin; the store cannot tell two trackers apart, or could
                not be read for long.
        """
        await self._patiently(probe, self._store)
        nonce = secrets.token_bytes(NONCE_BYTES)
        series = before.job_id.rpartition(".")[0] if before.attempt else before.job_id
        start = AttemptStart(
            before,
            series,
            nonce,
            self._resume,
            survivors=survivors,
            max_attempts=self._max_attempts,
            now_us=int(time.time() * 1e6),
            tried=self._tried,
        )
        step = start.begin()
        while True:
            for level, text in start.notes:
                level_number = logging.getLevelNamesMapping()[level.upper()]
                log.log(level_number, "%s: %s", self._store.url, text)
            start.notes.clear()
            match step:
                case BeginAttempt(durable, facts):
                    await self._patiently(leave_sign, self._store, durable.job_id)
                    self._durable, self.must_begin = durable, False
                    return durable, facts
                case RefuseAttempt(error, cause):
                    raise (error_named(error) or FtcommError)(cause)
                case ReadChain() | VerifyVersion() | PutAttempt():
                    step = await self._take(start, step)
                case _:
                    assert_never(step)

    async def next_roster(self, lost: Roster, journal: Journal) -> Roster:
        """Journal the next attempt, and return its roster.

        Args:
            lost: of the attempt that is over.
            journal: of this tracker.

        Raises:
            FtcommError: there is no next attempt.
        """
        durable, facts = await self.begin(lost.durable, survivors=False)
        journal.write(durable.to_wire(), epoch=durable.epoch)
        return Roster(
            lost.settings,
            durable,
            generation=journal.generation,
            now=trio.current_time(),
            tracker=lost.tracker,
            store=facts,
        )

    async def _take(
        self, start: AttemptStart, step: ReadChain | VerifyVersion | PutAttempt
    ) -> AttemptStep:
        match step:
            case ReadChain():
                return start.on_chain(await self._patiently(self._read))
            case VerifyVersion(record):
                return start.on_verified(record, await self._patiently(self._problem, record))
            case PutAttempt(attempt, parent, nonce):
                put = AttemptRecord(attempt, parent)
                landed = await self._patiently(self._chain.put_next, put, nonce)
                return start.on_put(taken=not landed)
            case _:
                assert_never(step)

    async def _patiently(self, call: Callable[..., T], *arguments: object) -> T:
        """Call in a thread, again while the store is away: that is no damage (rule R16)."""
        deadline, failures = trio.current_time() + READ_WITHIN_S, 0
        while True:
            try:
                return await trio.to_thread.run_sync(call, *arguments)
            except StoreError as error:
                if trio.current_time() > deadline:
                    raise
                failures += 1
                if failures == 1:
                    log.warning("the checkpoint store cannot be read: %s", error.cause)
                await trio.sleep(TRACKER_BACKOFF.delay_s(failures))

    def _read(self) -> ChainFacts:
        links = self._chain.read()
        state = chain_state(links)
        nonces = {link.number: link.nonce for link in links}
        series = state.series
        return ChainFacts(
            length=len(links),
            series="" if series is None else series.series,
            world_size=0 if series is None else series.world_size,
            settings=() if series is None else series.settings,
            grouping=() if series is None else series.grouping,
            tables=b"" if series is None else series.tables,
            attempts=tuple(
                RecordedAttempt(record.attempt, record.parent, nonces[number])
                for number, record in state.attempts.items()
            ),
            versions=tuple(
                RecordedVersion(
                    number, record.attempt, record.version, _prelude_of(record), record.written_at
                )
                for number, record in state.versions.items()
            ),
            finished=state.finished,
            begun=tuple(record.attempt for record in state.begun.values()),
        )

    def _problem(self, number: int) -> str:
        """Read every byte of a version; explain why it cannot be used, empty if it can."""
        state = self._state()
        record, series = state.versions[number], state.series
        assert series is not None
        reached = 0
        try:
            for part in record.parts:
                if part.kind == STATE:
                    if part.lo != reached:
                        return f"its record lacks the bytes {reached} to {part.lo} of the state"
                    reached = part.hi
                open_container(self._store, part.name, series.series).verify(part.digest)
        except (DamagedObjectError, MissingObjectError) as error:
            return error.cause
        if reached != record.nbytes:
            return f"its record lacks the bytes {reached} to {record.nbytes} of the state"
        return ""

    def _state(self) -> ChainState:
        return chain_state(self._chain.links)

    # --- records of an attempt ----------------------------------------------------------------

    def put(self, effect: Put) -> None:
        """Put the record behind those that were given before; returns at once."""
        self._puts.send_nowait(effect)

    async def run(self, post: Callable[[Event], None]) -> None:
        """Put what is given, one record after the other, and beat, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat.run)
            async for effect in self._orders:
                if not await self._put(effect, post):
                    nursery.cancel_scope.cancel()

    async def _put(self, effect: Put, post: Callable[[Event], None]) -> bool:
        """Put until it is there; False if a later attempt has begun."""
        nonce, failures = secrets.token_bytes(NONCE_BYTES), 0
        while True:
            try:
                await trio.to_thread.run_sync(self._append, effect, nonce, abandon_on_cancel=True)
            except OvertakenError as error:
                post(Overtaken(error.cause))
                return False
            except (StoreError, MissingObjectError, DamagedObjectError) as error:
                failures += 1
                if failures == 1:
                    log.warning("the checkpoint store does not take a record: %s", error.cause)
                post(PutDelayed(error.cause))
                await trio.sleep(TRACKER_BACKOFF.delay_s(failures))
            else:
                break
        match effect:
            case PutVersion(version=version):
                post(VersionPut(version))
                await trio.to_thread.run_sync(self._delete_old, abandon_on_cancel=True)
            case PutFinished():
                post(FinishedPut())
            case PutBegun():
                post(BegunPut())
            case PutSeries():
                pass
        return True

    def _append(self, effect: Put, nonce: bytes) -> None:
        match effect:
            case PutSeries():
                self._append_first(effect)
            case PutVersion():
                self._must_be_here(effect)
                now = int(time.time() * 1e6)
                self._append_one(_record_of(effect, now), nonce)
            case PutFinished(attempt, version):
                self._append_one(FinishedRecord(attempt, version), nonce)
            case PutBegun(attempt, frontier):
                self._append_one(BegunRecord(attempt, frontier), nonce)
            case _:
                assert_never(effect)

    def _append_first(self, effect: PutSeries) -> None:
        durable, links = self._durable, self._chain.read()
        first = effect.nonce[::-1]
        if links and links[0].nonce != first:
            raise OvertakenError(f"{self._store.url}: another job has begun in this store")
        settings = dict(durable.settings)
        bits = tuple((name, settings[name]) for name in BIT_SETTINGS)
        series = SeriesRecord(
            durable.job_id.rpartition(".")[0],
            durable.world_size,
            effect.grouping,
            bits,
            effect.tables,
        )
        self._append_one(series, first)
        self._append_one(AttemptRecord(durable.attempt, 0), effect.nonce)

    def _append_one(self, record: ChainRecord, nonce: bytes) -> None:
        self._chain.append(record, nonce, attempt=self._durable.attempt)

    def _must_be_here(self, effect: PutVersion) -> None:
        """See the objects with the tracker's own eyes: a host may have another disk there.

        Raises:
            MissingObjectError: one is not in this store.
        """
        folder = f"data/{effect.attempt}/{effect.version}/"
        listed = {stored.name: stored.nbytes for stored in self._store.list(folder)}
        for written in effect.objects:
            if written.name.startswith(folder) and listed.get(written.name, -1) < written.nbytes:
                raise MissingObjectError(
                    f"{written.name} is not in the tracker's {self._store.url}",
                    remedy="give --checkpoint a directory that all hosts share",
                )

    def _delete_old(self) -> None:
        """Delete objects, not records, of versions that need not be kept (rule R16)."""
        state = self._state()
        kept = state.kept(self._keep)
        needed = {part.name for number in kept for part in state.versions[number].parts}
        for number in sorted(set(state.versions) - kept - self._deleted):
            try:
                for part in state.versions[number].parts:
                    if part.name not in needed:
                        self._store.delete(part.name)
            except StoreError as error:
                log.warning("an old checkpoint cannot be deleted: %s", error.cause)
                return
            self._deleted.add(number)


def _record_of(effect: PutVersion, now_us: int) -> VersionRecord:
    return VersionRecord(
        attempt=effect.attempt,
        version=effect.version,
        epoch=effect.epoch,
        written_at=now_us,
        nbytes=effect.nbytes,
        digest=effect.digest,
        prelude_length=effect.prelude_length,
        local_ranks=effect.local_ranks,
        parts=tuple(
            StoredPart(
                written.order.kind,
                written.order.rank,
                written.order.lo,
                written.order.hi,
                written.name,
                written.nbytes,
                written.digest,
                written.prelude,
            )
            for written in effect.objects
        ),
    )


def _prelude_of(record: VersionRecord) -> tuple[ObjectWritten, ...]:
    """The objects of the prelude's results, as a member said that it has written them."""
    return tuple(
        ObjectWritten(
            version=record.version,
            order=ObjectOrder(part.kind, part.rank, part.lo, part.hi),
            name=part.name,
            nbytes=part.nbytes,
            digest=part.digest,
            state_digest=record.digest,
            prelude=part.runs,
        )
        for part in record.parts
        if part.kind == PRELUDE_KIND
    )
