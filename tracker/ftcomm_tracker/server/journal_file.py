"""The journal's file: made whole, told from other files, and refused if it is not whole.

A file appears under its name only with its tables in it.  So one that is empty, or shorter than it
says, was cut short, and is refused as that.
"""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import ftcomm
from ftcomm.errors import ConfigError

APPLICATION_ID = 0x46544A31  # "FTJ1": tells our file from any other sqlite file
FORMAT = 2  # raised when tables or documents change; others are refused, never guessed at
WRITTEN_BY = {1: "0.1", 2: "0.2"}  # releases of ftcomm, by the format that they write and read
MAKE_ROOM = (
    "make room on its disk; then start `serve` again with the same --state-dir, since workers wait"
    " for it as long as FTCOMM_TRACKER_TIMEOUT says, or a job of `run` anew"
)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_HEADER_BYTES = 100  # of a sqlite file
BUSY_TIMEOUT_S = 5.0  # another tracker's write takes milliseconds; longer means a sick disk

_TABLES = (
    """CREATE TABLE tracker (
        id INTEGER PRIMARY KEY CHECK (id = 1), generation INTEGER NOT NULL,
        host TEXT NOT NULL, port INTEGER NOT NULL, token_file TEXT NOT NULL, document TEXT)""",
    "INSERT INTO tracker (id, generation, host, port, token_file) VALUES (1, 0, '', 0, '')",
)


class JournalError(ConfigError):
    """The journal cannot be read or written; the text names the file."""

    default_remedy = "give another --state-dir, or repair or remove the file"


def identity_of(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file that has the name now; None if none has."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def connect(path: Path) -> sqlite3.Connection:
    """Open the file, which must exist."""
    database = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    database.execute("PRAGMA trusted_schema = OFF")  # what a file's own schema calls is its own
    return database


def create(path: Path) -> None:
    """Make an empty journal; under its name it appears whole, or not at all."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)  # of a tracker that died here, with our number
    # Made here and not by sqlite, whose mode follows the umask; -wal and -shm inherit it.
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with contextlib.closing(connect(new)) as database:
            database.execute("PRAGMA synchronous = FULL")
            with transaction(database):
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {FORMAT}")
                for statement in _TABLES:
                    database.execute(statement)
        give_name(new, path)
    finally:
        new.unlink(missing_ok=True)


def give_name(new: Path, path: Path) -> None:
    """Let `new`, which is on the disk, have the name `path`, durably, unless that is taken."""
    try:
        os.link(new, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def prepare(path: Path, database: sqlite3.Connection) -> None:
    """See that the file is a journal, and write to it as the module's text says."""
    must_be_a_journal(path, database)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")


def must_not_be_empty(path: Path) -> None:
    """Refuse a file without a header before sqlite takes it for a new one, and its log away."""
    size = path.stat().st_size
    if size < _HEADER_BYTES:
        raise _cut_short(path, f"it has {size} bytes")


def _cut_short(path: Path, how: str) -> "JournalError":
    return JournalError(
        f"journal {path} is truncated: {how}",
        remedy="put the whole file back, with its -wal if there is one, from where it was copied;"
        " what it says about the job cannot be guessed. For a new job give another --state-dir",
    )


def _missing_pages(path: Path) -> str:
    """Describe the missing part of the file by its own header; empty if the size fits."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    size = path.stat().st_size
    if not header.startswith(b"SQLite format 3\0"):
        return ""
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page  # as the format says
    whole = page * int.from_bytes(header[28:32], "big")
    return f"it has {size} of {whole} bytes" if size < whole else ""


def must_be_a_journal(path: Path, database: sqlite3.Connection) -> None:
    """Refuse what is not a whole journal of this format.

    Raises:
        JournalError: the file is cut short, foreign, of another format, or damaged.
    """
    short = _missing_pages(path)
    if short and not path.with_name(f"{path.name}-wal").exists():  # else the rest is there
        raise _cut_short(path, short)
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise JournalError(f"{path} is a sqlite file, but not a journal of ftcomm")
    if version != FORMAT:
        raise _of_another_release(path, int(version))
    (damage,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if damage != "ok":
        raise JournalError(f"journal {path} is damaged: {damage}")
    (rows,) = database.execute("SELECT count(*) FROM tracker").fetchone()
    if rows != 1:
        raise JournalError(f"journal {path} is damaged: it has {rows} rows for one tracker")


def _of_another_release(path: Path, version: int) -> JournalError:
    oldest, newest = min(WRITTEN_BY), max(WRITTEN_BY)
    writer = f"ftcomm {WRITTEN_BY.get(version, '')}"
    if version > newest:
        writer = f"a release of ftcomm after {WRITTEN_BY[newest]}"
    elif version < oldest:
        writer = f"a release of ftcomm before {WRITTEN_BY[oldest]}"
    return JournalError(
        f"journal {path} has format {version}, which {writer} writes; this is ftcomm"
        f" {ftcomm.__version__}, which reads format {FORMAT}, of ftcomm {WRITTEN_BY[FORMAT]}",
        remedy=f"let {writer} end that job, or give another --state-dir for a new one",
    )


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Do all of a block or nothing of it."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # sqlite has undone it by itself if the disk is full
            database.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
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
