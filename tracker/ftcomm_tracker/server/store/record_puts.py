"""RecordPuts: the records of an attempt, put into the chain one after the other.

A put may take long, or be tried again for as long as the store is away.  Meanwhile its attempt may
be lost and the next one begin.  Then the record is not put any more, and what became of it is not
news: the next attempt has read the chain behind it.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import trio

from ftcomm.config.backoff import TRACKER_BACKOFF
from ftcomm.durable.chain import NONCE_BYTES, Chain, LaterTrackerError, OvertakenError
from ftcomm.durable.records import (
    AttemptRecord,
    ChainRecord,
    EpochRecord,
    FinishedRecord,
    SeriesRecord,
)
from ftcomm.durable.store import DamagedObjectError, MissingObjectError, StoreError
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    Claimed,
    EndedPut,
    EpochPut,
    Event,
    FinishedPut,
    ObjectsMissing,
    Overtaken,
    PutClaim,
    PutDelayed,
    PutEnded,
    PutEpoch,
    PutFinished,
    PutSeries,
    PutVersion,
    SeriesPut,
    VersionPut,
)
from ftcomm_tracker.server.store.beat import StoreBeat
from ftcomm_tracker.server.store.chain_records import record_of
from ftcomm_tracker.server.store.old_versions import OldVersions

# An object that a host has written may be seen here so much later: an NFS client keeps folders.
MISSING_FOR_S = 60.0
# Settings on which the bytes of results depend; the series has the first attempt's.
BIT_SETTINGS = ("algorithm",)
SHARE = "give --checkpoint a directory that all hosts share"
MAX_PUTS = 64  # records that wait; a job has two in flight at most, and its end

Put = PutSeries | PutVersion | PutFinished | PutEpoch | PutEnded | PutClaim

log = logging.getLogger("ftcomm_tracker")


@dataclass(frozen=True, slots=True)
class Writer:
    """The one that puts a record, as the chain and others see it.

    Attributes:
        durable: the job, in the attempt of the record.
        generation: of the tracker.
        has_standby: another tracker may begin the same job.
    """

    durable: Durable
    generation: int
    has_standby: bool


@dataclass(frozen=True, slots=True)
class _Order:
    """A record that is to be put; `turn` changes when no older one is."""

    effect: Put
    writer: Writer
    turn: int


class RecordPuts:
    """Puts records beside the loop of the tracker.

    Args:
        chain: they go there.
        uses: held while a thread uses the chain.
        beat: of this tracker.
        old: hears of each new version.

    Attributes:
        claim: the record by which this tracker leads before it has a group; None if it has not.
    """

    def __init__(self, chain: Chain, uses: trio.Lock, beat: StoreBeat, old: OldVersions) -> None:
        self.claim: EpochRecord | None = None
        self._chain, self._store = chain, chain.store
        self._uses = uses
        self._beat, self._old = beat, old
        self._turn = 0
        self._given, self._orders = trio.open_memory_channel[_Order](MAX_PUTS)

    def give(self, effect: Put, writer: Writer) -> None:
        """Put the record behind those that were given before; returns at once."""
        self._given.send_nowait(_Order(effect, writer, self._turn))

    def drop(self) -> None:
        """Put nothing more of what was given: its attempt is over.

        One may be on its way to the store.  Behind the lock it is there, or is never put.
        """
        self._turn += 1

    async def run(self, post: Callable[[Event], None]) -> None:
        """Put what is given; return when a later attempt or tracker has come."""
        async for order in self._orders:
            if not await self._put(order, post):
                return

    async def _put(self, order: _Order, post: Callable[[Event], None]) -> bool:
        """Put until it is there, or dropped; False if a later attempt or tracker has come."""
        nonce, failures = secrets.token_bytes(NONCE_BYTES), 0
        missing_until = trio.current_time() + MISSING_FOR_S
        while True:
            may_come = trio.current_time() < missing_until
            try:
                async with self._uses:
                    if order.turn != self._turn:
                        return True
                    done = await trio.to_thread.run_sync(
                        self._append, order, nonce, may_come, abandon_on_cancel=True
                    )
            except OvertakenError as error:
                if order.turn != self._turn:  # by the next attempt of this tracker
                    return True
                post(Overtaken(error.cause, isinstance(error, LaterTrackerError)))
                return False
            except (StoreError, MissingObjectError, DamagedObjectError) as error:
                if order.turn != self._turn:
                    return True
                failures += 1
                if failures == 1:
                    log.warning("the checkpoint store does not take a record: %s", error.cause)
                post(PutDelayed(error.cause))
                await trio.sleep(TRACKER_BACKOFF.delay_s(failures))
            else:
                if order.turn == self._turn:
                    post(done)
                    if isinstance(done, VersionPut):
                        self._old.note(self._chain.links)
                return True

    # --- in a thread --------------------------------------------------------------------------

    def _append(self, order: _Order, nonce: bytes, may_come: bool) -> Event:
        """Put one record; return what the roster hears of it.

        Raises:
            MissingObjectError: an object of a version is not here, and `may_come`.
        """
        writer = order.writer
        match order.effect:
            case PutSeries() as effect:
                self._append_first(effect, writer)
                return SeriesPut()
            case PutVersion() as effect:
                missing = self._missing(effect)
                if missing:
                    why = f"{missing[0]} is not in the tracker's {self._store.url}"
                    if may_come:
                        raise MissingObjectError(why, remedy=SHARE)
                    return ObjectsMissing(effect.version, missing, why)
                now = int(time.time() * 1e6)
                self._append_one(record_of(effect, now), nonce, writer)
                return VersionPut(effect.version)
            case PutFinished(attempt, version):
                self._append_one(FinishedRecord(attempt, version), nonce, writer)
                return FinishedPut()
            case PutEpoch(record):
                self._append_one(record, nonce, writer)
                return EpochPut(record)
            case PutEnded(record):
                self._append_one(record, nonce, writer)
                return EndedPut()
            case PutClaim(record, after):
                landed = self._chain.put_after(record, nonce, after)
                self.claim = record if landed else None
                self._beat.is_on = landed
                return Claimed(self.claim)
            case _:
                assert_never(order.effect)

    def _append_first(self, effect: PutSeries, writer: Writer) -> None:
        durable, links = writer.durable, self._chain.read()
        first = effect.nonce[::-1]
        if links and links[0].nonce != first:
            error = LaterTrackerError if writer.has_standby else OvertakenError
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
        self._append_one(series, first, writer)
        self._append_one(AttemptRecord(durable.attempt, 0), effect.nonce, writer)

    def _append_one(self, record: ChainRecord, nonce: bytes, writer: Writer) -> None:
        attempt, generation = writer.durable.attempt, writer.generation
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
