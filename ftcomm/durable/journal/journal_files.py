"""Journal files in the directory of one host.

::

    DIR/job-SERIES/attempt-3/rank-2.v17.e4.ftj

is the journal of rank 2 for version 17 in attempt 3, begun in epoch 4.  A rank has one owner in an
epoch, so no two processes write to one file.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from ftcomm.durable.file_calls import FILE_MODE, FOLDER_MODE
from ftcomm.durable.journal.journal_format import Head, JournalHeader, encode_header, encode_record
from ftcomm.durable.store import Buffer

_ATTEMPT = re.compile(r"attempt-(\d{1,10})")
_JOURNAL = re.compile(r"rank-(\d{1,7})\.v(\d{1,10})\.e(\d{1,10})\.ftj")
SMALL_BYTES = 1 << 16  # parts up to here are written in one call with others


class JournalFile:
    """An open journal, written by one process."""

    def __init__(self, folder: Path, header: JournalHeader) -> None:
        """Create it, and make its name durable.

        Raises:
            OSError: that is not possible, or it exists.
        """
        self.header = header
        series = folder / f"job-{quote(header.series, safe='')}"
        place = series / f"attempt-{header.attempt}"
        place.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        self._path = place / f"rank-{header.rank}.v{header.version}.e{header.first_epoch}.ftj"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path, flags, FILE_MODE)
        try:
            start, self._crc = encode_header(header)
            self._write(start)
            for each in (place, series, folder):
                _sync_folder(each)
        except OSError:
            self.close()
            raise

    def append(self, records: Iterable[tuple[Head, Buffer]]) -> None:
        """Append records and sync them.

        Raises:
            OSError: it is not done, or in part.
        """
        small = bytearray()
        for head, payload in records:
            for part in encode_record(head, payload, self._crc):
                if memoryview(part).nbytes <= SMALL_BYTES:
                    small += part
                else:
                    self._write(small)
                    small = bytearray()
                    self._write(part)
        self._write(small)
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file; it stays."""
        os.close(self._file)

    def _write(self, data: Buffer) -> None:
        left = memoryview(data).cast("B")
        while left:
            left = left[os.write(self._file, left) :]


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def journals_of(folder: Path, series: str, attempt: int, rank: int, version: int) -> list[Path]:
    """List the journals of a rank for a version, in the order in which they were begun.

    Raises:
        OSError: it is unclear which there are.
    """
    found = []
    for path in _entries(_place(folder, series) / f"attempt-{attempt}"):
        name = _JOURNAL.fullmatch(path.name)
        if name is not None and (int(name[1]), int(name[2])) == (rank, version):
            found.append((int(name[3]), path))
    return [path for _, path in sorted(found)]


def remove_attempts(folder: Path, series: str, last: int) -> None:
    """Remove what attempts up to `last` have left here."""
    for path in _known_entries(_place(folder, series)):
        name = _ATTEMPT.fullmatch(path.name)
        if name is not None and int(name[1]) <= last:
            shutil.rmtree(path, ignore_errors=True)


def remove_versions(folder: Path, series: str, attempt: int, before: int) -> None:
    """Remove this attempt's journals for versions before `before`, of all ranks."""
    for path in _known_entries(_place(folder, series) / f"attempt-{attempt}"):
        name = _JOURNAL.fullmatch(path.name)
        if name is not None and int(name[2]) < before:
            with contextlib.suppress(OSError):  # a worker beside this one may have been faster
                path.unlink()


def remove_series(folder: Path, series: str) -> None:
    """Remove all journals of a job that has finished."""
    shutil.rmtree(_place(folder, series), ignore_errors=True)


def _place(folder: Path, series: str) -> Path:
    return folder / f"job-{quote(series, safe='')}"


def _entries(folder: Path) -> list[Path]:
    """List a folder; it is empty if it does not exist, or is no directory.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _known_entries(folder: Path) -> list[Path]:
    """Likewise for what is to be removed: what cannot be read stays."""
    try:
        return _entries(folder)
    except OSError:
        return []
