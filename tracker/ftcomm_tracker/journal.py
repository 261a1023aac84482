"""The tracker's journal: one sqlite file that a restarted tracker reads itself back from.

Rule R13 rests on two properties kept here.  Nothing is sent before it is durable: the file is
in WAL mode with ``synchronous=FULL``, one fsync per write (about a millisecond, and only at a
change of the membership).  ``NORMAL`` would be faster and may lose the last transactions at a
power cut: a tracker that comes back with an epoch lower than one it announced is exactly what
the journal is for.  And only one tracker writes: opening the journal takes the next generation,
every write is conditional on it, and the loser gets `SupersededError`.
"""

import contextlib
import errno
import json
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ftcomm.errors import ConfigError, FtcommError

FILE_NAME = "journal.sqlite"
APPLICATION_ID = 0x46544A31  # "FTJ1": tells our file from any other sqlite file
FORMAT = 1  # raised when the tables change; another number is refused, never guessed at
MAKE_ROOM = (
    "make room on its disk; then start `serve` again with the same --state-dir, since workers wait"
    " for it as long as FTCOMM_TRACKER_TIMEOUT says, or a job of `run` anew"
)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
BUSY_TIMEOUT_S = 5.0  # another tracker's write takes milliseconds; longer means a sick disk

_TABLES = (
    """CREATE TABLE tracker (
        id INTEGER PRIMARY KEY CHECK (id = 1), generation INTEGER NOT NULL,
        host TEXT NOT NULL, port INTEGER NOT NULL, token_file TEXT NOT NULL, document TEXT)""",
    """CREATE TABLE history (
        number INTEGER PRIMARY KEY AUTOINCREMENT, epoch INTEGER NOT NULL,
        generation INTEGER NOT NULL, written_at REAL NOT NULL, document TEXT NOT NULL)""",
    """CREATE TRIGGER history_stays BEFORE UPDATE ON history
        BEGIN SELECT RAISE(ABORT, 'history is append-only'); END""",
    """CREATE TRIGGER history_is_kept BEFORE DELETE ON history
        BEGIN SELECT RAISE(ABORT, 'history is append-only'); END""",
    "INSERT INTO tracker (id, generation, host, port, token_file) VALUES (1, 0, '', 0, '')",
)


class JournalError(ConfigError):
    """The journal cannot be read or written; the text names the file."""

    default_remedy = "give another --state-dir, or mend or remove the file"


class SupersededError(FtcommError):
    """A newer tracker has taken this state directory over; this one must end."""

    exit_code = 75
    default_remedy = "nothing to do: the newer tracker serves the job"


@dataclass(frozen=True, slots=True)
class Remembered:
    """Where the last tracker of a state directory served."""

    host: str
    port: int
    token_file: str


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

    @classmethod
    def open(cls, state_dir: Path) -> "Journal":
        """Open or create the journal of `state_dir` and take the next generation.

        Raises:
            JournalError: the file is damaged, foreign, of another format, or not writable.
        """
        path = state_dir / FILE_NAME
        with _named(path):
            database = _connect(path)
            try:
                _prepare(path, database)
                with _transaction(database):
                    database.execute("UPDATE tracker SET generation = generation + 1")
                    (generation,) = database.execute("SELECT generation FROM tracker").fetchone()
            except BaseException:
                database.close()
                raise
        return cls(path, database, int(generation))

    def load(self) -> dict[str, object] | None:
        """The durable state that was last written, None if there was none."""
        with _named(self.path):
            (text,) = self._database.execute("SELECT document FROM tracker").fetchone()
        return None if text is None else document_of(self.path, text)

    def write(self, document: Mapping[str, object], *, epoch: int) -> None:
        """Make `document` the durable state; on return it survives a power cut.

        The first document of each epoch also enters the history.

        Raises:
            SupersededError: a newer tracker holds the journal.
            JournalError: it cannot be written, for example because the disk is full.
        """
        text = text_of(document)
        with _named(self.path), _transaction(self._database):
            changed = self._database.execute(
                "UPDATE tracker SET document = ? WHERE generation = ?", (text, self.generation)
            )
            self._must_be_ours(changed.rowcount)
            self._database.execute(
                "INSERT INTO history (epoch, generation, written_at, document) SELECT ?, ?, ?, ?"
                " WHERE ? > coalesce((SELECT max(epoch) FROM history), -1)",
                (epoch, self.generation, time.time(), text, epoch),
            )

    def remember(self, where: Remembered) -> None:
        """Note the address and the token file, so that a restarted tracker takes them again."""
        with _named(self.path), _transaction(self._database):
            changed = self._database.execute(
                "UPDATE tracker SET host = ?, port = ?, token_file = ? WHERE generation = ?",
                (where.host, where.port, where.token_file, self.generation),
            )
            self._must_be_ours(changed.rowcount)

    def check(self) -> None:
        """Raise `SupersededError` if a newer tracker has opened the journal."""
        with _named(self.path):
            (newest,) = self._database.execute("SELECT generation FROM tracker").fetchone()
        self._must_be_ours(int(newest == self.generation))

    def history(self) -> list[dict[str, object]]:
        """The first document of every epoch, oldest first."""
        with _named(self.path):
            rows = self._database.execute("SELECT document FROM history ORDER BY number")
            return [document_of(self.path, text) for (text,) in rows]

    def close(self) -> None:
        """Close the file; nothing is lost, every write was durable when it returned."""
        self._database.close()

    def _must_be_ours(self, rows: int) -> None:
        if rows != 1:
            raise SupersededError(
                f"generation {self.generation} of the journal {self.path} has been taken over"
                " by a newer tracker"
            )


def make_state_dir(path: Path) -> Path:
    """Create `path` with mode 0700 if it is absent, and return it absolute.

    Raises:
        ConfigError: it cannot be made, is no directory, or others may write to it.
    """
    path = path.expanduser().absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"state directory {path}: {error.strerror or error}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"state directory {path} can be written by other users (mode {stat.S_IMODE(mode):o})",
            remedy=f"chmod 700 {path}, or give another directory",
        )
    return path


def remembered(state_dir: Path) -> Remembered | None:
    """Where the last tracker of `state_dir` served; None if there was none.

    Reads only: a `status` command must not take a generation.
    """
    path = state_dir / FILE_NAME
    if not path.exists():
        return None
    with _named(path), contextlib.closing(_connect(path, create=False)) as database:
        if not _has_tables(database):  # its tracker died before it could write a word
            return None
        _must_be_a_journal(path, database)
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
    with _named(path), contextlib.closing(_connect(path, create=False)) as database:
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


def _connect(path: Path, *, create: bool = True) -> sqlite3.Connection:
    if create:
        # Made here and not by sqlite, whose mode follows the umask; -wal and -shm inherit it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    database = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    database.execute("PRAGMA trusted_schema = OFF")  # what a file's own schema calls is its own
    return database


def _prepare(path: Path, database: sqlite3.Connection) -> None:
    """Create the tables in an empty file, or see that the file is a journal."""
    if _has_tables(database):
        _must_be_a_journal(path, database)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    with _transaction(database):
        if _has_tables(database):  # perhaps made by another tracker since the first look
            return
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {FORMAT}")
        for statement in _TABLES:
            database.execute(statement)


def _has_tables(database: sqlite3.Connection) -> bool:
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(tables)


def _must_be_a_journal(path: Path, database: sqlite3.Connection) -> None:
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise JournalError(f"{path} is a sqlite file, but not a journal of ftcomm")
    if version != FORMAT:
        raise JournalError(
            f"{path} has journal format {version}, this tracker reads format {FORMAT}",
            remedy="use the ftcomm version that wrote it, or another --state-dir",
        )
    (damage,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if damage != "ok":
        raise JournalError(f"journal {path} is damaged: {damage}")
    (rows,) = database.execute("SELECT count(*) FROM tracker").fetchone()
    if rows != 1:
        raise JournalError(f"journal {path} is damaged: it has {rows} rows for one tracker")


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # sqlite has undone it by itself if the disk is full
            database.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn sqlite's and the system's errors into one that names the file."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # damaged names come as no text at all
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        raise JournalError(
            f"journal {path}: {error}", remedy=MAKE_ROOM if full else None
        ) from error
    except OSError as error:
        remedy = MAKE_ROOM if error.errno in _NO_ROOM else None
        raise JournalError(f"journal {path}: {error.strerror or error}", remedy=remedy) from error


def _hex(value: object) -> dict[str, str]:
    """Bytes, marked as such."""
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} does not belong in a journal")
    return {"hex": value.hex()}


def _unhex(value: dict[str, object]) -> object:
    if value.keys() == {"hex"} and isinstance(value["hex"], str):
        return bytes.fromhex(value["hex"])
    return value
