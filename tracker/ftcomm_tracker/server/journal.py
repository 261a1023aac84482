"""The tracker's journal: one sqlite file that a restarted tracker reads itself back from.

Rule R13 rests on two properties kept here.  Nothing is sent before it is durable: the file is
in WAL mode with ``synchronous=FULL``, one fsync per write (about a millisecond, and only at a
change of the membership).  ``NORMAL`` would be faster and may lose the last transactions at a
power cut: a tracker that comes back with an epoch lower than one it announced is exactly what
the journal is for.  And only one tracker writes: opening the journal takes the next generation,
every write is conditional on it, and the loser gets `SupersededError`.

A file that is deleted while its tracker runs is made
again from what the tracker holds (`Journal.repair`).
"""

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftcomm.errors import FtcommError
from ftcomm_tracker.server.journal_file import (
    JournalError,
    connect,
    create,
    identity_of,
    must_be_a_journal,
    must_not_be_empty,
    naming,
    prepare,
    transaction,
)
from ftcomm_tracker.server.state_dir import StateLock

FILE_NAME = "journal.sqlite"


class SupersededError(FtcommError):
    """A newer tracker has taken this state directory over; this one must end."""

    exit_code = 75
    default_remedy = "nothing to do: the newer tracker serves the job"


@dataclass(frozen=True, slots=True)
class Remembered:
    """Address of the last tracker of a state directory."""

    host: str
    port: int
    token_file: str


_AN_EMPTY_ADDRESS = Remembered("", 0, "")


class Journal:
    """An open journal, held under one generation.

    Attributes:
        path: the sqlite file.
        generation: this tracker's number, one higher than every earlier one of the directory.
    """

    def __init__(self, path: Path, database: sqlite3.Connection, generation: int) -> None:
        self.path = path
        self.generation = generation
        self._database = database
        self._file = identity_of(path)
        self._newest: str | None = None  # the text that was written last
        self._lock: StateLock | None = None
        self._where = _AN_EMPTY_ADDRESS

    @classmethod
    def open(cls, state_dir: Path) -> "Journal":
        """Open or create the journal of `state_dir` and take the next generation.

        Raises:
            JournalError: the file is damaged, foreign, of another format, or not writable.
        """
        path = state_dir / FILE_NAME
        with naming(path):
            if not path.exists():
                create(path)
            must_not_be_empty(path)
            database = connect(path)
            try:
                prepare(path, database)
                with transaction(database):
                    database.execute("UPDATE tracker SET generation = generation + 1")
                    (generation,) = database.execute("SELECT generation FROM tracker").fetchone()
            except BaseException:
                database.close()
                raise
        return cls(path, database, int(generation))

    def load(self) -> dict[str, object] | None:
        """The durable state that was last written, None if there was none."""
        with naming(self.path):
            (text,) = self._database.execute("SELECT document FROM tracker").fetchone()
        if text is None:
            return None
        document = document_of(self.path, text)
        self._newest = text
        return document

    def write(self, document: Mapping[str, object]) -> None:
        """Make `document` the durable state; on return it survives a power cut.

        Raises:
            SupersededError: a newer tracker holds the journal.
            JournalError: it cannot be written, for example because the disk is full.
        """
        text = text_of(document)
        self._newest = text
        with naming(self.path), transaction(self._database):
            changed = self._database.execute(
                "UPDATE tracker SET document = ? WHERE generation = ?", (text, self.generation)
            )
            self._must_be_ours(changed.rowcount)

    def take_generation(self, generation: int) -> None:
        """Go on as `generation`, which is above all that the job's workers have seen.

        Raises:
            SupersededError: a newer tracker holds the journal.
            JournalError: it cannot be written.
        """
        with naming(self.path), transaction(self._database):
            changed = self._database.execute(
                "UPDATE tracker SET generation = ? WHERE generation = ?",
                (generation, self.generation),
            )
            self._must_be_ours(changed.rowcount)
        self.generation = generation

    def remember(self, where: Remembered) -> None:
        """Note the address and the token file, so that a restarted tracker takes them again."""
        self._where = where
        with naming(self.path), transaction(self._database):
            changed = self._database.execute(
                "UPDATE tracker SET host = ?, port = ?, token_file = ? WHERE generation = ?",
                (where.host, where.port, where.token_file, self.generation),
            )
            self._must_be_ours(changed.rowcount)

    def check(self) -> None:
        """Raise `SupersededError` if a newer tracker has opened the journal."""
        with naming(self.path):
            (newest,) = self._database.execute("SELECT generation FROM tracker").fetchone()
        self._must_be_ours(int(newest == self.generation))

    def hold(self, lock: StateLock | None) -> None:
        """Own the lock of the state directory until the journal is closed."""
        self._lock = lock

    def settle(self) -> None:
        """Move what was written into the main file.

        A journal that is copied without its log of writes (``-wal``) has then lost the newest of
        them, and not the job.
        """
        with naming(self.path):
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def repair(self) -> bool:
        """If the file was deleted, make it again as it was; True if that was done.

        Raises:
            JournalError: another file is in its place, or it cannot be made.
        """
        found = identity_of(self.path)
        if found == self._file:
            return False
        with naming(self.path):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if found is not None or not self._lock_again():
                raise JournalError(
                    f"journal {self.path} was replaced by another tracker's while this one served",
                    remedy="start this job again, each job on a --state-dir of its own",
                )
            # Closed first: sqlite removes the log of writes by its name, which the new one has too.
            self._database.close()
            create(self.path)
            self._file = identity_of(self.path)
            self._database = connect(self.path)
            prepare(self.path, self._database)
            self._fill()
        return True

    def _lock_again(self) -> bool:
        """The lock went with its directory; False if another tracker has it there by now."""
        if self._lock is None:
            return True
        lock, self._lock = self._lock, None  # closed once, also where none can be taken
        lock.close()
        self._lock = StateLock.take(self.path.parent)
        return self._lock is not None

    def _fill(self) -> None:
        where = self._where
        with transaction(self._database):
            self._database.execute(
                "UPDATE tracker SET generation = ?, host = ?, port = ?, token_file = ?,"
                " document = ?",
                (self.generation, where.host, where.port, where.token_file, self._newest),
            )

    def abandon(self) -> None:
        """In a forked child: close its copy of the lock; the file is the parent's alone."""
        if self._lock is not None:
            self._lock.abandon()
            self._lock = None

    def close(self) -> None:
        """Close the file; nothing is lost, every write was durable when it returned."""
        self._database.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _must_be_ours(self, rows: int) -> None:
        if rows != 1:
            raise SupersededError(
                f"generation {self.generation} of the journal {self.path} has been taken over"
                " by a newer tracker"
            )


def remembered(state_dir: Path) -> Remembered | None:
    """Return the address of the last tracker of `state_dir`; None if there was none.

    Reads only: a `status` command must not take a generation.
    """
    path = state_dir / FILE_NAME
    if not path.exists():
        return None
    with naming(path), contextlib.closing(connect(path)) as database:
        must_not_be_empty(path)
        must_be_a_journal(path, database)
        row = database.execute("SELECT host, port, token_file FROM tracker").fetchone()
    if [type(value) for value in row] != [str, int, str]:
        raise JournalError(f"journal {path} holds a damaged address: {row!r:.200}")
    host, port, token_file = row
    return Remembered(host, port, token_file) if port else None


def last_written(state_dir: Path) -> tuple[dict[str, object], int] | None:
    """The durable state that was last written in `state_dir`, and its tracker's generation.

    None if nothing was written.  Reads only, as `remembered`.
    """
    if remembered(state_dir) is None:
        return None
    path = state_dir / FILE_NAME
    with naming(path), contextlib.closing(connect(path)) as database:
        text, generation = database.execute("SELECT document, generation FROM tracker").fetchone()
    if not isinstance(generation, int):
        raise JournalError(f"journal {path} holds a damaged generation: {generation!r:.200}")
    return None if text is None else (document_of(path, text), generation)


def text_of(document: Mapping[str, object]) -> str:
    """A document as the journal's text: JSON, so that a person with a sqlite shell can read it."""
    return json.dumps(document, separators=(",", ":"), sort_keys=True, default=_hex)


def document_of(path: Path, text: str) -> dict[str, object]:
    """The inverse of `text_of`; `path` is for the error.

    Raises:
        JournalError: the text is no document.
    """
    try:
        document = json.loads(text, object_hook=_unhex)
    except (ValueError, TypeError, RecursionError) as error:
        raise JournalError(f"journal {path} holds a damaged document: {error}") from error
    if not isinstance(document, dict):
        raise JournalError(f"journal {path} holds something else than a document")
    return document


def _hex(value: object) -> dict[str, str]:
    """Bytes, marked as such."""
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} does not belong in a journal")
    return {"hex": value.hex()}


def _unhex(value: dict[str, object]) -> object:
    if value.keys() == {"hex"} and isinstance(value["hex"], str):
        return bytes.fromhex(value["hex"])
    return value
