"""Durable checkpoints of one worker: packing, writing and reading, beside the control thread.

The core says what is to be done; nothing here decides.  One object is written at a time, in pieces
of the packed state, so a member needs no memory beyond what the core holds.
"""

import hashlib
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np
import trio

from ftcomm.control.background import BackgroundError, run_in_background
from ftcomm.durable.chain import Chain
from ftcomm.durable.container import (
    ALGORITHM,
    ContainerHeader,
    Entry,
    OpenContainer,
    container_parts,
)
from ftcomm.durable.opening import find_sign, open_store
from ftcomm.durable.records import DamagedLink, VersionRecord
from ftcomm.durable.store import DamagedObjectError, MissingObjectError, Store, StoreError
from ftcomm.durable.verification import PRELUDE_RESULTS, open_part, parts_of, prelude_of
from ftcomm.errors import ConfigError, FtcommError, StateChangedError
from ftcomm.memory.pool import EMPTY, LoggedResult, dtype_from_wire, stored_from_wire
from ftcomm.protocol.durable.store_messages import ObjectWritten
from ftcomm.protocol.position import PRELUDE, Position
from ftcomm.protocol.signature import scalar_of
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import (
    FatalFound,
    ObjectFailed,
    ObjectStored,
    ObjectWrite,
    PackVersion,
    RestoreEnded,
    StartRestore,
    VersionPacked,
    VersionRestored,
    WriteVersion,
)
from ftcomm.state.layout import Packed, behind_each_other
from ftcomm.state.lazy import LazyState

if TYPE_CHECKING:
    from ftcomm.control.driver import Driver

STATE_DIGEST_BYTES = 16  # of a packed state, as `checkpoint()` compares it
_UNCOMPARED = bytes(STATE_DIGEST_BYTES)  # what it compares of a lazy one
READ_AGAIN_S = 2.0  # between two tries at a store that cannot be read
READ_TRIES = 30  # a minute: longer than a store's restart, shorter than `replace_within`


class DurableTasks:
    """Background work of one worker for its marked versions, and its restore."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._one_at_a_time = trio.Lock()
        self._store: Store | None = None
        self._store_of = ("", "")  # its URL, and the series of its job

    def start(self, order: PackVersion | WriteVersion | StartRestore) -> None:
        """Have it done in the background; the events that `recovery.events` names follow."""
        match order:
            case PackVersion():
                self._driver.nursery.start_soon(self._pack, order)
            case WriteVersion():
                self._driver.nursery.start_soon(self._write, order)
            case StartRestore(record):
                self._driver.nursery.start_soon(self._restore, record)
            case _:
                assert_never(order)

    # --- packing ------------------------------------------------------------------------------

    async def _pack(self, order: PackVersion) -> None:
        try:
            packed = await run_in_background(_packed, order)
        except StateChangedError as error:
            self._driver.apply(FatalFound(type(error).__name__, error.cause))
            return
        except BackgroundError as error:  # other holders may be able to
            self._note_failed(order.version, error)
            return
        if packed is not None:
            raw, digest = packed
            self._driver.apply(VersionPacked(order.version, raw, len(raw), digest))

    # --- writing ------------------------------------------------------------------------------

    async def _write(self, order: WriteVersion) -> None:
        for write in order.writes:
            if not self._is_awaited(order.version):
                return
            try:
                async with self._one_at_a_time:
                    written = await run_in_background(
                        self._put, order, write, abandon_on_cancel=True
                    )
            except (StoreError, ConfigError, BackgroundError) as error:
                self._note_failed(order.version, error)
                return
            self._driver.hub.fault("stored")
            self._driver.apply(ObjectStored(written))

    def _note_failed(self, version: int, error: FtcommError | BackgroundError) -> None:
        self._driver.hub.log.warning("checkpoint %d: %s", version, error.cause)
        self._driver.apply(ObjectFailed(version, _words(error), isinstance(error, ConfigError)))

    def _is_awaited(self, version: int) -> bool:
        with self._driver.hub.lock:
            return self._driver.hub.core.durables.awaits(version)

    def _put(self, order: WriteVersion, write: ObjectWrite) -> ObjectWritten:
        """Write one object, on a thread of its own; raises StoreError."""
        wanted, contact = write.order, self._driver.hub.core.contact
        raw, entries = _raw_of(write)
        nbytes = sum(len(part) for part in raw)
        header = ContainerHeader(
            series=series_of(contact.job_id),
            attempt=order.attempt,
            version=order.version,
            epoch=order.epoch,
            kind=wanted.kind,
            rank=wanted.rank,
            lo=wanted.lo,
            hi=wanted.hi,
            total=order.nbytes if wanted.kind == "state" else nbytes,
            state_digest=order.digest,
            algorithm=ALGORITHM,
            nbytes=nbytes,
            entries=entries,
        )
        writer = self._driver.hub.core.view.rank
        owner = wanted.rank if wanted.kind == "local" else writer
        name = (
            f"data/{order.attempt}/{order.version}/{wanted.kind}-{order.epoch}-{owner}"
            f"-{secrets.token_hex(8)}.ftc"
        )
        digests: list[bytes] = []
        self._opened().put(name, container_parts(header, raw, digests.append))
        return ObjectWritten(
            version=order.version,
            order=wanted,
            name=name,
            nbytes=nbytes,
            digest=digests[0],
            state_digest=order.digest,
            prelude=write.prelude,
        )

    def _opened(self) -> Store:
        """The store, which is proven to be the tracker's; raises ConfigError or StoreError."""
        url, job_id = self._driver.hub.settings.checkpoint, self._driver.hub.core.contact.job_id
        wanted = url, series_of(job_id)
        if self._store is None or self._store_of != wanted:  # a process without a plan changes jobs
            store = open_store(url)
            find_sign(store, job_id)
            self._store, self._store_of = store, wanted
        return self._store

    # --- reading ------------------------------------------------------------------------------

    async def _restore(self, record: int) -> None:
        driver, reason = self._driver, ""
        for _ in range(READ_TRIES):
            try:
                restored = await run_in_background(self._read, record, abandon_on_cancel=True)
            except StoreError as error:  # it is away, which is not damage
                driver.hub.log.warning("the checkpoint cannot be read yet: %s", error.cause)
                reason = error.cause
                await trio.sleep(READ_AGAIN_S)
            except (FtcommError, BackgroundError) as error:
                reason = _words(error)
                break
            else:
                driver.apply(restored)
                return
        driver.apply(RestoreEnded(record, reason))

    def _read(self, number: int) -> VersionRestored:
        """Read and verify all of a version record.

        Raises:
            DamagedObjectError: something is not as it was written.
            MissingObjectError: something is not there.
            StoreError: the store could not be read.
        """
        store = self._opened()
        record = Chain(store).read_one(number).record
        if isinstance(record, DamagedLink):
            raise DamagedObjectError(record.why)
        if not isinstance(record, VersionRecord):
            raise MissingObjectError(f"record {number} of the store is no checkpoint")
        series = series_of(self._driver.hub.core.contact.job_id)
        state: np.ndarray[Any, Any] = np.empty(record.nbytes, np.uint8)
        locals_: dict[int, Packed] = {}
        for part in record.parts:
            if part.kind == PRELUDE_RESULTS:
                continue
            opened = open_part(store, part, series)
            if part.kind == "state":
                opened.read_into(state[part.lo : part.hi].data, part.digest)
                continue
            raw: np.ndarray[Any, Any] = np.empty(part.nbytes, np.uint8)
            opened.read_into(raw.data, part.digest)
            locals_[part.rank] = behind_each_other([raw])
        return VersionRestored(
            record=number,
            version=record.version,
            value=behind_each_other([state]),
            locals=None if record.local_ranks is None else locals_,
            prelude=_prelude_of(store, record, series),
            prelude_length=record.prelude_length,
        )


def series_of(job_id: str) -> str:
    """Name of the series of a job: its id without the attempt."""
    return job_id.rpartition(".")[0]


def _words(error: FtcommError | BackgroundError) -> str:
    remedy = error.remedy if isinstance(error, FtcommError) else ""
    return f"{error.cause}; {remedy}" if remedy else error.cause


def _packed(order: PackVersion) -> tuple[Packed, bytes] | None:
    """The packed state and its digest; None if the version was given up before."""
    value = order.value
    raw: Packed | None = value.raw() if isinstance(value, LazyState) else value
    if raw is None:
        return None
    if order.digest and order.digest != _UNCOMPARED:
        return raw, order.digest
    return raw, hashlib.blake2b(raw, digest_size=STATE_DIGEST_BYTES).digest()


def _raw_of(write: ObjectWrite) -> tuple[list[memoryview], tuple[Entry, ...]]:
    """The raw bytes of an object, in parts, and what is where in it."""
    if write.order.kind == "state":
        return [memoryview(write.content)[write.order.lo : write.order.hi]], ()
    if write.order.kind == "local":
        return [memoryview(write.content)], ()
    parts, entries, offset = [], [], 0
    for position, entry in write.content:
        stored: LoggedResult = entry.value or EMPTY
        raw = stored.raw()
        entries.append(
            Entry(
                seqno=position.seqno,
                signature=entry.signature,
                dtype=stored.dtype,
                shape=stored.shape,
                offset=offset,
                nbytes=raw.nbytes,
                digests=stored.digests,
            )
        )
        parts.append(raw)
        offset += raw.nbytes
    return parts, tuple(entries)


def _prelude_of(
    store: Store, record: VersionRecord, series: str
) -> tuple[tuple[Position, LogEntry], ...]:
    """The results of the prelude, each from the first object that has it and is whole.

    Raises:
        DamagedObjectError: no object that has one of them is as it was written.
        MissingObjectError: likewise, one is not there.
        StoreError: the store could not be read.
    """
    found: dict[Position, LogEntry] = {}
    damage: FtcommError | None = None
    for part in parts_of(record, PRELUDE_RESULTS):
        if all(Position(0, PRELUDE, seqno) in found for seqno in prelude_of(part)):
            continue
        try:
            opened = open_part(store, part, series)
            raw: np.ndarray[Any, Any] = np.empty(part.nbytes, np.uint8)
            opened.read_into(raw.data, part.digest)
            found.update(_results_in(opened, raw))
        except (DamagedObjectError, MissingObjectError) as error:
            damage = error
    if damage is not None and len(found) < record.prelude_length:
        raise damage
    return tuple(sorted(found.items(), key=lambda item: item[0]))


def _results_in(
    opened: OpenContainer, raw: np.ndarray[Any, Any]
) -> Iterator[tuple[Position, LogEntry]]:
    """The results in a prelude's object."""
    for entry in opened.header.entries:
        dtype = dtype_from_wire(entry.dtype, entry.shape, entry.nbytes, len(raw))
        own = raw[entry.offset : entry.offset + entry.nbytes].copy()
        stored = stored_from_wire(dtype, entry.shape, own)
        stored.digests = entry.digests
        stored.scalar = scalar_of(entry.signature)
        position = Position(0, PRELUDE, entry.seqno)
        yield position, LogEntry(entry.signature, stored, entry.nbytes)
