"""The journal of results of one worker: a group commit every 50 ms, beside the control thread.

The core says what is to be written (`recovery.journal`).  Results are copied first, and the copies
of those that the log has released meanwhile are dropped, since their memory may be in use again.
A disk that fails costs results after a loss of everything, and nothing else.
"""

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVarTuple

import numpy as np
import trio

from ftcomm.control.background import BackgroundError, run_in_background
from ftcomm.control.durable_tasks import series_of
from ftcomm.diagnostics.os_errors import describe
from ftcomm.durable.file_calls import FOLDER_MODE
from ftcomm.durable.journal.journal_files import (
    JournalFile,
    journals_of,
    remove_attempts,
    remove_series,
    remove_versions,
)
from ftcomm.durable.journal.journal_format import (
    EpochHead,
    Head,
    JournalHeader,
    ResultHead,
    read_header,
    read_records,
)
from ftcomm.durable.store import Buffer, DamagedObjectError
from ftcomm.errors import ProtocolError
from ftcomm.memory.pool import EMPTY, LoggedResult, dtype_from_wire, stored_from_wire
from ftcomm.protocol.durable.journal_messages import ReadJournal
from ftcomm.protocol.position import Position
from ftcomm.protocol.signature import scalar_of
from ftcomm.recovery.events import JournalRead, JournalWritten
from ftcomm.recovery.journal.found import FoundJournal, FoundResult
from ftcomm.recovery.journal.journalling import Batch
from ftcomm.recovery.result_log import LogEntry
from ftcomm.recovery.states import WorkerState

if TYPE_CHECKING:
    from ftcomm.control.driver import Driver

Arguments = TypeVarTuple("Arguments")
EVERY_S = 0.05
GIL_BYTES = 1 << 20  # numpy copies larger ones without the interpreter's lock


class ResultJournal:
    """Reader and writer of the journals of one worker.

    Args:
        driver: whose core asks for the work and hears what came of it.
    """

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._file: JournalFile | None = None
        self._failed_version = -1  # of which nothing more is written
        self._is_running = False
        self._removed = (0, 0)  # attempts up to this, and versions before this

    def begin(self) -> None:
        """Write from now on, if the job has journals."""
        if self._driver.hub.settings.journal and not self._is_running:
            self._is_running = True
            self._driver.nursery.start_soon(self._run)

    @property
    def _folder(self) -> Path:
        return Path(self._driver.hub.settings.journal)

    @property
    def _series(self) -> str:
        return series_of(self._driver.hub.core.contact.job_id)

    @property
    def _attempt(self) -> int:
        return int(self._driver.hub.core.contact.job_id.rpartition(".")[2] or 0)

    # --- writing ------------------------------------------------------------------------------

    async def _run(self) -> None:
        driver = self._driver
        try:
            await self._try(-1, self._try_folder)
            while not driver.hung_up.is_set():
                with trio.move_on_after(EVERY_S):
                    await driver.hung_up.wait()
                await self._commit()
        finally:
            self._close_file()
            if driver.hub.core.view.state is WorkerState.FINISHED:
                remove_series(self._folder, self._series)

    def _try_folder(self) -> None:
        """Say at once, and not after the first checkpoint, that nothing can be written here."""
        self._folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._folder):
            pass

    async def _try(
        self, version: int, function: Callable[[*Arguments], None], *arguments: *Arguments
    ) -> None:
        """Run what writes to the disk; where that fails, write nothing more of `version`."""
        try:
            await run_in_background(function, *arguments)
        except (OSError, BackgroundError) as error:
            self._failed_version = version
            if not self._is_removed(error):
                self._warn(error)

    def _warn(self, error: OSError | BackgroundError) -> None:
        words = "results are not journalled in %s: %s"
        self._driver.hub.log.warn_aloud(words, self._folder, describe(error))

    async def _commit(self) -> None:
        driver = self._driver
        while True:
            with driver.hub.lock:
                batch = driver.hub.core.journalling.take()
            if batch is None:
                break
            if batch.version != self._failed_version:
                await self._try(batch.version, self._write, batch)
            driver.apply(JournalWritten(batch.number))
            if batch.is_last:
                break
        await self._remove_old()

    def _write(self, batch: Batch) -> None:
        results = self._copied(batch)
        records: list[tuple[Head, Buffer]] = []
        if batch.begins_epoch:
            records.append((EpochHead(batch.epoch), b""))
        self._opened(batch).append([*records, *results])

    def _is_removed(self, error: OSError | BackgroundError) -> bool:
        """True if a rank beside this one has removed the journals of the job, which has finished.

        All ranks have completed their close() by then, and this one may not have heard it yet.
        """
        return isinstance(error, FileNotFoundError) and self._driver.hub.core.progress.closed

    def _opened(self, batch: Batch) -> JournalFile:
        header = JournalHeader(
            self._series, self._attempt, batch.rank, batch.version, batch.first_epoch
        )
        if self._file is None or self._file.header != header:
            self._close_file()
            self._file = JournalFile(self._folder, header)
        return self._file

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # all that was written has been synced
                file.close()

    def _copied(self, batch: Batch) -> list[tuple[Head, Buffer]]:
        """The results of a batch that the log holds still, so that their copies are whole."""
        copies: list[tuple[Head, Buffer]] = []
        for position, entry in batch.results:
            stored: LoggedResult = entry.value or EMPTY
            shape, digests = stored.shape, stored.digests
            head = ResultHead(position.seqno, entry.signature, stored.dtype, shape, digests)
            copies.append((head, _copy_of(stored.raw())))
        hub = self._driver.hub
        with hub.lock:
            held = hub.core.journalling.still_held(batch)
        return [copy for copy, is_held in zip(copies, held, strict=True) if is_held]

    async def _remove_old(self) -> None:
        """Remove journals that no later attempt can use."""
        core = self._driver.hub.core
        with self._driver.hub.lock:
            old = (core.journalling.obsolete_before, max(core.durables.durable, 0))
        if old != self._removed:
            self._removed = old
            await self._try(self._failed_version, self._remove, *old)

    def _remove(self, attempts: int, before: int) -> None:
        remove_attempts(self._folder, self._series, attempts)
        remove_versions(self._folder, self._series, self._attempt, before)

    # --- reading ------------------------------------------------------------------------------

    def start_read(self, order: ReadJournal) -> None:
        """Read in the background; `JournalRead` follows."""
        self._driver.nursery.start_soon(self._read, order)

    async def _read(self, order: ReadJournal) -> None:
        found: tuple[FoundJournal, ...] = ()
        try:
            found = await run_in_background(self._found, order, abandon_on_cancel=True)
        except (OSError, BackgroundError) as error:
            self._driver.hub.log.warn_aloud("no journal is used: %s", describe(error))
        self._driver.apply(JournalRead(order, found))

    def _found(self, order: ReadJournal) -> tuple[FoundJournal, ...]:
        found, log = [], self._driver.hub.log
        paths = journals_of(self._folder, self._series, order.attempt, order.rank, order.version)
        for path in paths:
            try:
                found.append(read_journal(path, self._series, order))
            except OSError as error:
                log.warn_aloud("journal %s is not used: %s", path, describe(error))
            except DamagedObjectError as error:  # as where its writer was killed when it began it
                log.warning("journal %s is not used: %s", path, error.cause)
        return tuple(found)


def read_journal(path: Path, series: str, order: ReadJournal) -> FoundJournal:
    """Read a journal up to its first record that is not whole.

    Raises:
        DamagedObjectError: it is not what its name says.
        OSError: it cannot be read.
    """
    epochs: list[int] = []
    results: list[FoundResult] = []
    with path.open("rb") as file:
        header, crc = read_header(file, path.name)
        named = (header.series, header.attempt, header.rank, header.version)
        if named != (series, order.attempt, order.rank, order.version):
            raise DamagedObjectError(f"{path.name} is the journal of {named}")
        nbytes = path.stat().st_size
        for head, payload in read_records(file, crc, nbytes):
            if isinstance(head, EpochHead):
                epochs.append(head.epoch)
                continue
            entry = _entry_of(head, payload)
            if entry is None or not epochs:
                break
            results.append(FoundResult(epochs[-1], Position(0, header.version, head.seqno), entry))
    return FoundJournal(tuple(epochs), tuple(results))


def _entry_of(head: ResultHead, payload: bytearray) -> LogEntry | None:
    """The logged result; None if its head contradicts its bytes."""
    nbytes = len(payload)
    try:
        dtype = dtype_from_wire(head.dtype, head.shape, nbytes, nbytes)
        stored = stored_from_wire(dtype, head.shape, np.frombuffer(payload, np.uint8))
    except ProtocolError:
        return None
    stored.digests = head.digests
    stored.scalar = scalar_of(head.signature)
    return LogEntry(head.signature, stored, nbytes)


def _copy_of(raw: memoryview) -> Buffer:
    if raw.nbytes < GIL_BYTES:
        return bytes(raw)
    return np.frombuffer(raw, np.uint8).copy().data
