"""The tracker's part of durable checkpoints: attempts and records, put by threads beside the loop.

The pure cores decide (`core.durable`).  Here their steps become calls of the store, which block, so
each runs in a thread.  One call runs at a time: the records of one tracker come in order.
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Self, TypeVar, assert_never

import trio

from ftcomm.config.backoff import TRACKER_BACKOFF
from ftcomm.config.job_settings import JobSettings
from ftcomm.durable.chain import NONCE_BYTES, Chain, LaterTrackerError, OvertakenError
from ftcomm.durable.chain_state import ChainState, chain_state
from ftcomm.durable.garbage import DATA, not_kept
from ftcomm.durable.opening import find_sign, leave_sign, open_store, probe
from ftcomm.durable.records import (
    AttemptRecord,
    BegunRecord,
    ChainRecord,
    EpochRecord,
    FinishedRecord,
    SeriesRecord,
    VersionRecord,
)
from ftcomm.durable.store import DamagedObjectError, MissingObjectError, Store, StoreError
from ftcomm.durable.verification import is_deleted, loss_of
from ftcomm.errors import ConfigError, FtcommError, error_named
from ftcomm_tracker.core.durable.attempts import (
    OVERTAKEN,
    AttemptStart,
    AttemptStep,
    BeginAttempt,
    PutAttempt,
    ReadChain,
    RefuseAttempt,
    VerifyVersion,
    is_of_another_series,
    refusal_of_another_series,
)
from ftcomm_tracker.core.durable.chain_facts import ChainFacts
from ftcomm_tracker.core.durable.store_facts import StoreFacts
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    BegunPut,
    ChainRead,
    Claimed,
    EndedPut,
    EpochPut,
    Event,
    FinishedPut,
    ObjectsMissing,
    Overtaken,
    PutBegun,
    PutClaim,
    PutDelayed,
    PutEnded,
    PutEpoch,
    PutFinished,
    PutSeries,
    PutVersion,
    SeriesPut,
    StoreSeen,
    VersionPut,
)
from ftcomm_tracker.core.rebuild.stored_job import attempt_to_hear
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.core.standby.watch import journalled_roster
from ftcomm_tracker.server.job_id import draw_job_id
from ftcomm_tracker.server.journal import Journal
from ftcomm_tracker.server.store.beat import BEAT_EVERY_S, BEATS, BeatWatch, StoreBeat
from ftcomm_tracker.server.store.chain_records import facts_of, record_of

# A store that cannot be read when an attempt begins: a restart of its server, not more.
READ_WITHIN_S = 60.0
# An object that a host has written may be seen here so much later: an NFS client keeps folders.
MISSING_FOR_S = 60.0
# Settings on which the bytes of results depend; the series has the first attempt's.
BIT_SETTINGS = ("algorithm", "algorithm_table")
GONE = "its objects were deleted"
SHARE = "give --checkpoint a directory that all hosts share"
MAX_PUTS = 64  # records that wait; a job has two in flight at most, and its end

T = TypeVar("T")
Put = PutSeries | PutVersion | PutFinished | PutBegun | PutEpoch | PutEnded | PutClaim

log = logging.getLogger("ftcomm_tracker")


class ChainTask:
    """The chain of one job, and what a tracker does with it.

    Args:
        store: has it.
        keep: versions whose objects stay.
        max_attempts: more than these the job may not have.
        resume: the operator's choice, see `AttemptStart`.
        has_standby: another tracker may take over, or this one waits beside another.

    Attributes:
        must_begin: the present attempt is over, and the job goes on in the next one.
        has_standby: as given, and so where the present attempt was begun with it.
        is_cut_off: tells whether all members are away; then this tracker beats no longer.
    """

    def __init__(
        self,
        store: Store,
        *,
        keep: int,
        max_attempts: int,
        resume: str = "auto",
        has_standby: bool = False,
    ) -> None:
        self.must_begin = False
        self.has_standby = has_standby
        self.is_cut_off: Callable[[], bool] = lambda: False
        self._store = store
        self._keep = keep
        self._max_attempts = max_attempts
        self._tried = Counter[int]()
        self._beat = StoreBeat(store)
        self._resume = resume
        self._chain = Chain(store)
        self._durable = Durable.fresh("", 1)
        self._puts, self._orders = trio.open_memory_channel[Put](MAX_PUTS)
        self._deleted: set[int] | None = None  # records of versions whose objects are gone
        self._generation = 0
        self._leads = False
        self._claim: EpochRecord | None = None  # by which it leads before it has a group

    # --- the beginning of an attempt ----------------------------------------------------------

    async def refuse_second(self) -> None:
        """Return if no other tracker works on the store; see `StoreBeat.refuse_second`."""
        await self._patiently(self._store.list, BEATS)  # it may be away for a moment
        await self._beat.refuse_second()

    async def begin(
        self, before: Durable, *, survivors: bool, settings: tuple[tuple[str, str], ...] = ()
    ) -> tuple[Durable, StoreFacts]:
        """Begin the next attempt, or go on with that of `before`.

        Args:
            before: what the journal has.
            survivors: members of its attempt may live.
            settings: of a new attempt; empty for those of `before`.

        Raises:
            FtcommError: there is none to begin; the store cannot tell two trackers apart, or could
                not be read for long.
        """
        await self._patiently(probe, self._store)
        start = self._start_of(before, survivors=survivors, settings=settings)
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
                    self._leads = self._beat.is_on = True
                    return durable, replace(facts, has_standby=self.has_standby)
                case RefuseAttempt(error, cause) if error == OVERTAKEN:
                    raise OvertakenError(cause)
                case RefuseAttempt():
                    raise self._error_of(step)
                case ReadChain() | VerifyVersion() | PutAttempt():
                    step = await self._take(start, step)
                case _:
                    assert_never(step)

    def _start_of(
        self, before: Durable, *, survivors: bool, settings: tuple[tuple[str, str], ...] = ()
    ) -> AttemptStart:
        return AttemptStart(
            before,
            # over an empty chain; workers of the attempt before may live
            draw_job_id() if before.attempt else before.job_id,
            secrets.token_bytes(NONCE_BYTES),
            self._resume,
            survivors=survivors,
            settings=settings,
            max_attempts=self._max_attempts,
            now_us=int(time.time() * 1e6),
            tried=self._tried,
            yields=self.has_standby,
        )

    def _error_of(self, refusal: RefuseAttempt) -> FtcommError:
        kind = error_named(refusal.error) or FtcommError
        return kind(f"{self._store.url}: {refusal.cause}", remedy=refusal.remedy or None)

    async def next_roster(self, lost: Roster, journal: Journal) -> Roster:
        """Journal the next attempt, and return its roster.

        Args:
            lost: of the attempt that is over.
            journal: of this tracker.

        Raises:
            FtcommError: there is no next attempt.
        """
        self._leads = False
        if self._resume == "never":  # it was said of the first attempt of this command
            self._resume = "auto"
        durable, facts = await self.begin(lost.durable, survivors=False)
        self._generation = journal.generation
        journal.write(durable.to_wire(), epoch=durable.epoch)
        return Roster(
            lost.settings,
            durable,
            generation=journal.generation,
            now=trio.current_time(),
            tracker=lost.tracker,
            store=facts,
        )

    # --- without a journal --------------------------------------------------------------------

    async def attempt_to_hear(self, before: Durable) -> str:
        """Return the attempt whose members are heard before the next one is begun.

        Empty for none, also where none would be begun.

        Args:
            before: what the journal has.

        Raises:
            StoreError: the store could not be read for long.
        """
        chain = await self._patiently(self._read)
        job_id = attempt_to_hear(before, chain)
        if not job_id or isinstance(
            self._start_of(before, survivors=True).on_chain(chain), RefuseAttempt
        ):
            return ""
        self._beat.is_on = True
        return job_id

    @classmethod
    async def of_rebuilt(cls, settings: JobSettings) -> Self:
        """Open the store that the workers of a job name.

        Raises:
            FtcommError: it cannot be opened here, or another tracker works on it.
        """
        url = settings.checkpoint
        store = await trio.to_thread.run_sync(lambda: open_store(url, create=False))
        chain = cls(store, keep=settings.keep, max_attempts=settings.max_attempts)
        await chain._patiently(store.list, BEATS)
        other = await chain._beat.other()
        if other:
            raise ConfigError(
                f"a tracker works on the store {url} of the job: {other}",
                remedy="end that one for certain, then start this one again",
            )
        chain._beat.is_on = True
        return chain

    async def facts_for(self, job_id: str) -> ChainRead:
        """Read the chain, in which the workers' job must have been begun.

        Raises:
            ConfigError: it is another store than theirs, or does not keep a store's promises.
            StoreError: the store could not be read for long.
        """
        await self._patiently(find_sign, self._store, job_id)
        await self._patiently(probe, self._store)
        chain = await self._patiently(self._read)
        return ChainRead(chain, int(time.time() * 1e6), secrets.token_bytes(NONCE_BYTES))

    # --- beside another tracker ---------------------------------------------------------------

    async def must_wait(self, before: Durable, generation: int) -> bool:
        """True if another tracker leads the store's job, or may; else this one leads from now on.

        Args:
            before: what the journal has.
            generation: of the journal.

        Raises:
            ConfigError: the store is another job's.
            StoreError: the store could not be read for long.
        """
        await self._patiently(probe, self._store)
        await self._patiently(self._chain.read)
        self._has_newest(before)
        self._beat.is_on = True
        if await self._beat.other():
            self._beat.is_on = False
            return True
        state = chain_state(await self._patiently(self._chain.read))
        if state.epochs and state.ended is None and state.finished < 0:
            own = self._has_newest(before)
            return not own or not await self._claims_again(before, generation)
        return not await self._beat.first_leads()

    async def goes_on(self, before: Durable, generation: int) -> bool:
        """True unless another tracker has recorded that it leads the attempt of `before`.

        Raises:
            ConfigError: the store is another job's.
            StoreError: the store could not be read for long.
        """
        state = chain_state(await self._patiently(self._chain.read))
        if not self._has_newest(before) or not state.epochs or state.ended is not None:
            return True
        self.has_standby = True
        return await self._claims_again(before, generation)

    def _has_newest(self, before: Durable) -> bool:
        """Tell whether the newest attempt of the chain is the journal's.

        Raises:
            ConfigError: the store is another job's, and nothing may be put there.
        """
        state = self._state()
        series = state.series.series if state.series else ""
        refusal = refusal_of_another_series(before, series)
        if refusal is not None:
            raise self._error_of(refusal)
        return before.attempt == state.newest_attempt and not is_of_another_series(before, series)

    async def _claims_again(self, before: Durable, generation: int) -> bool:
        """Record that the journal's tracker was started again; False if another one leads."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return await self._patiently(self._claim_again, before, generation, nonce)

    def _claim_again(self, before: Durable, generation: int, nonce: bytes) -> bool:
        while True:
            links = self._chain.read()
            if any(link.nonce == nonce for link in links):
                return True
            newest = chain_state(links).epochs[-1]
            # An epoch above the journal's, or a generation that is not below its own, is another's.
            if newest.generation >= generation or newest.epoch > before.epoch:
                return False
            roster = journalled_roster(before.places, newest)
            record = EpochRecord(
                before.attempt, generation, before.epoch, roster, before.journal_epoch
            )
            if self._chain.put_next(record, nonce):
                return True

    def lead(self, durable: Durable, generation: int) -> None:
        """Put the records of this attempt from now on, and beat."""
        self._durable, self._generation = durable, generation
        self._leads = self._beat.is_on = True

    async def _watch(self, post: Callable[[Event], None]) -> None:
        """Look at the store again and again: does another tracker lead, now or still?"""
        beats, chain = BeatWatch(self._beat), Chain(self._store)
        while True:
            if self._leads:
                self._beat.is_on = not self.is_cut_off()
            event = await trio.to_thread.run_sync(self._look, beats, chain, abandon_on_cancel=True)
            if event is not None:
                post(event)
            await trio.sleep(BEAT_EVERY_S)

    def _look(self, beats: BeatWatch, chain: Chain) -> Event | None:
        """Look once; None where there is nothing to say."""
        leads, attempt, generation = self._leads, self._durable.attempt, self._generation
        leader, is_silent, trouble = "", False, ""
        try:
            if leads:
                chain.look(attempt=attempt, generation=generation)
                self._must_be_ours(chain, attempt)
                return None
            leader, is_silent = beats.look()
            chain.read()
            epochs = chain_state(chain.links).epochs
            self._beat.is_on = self._claim is not None and epochs[-1:] == (self._claim,)
        except OvertakenError as error:
            # Unless it is the next attempt of this tracker, which began meanwhile.
            if self._leads and self._durable.attempt == attempt:
                by_tracker = isinstance(error, LaterTrackerError)
                return Overtaken(error.cause, by_tracker)
        except (StoreError, MissingObjectError, DamagedObjectError) as error:
            trouble = error.cause
        if leads or self._leads:
            return None
        facts = facts_of(chain)
        return StoreSeen(facts, leader, is_silent, int(time.time() * 1e6), trouble)

    def _must_be_ours(self, chain: Chain, attempt: int) -> None:
        """Raise `LaterTrackerError` if another tracker has begun the same attempt."""
        for link in chain.links:
            is_this = isinstance(link.record, AttemptRecord) and link.record.attempt == attempt
            if is_this and link.nonce != self._durable.attempt_nonce:
                raise LaterTrackerError(f"{self._store.url}: another tracker has begun the job")

    async def _take(
        self, start: AttemptStart, step: ReadChain | VerifyVersion | PutAttempt
    ) -> AttemptStep:
        match step:
            case ReadChain():
                return start.on_chain(await self._patiently(self._read))
            case VerifyVersion(record):
                problem, spared = await self._patiently(self._problem, record)
                if problem == GONE:
                    return start.on_verified(record, problem, is_deleted=True)
                return start.on_verified(record, problem, spared=spared)
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
        self._chain.read()
        return facts_of(self._chain)

    def _problem(self, number: int) -> tuple[str, list[str]]:
        """Read every byte of a version; explain why it cannot be used, empty if it can.

        That is `GONE` if it is none of those that are kept, and its objects were deleted.  The list
        has what is damaged and not needed.
        """
        state = self._state()
        record, series = state.versions[number], state.series
        assert series is not None
        if number not in state.kept(self._keep):
            folder = self._store.list(_folder(record))
            if is_deleted(record, {each.name for each in folder}):
                return GONE, []
        return loss_of(self._store, series.series, record)

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
            if self.has_standby:
                nursery.start_soon(self._watch, post)
            async for effect in self._orders:
                if not await self._put(effect, post):
                    nursery.cancel_scope.cancel()

    async def _put(self, effect: Put, post: Callable[[Event], None]) -> bool:
        """Put until it is there; False if a later attempt or tracker has come."""
        nonce, failures = secrets.token_bytes(NONCE_BYTES), 0
        missing_until = trio.current_time() + MISSING_FOR_S
        while True:
            may_come = trio.current_time() < missing_until
            try:
                done = await trio.to_thread.run_sync(
                    self._append, effect, nonce, may_come, abandon_on_cancel=True
                )
            except OvertakenError as error:
                post(Overtaken(error.cause, isinstance(error, LaterTrackerError)))
                return False
            except (StoreError, MissingObjectError, DamagedObjectError) as error:
                failures += 1
                if failures == 1:
                    log.warning("the checkpoint store does not take a record: %s", error.cause)
                post(PutDelayed(error.cause))
                await trio.sleep(TRACKER_BACKOFF.delay_s(failures))
            else:
                post(done)
                if isinstance(done, VersionPut):
                    cause = await trio.to_thread.run_sync(self._delete_old, abandon_on_cancel=True)
                    if cause:
                        log.warning("an old checkpoint cannot be deleted: %s", cause)
                return True

    def _append(self, effect: Put, nonce: bytes, may_come: bool) -> Event:
        """Put one record; return what the roster hears of it.

        Raises:
            MissingObjectError: an object of a version is not here, and `may_come`.
        """
        match effect:
            case PutSeries():
                self._append_first(effect)
                return SeriesPut()
            case PutVersion():
                missing = self._missing(effect)
                if missing:
                    why = f"{missing[0]} is not in the tracker's {self._store.url}"
                    if may_come:
                        raise MissingObjectError(why, remedy=SHARE)
                    return ObjectsMissing(effect.version, missing, why)
                now = int(time.time() * 1e6)
                self._append_one(record_of(effect, now), nonce)
                return VersionPut(effect.version)
            case PutFinished(attempt, version):
                self._append_one(FinishedRecord(attempt, version), nonce)
                return FinishedPut()
            case PutBegun(attempt, frontier):
                self._append_one(BegunRecord(attempt, frontier), nonce)
                return BegunPut()
            case PutEpoch(record):
                self._append_one(record, nonce)
                return EpochPut(record)
            case PutEnded(record):
                self._append_one(record, nonce)
                return EndedPut()
            case PutClaim(record, after):
                landed = self._chain.put_after(record, nonce, after)
                self._claim = record if landed else None
                self._beat.is_on = landed
                return Claimed(self._claim)
            case _:
                assert_never(effect)

    def _append_first(self, effect: PutSeries) -> None:
        durable, links = self._durable, self._chain.read()
        first = effect.nonce[::-1]
        if links and links[0].nonce != first:
            error = LaterTrackerError if self.has_standby else OvertakenError
            raise error(f"{self._store.url}: another job has begun in this store")
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
        attempt, generation = self._durable.attempt, self._generation
        self._chain.append(record, nonce, attempt=attempt, generation=generation)

    def _missing(self, effect: PutVersion) -> tuple[str, ...]:
        """Look for the objects with the tracker's own eyes: a host may have another disk there.

        Those of the prelude are in the folder of the version that wrote them, which others name.
        """
        names = (written.name for written in effect.objects)
        folders = {name.rpartition("/")[0] for name in names}
        listed = {
            stored.name: stored.nbytes
            for folder in sorted(folders)
            for stored in self._store.list(f"{folder}/")
        }
        return tuple(
            each.name for each in effect.objects if listed.get(each.name, -1) < each.nbytes
        )

    def _delete_old(self) -> str:
        """Delete objects, not records, of versions not to be kept (R16); returns why one stays."""
        old = not_kept(self._state(), self._keep)
        try:
            if self._deleted is None:  # one list, and not a call for each of thousands long gone
                there = {each.name for each in self._store.list(DATA)}
                old = {number: [n for n in names if n in there] for number, names in old.items()}
                self._deleted = set()
            for number in sorted(old.keys() - self._deleted):
                for name in old[number]:
                    self._store.delete(name)
                self._deleted.add(number)
        except StoreError as error:
            return error.cause
        return ""


def _folder(version: VersionRecord) -> str:
    """Folder of the objects of a version; those of the prelude may be elsewhere."""
    return f"data/{version.attempt}/{version.version}/"
