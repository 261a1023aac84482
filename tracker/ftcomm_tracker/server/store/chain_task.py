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
from ftcomm.durable.opening import find_sign, leave_sign, open_store, probe
from ftcomm.durable.records import (
    AttemptRecord,
    EndedRecord,
    EpochRecord,
    NextRecord,
    VersionRecord,
)
from ftcomm.durable.store import DamagedObjectError, MissingObjectError, Store, StoreError
from ftcomm.durable.verification import is_deleted, loss_of
from ftcomm.errors import ConfigError, FtcommError, JobLostError, error_named
from ftcomm.protocol.messages import FatalDecision
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
from ftcomm_tracker.core.durable.store_facts import ExpectedDigest, StoreFacts
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import ChainRead, Event, Overtaken, PutNextDigest, StoreSeen
from ftcomm_tracker.core.rebuild.stored_job import attempt_to_hear
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.core.standby.watch import journalled_roster
from ftcomm_tracker.server.job_id import draw_job_id
from ftcomm_tracker.server.journal import Journal
from ftcomm_tracker.server.store.beat import BEAT_EVERY_S, BEATS, BeatWatch, StoreBeat
from ftcomm_tracker.server.store.chain_records import facts_of
from ftcomm_tracker.server.store.next_digests import NextDigests
from ftcomm_tracker.server.store.old_versions import OldVersions
from ftcomm_tracker.server.store.record_puts import Put, RecordPuts, Writer

# A store that cannot be read when an attempt begins: a restart of its server, not more.
READ_WITHIN_S = 60.0
GONE = "its objects were deleted"

T = TypeVar("T")

log = logging.getLogger("ftcomm_tracker")


class ChainTask:
    """The chain of one job, and what a tracker does with it.

    Args:
        store: has it.
        keep: versions whose objects stay.
        max_attempts: more than these the job may not have.
        resume: the operator's choice, see `AttemptStart`.
        has_standby: another tracker may take over, or this one waits beside another.
        starts_workers: this process starts the workers of each attempt.

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
        starts_workers: bool = False,
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
        self._uses = trio.Lock()  # of the chain, by one thread at a time
        self._old = OldVersions(store, keep)
        self._next = NextDigests(store, starts_workers=starts_workers)
        self._puts = RecordPuts(self._chain, self._uses, self._beat, self._old)
        self._durable = Durable.fresh("", 1)
        self._generation = 0
        self._leads = False

    # --- the beginning of an attempt ----------------------------------------------------------

    async def refuse_second(self) -> None:
        """Return if no other tracker works on the store; see `StoreBeat.refuse_second`."""
        await self._patiently(self._store.list, BEATS)  # it may be away for a moment
        await self._beat.refuse_second()

    async def begin(
        self,
        before: Durable,
        *,
        survivors: bool,
        settings: tuple[tuple[str, str], ...] = (),
        has_led: bool = False,
    ) -> tuple[Durable, StoreFacts]:
        """Begin the next attempt, or go on with that of `before`.

        Args:
            before: what the journal has.
            survivors: members of its attempt may live.
            settings: of a new attempt; empty for those of `before`.
            has_led: this tracker has led that attempt until now.

        Raises:
            OvertakenError: another tracker has begun a later one.
            FtcommError: there is none to begin; the store cannot tell two trackers apart, or could
                not be read for long.
        """
        self._puts.drop()  # a record of the attempt before would be put as one of this
        await self._old.stop()
        await self._patiently(probe, self._store)
        start = self._start_of(before, survivors=survivors, settings=settings)
        start.has_led = has_led
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
                    expected = await self._patiently(self._expected, durable.restore)
                    standby = self.has_standby
                    return durable, replace(facts, has_standby=standby, expected=expected)
                case RefuseAttempt(error, cause) if error == OVERTAKEN:
                    raise OvertakenError(f"{self._store.url}: {cause}")
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
            OvertakenError: another tracker has begun it.
            FtcommError: there is no next attempt.
        """
        self._leads = False
        if self._resume == "never":  # it was said of the first attempt of this command
            self._resume = "auto"
        durable, facts = await self.begin(lost.durable, survivors=False, has_led=True)
        self._generation = journal.generation
        journal.write(durable.to_wire())
        return Roster(
            lost.settings,
            durable,
            generation=journal.generation,
            now=trio.current_time(),
            tracker=lost.tracker,
            store=facts,
        )

    async def ended_roster(self, lost: Roster, journal: Journal, why: JobLostError) -> Roster:
        """Journal that no attempt follows; return the roster that says so to all who come.

        Args:
            lost: of the attempt that is over.
            journal: of this tracker.
            why: there is no next attempt.

        Raises:
            OvertakenError: another tracker leads the job.
            StoreError: the store could not be reached for long.
        """
        error, generation = type(why).__name__, journal.generation
        end = FatalDecision(error, why.cause[:4000], lost.durable.epoch, lost.progress(), -1)
        if self.has_standby:  # R19: that one would begin attempts of its own
            await self._record_end(end, generation)
        self.must_begin = False
        durable = replace(lost.durable, fatal_decision=end)
        journal.write(durable.to_wire())
        now_us = int(time.time() * 1e6)
        return Roster(
            lost.settings,
            durable,
            generation=generation,
            now=trio.current_time(),
            tracker=lost.tracker,
            store=facts_of(self._chain).facts_of(durable.attempt, now_us),
        )

    async def _record_end(self, end: FatalDecision, generation: int) -> None:
        record = EndedRecord(
            attempt=self._state().newest_attempt,
            generation=generation,
            error=end.error,
            cause=end.cause,
            epoch=end.epoch,
            position=end.position,
            rank=end.rank,
        )
        nonce = secrets.token_bytes(NONCE_BYTES)
        if not await self._patiently(self._chain.put_next, record, nonce):
            raise OvertakenError(f"{self._store.url}: another tracker leads the job")

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
        chain = await self._patiently(self._with_expected, chain)
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
            record = EpochRecord(before.attempt, generation, before.epoch, roster)
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
        leader, is_silent, trouble, facts = "", False, "", ChainFacts()
        try:
            if leads:
                chain.look(attempt=attempt, generation=generation)
                self._must_be_ours(chain, attempt)
                return None
            leader, is_silent = beats.look()
            chain.read()
            facts = facts_of(chain)
            self._beat.is_on = facts.epochs[-1:] == (self._puts.claim,)
            facts = self._with_expected(facts)
        except OvertakenError as error:
            # Unless it is the next attempt of this tracker, which began meanwhile.
            if self._leads and self._durable.attempt == attempt:
                by_tracker = isinstance(error, LaterTrackerError)
                return Overtaken(error.cause, by_tracker)
        except (StoreError, MissingObjectError, DamagedObjectError) as error:
            trouble, facts = error.cause, facts_of(chain)
        if leads or self._leads:
            return None
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
        if self._uses.locked():
            log.info("%s: waiting for a record that is on its way to the store", self._store.url)
        async with self._uses:
            return await self._patiently_alone(call, *arguments)

    async def _patiently_alone(self, call: Callable[..., T], *arguments: object) -> T:
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

    def _with_expected(self, chain: ChainFacts) -> ChainFacts:
        parent = chain.attempts[-1].parent if chain.attempts else 0
        return replace(chain, expected=self._expected(parent))

    def _expected(self, parent: int) -> ExpectedDigest | None:
        """The digest that an earlier attempt has committed behind record `parent`, 0 for none."""
        found = self._next.expected(parent) if parent else None
        if found is None:
            return None
        record, is_binding = found
        return ExpectedDigest(record.version, record.digest, record.attempt, is_binding)

    def _state(self) -> ChainState:
        return chain_state(self._chain.links)

    # --- records of an attempt ----------------------------------------------------------------

    def put(self, effect: Put) -> None:
        """Put the record behind those that were given before; returns at once."""
        self._puts.give(effect, Writer(self._durable, self._generation, self.has_standby))

    def put_next_digest(self, effect: PutNextDigest) -> None:
        """Keep the digest of the version behind the newest durable one; returns at once."""
        versions = self._state().versions.items()
        before = [n for n, record in versions if record.version == effect.version - 1]
        if before:
            record = NextRecord(effect.attempt, effect.version, effect.digest)
            self._next.note(record, before[-1])

    async def run(self, post: Callable[[Event], None]) -> None:
        """Put what is given, one record after the other, and beat, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat.run)
            nursery.start_soon(self._old.run)
            nursery.start_soon(self._next.run)
            if self.has_standby:
                nursery.start_soon(self._watch, post)
            await self._puts.run(post)
            await self._old.stop()  # another tracker may begin from what is there
            nursery.cancel_scope.cancel()


def _folder(version: VersionRecord) -> str:
    """Folder of the objects of a version; those of the prelude may be elsewhere."""
    return f"data/{version.attempt}/{version.version}/"
