"""Calls of the file system that the directory store makes; a test puts a model in their place."""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
# A file system without hard links, or one that does not let this user make them.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EACCES)


class FileCalls(Protocol):
    """Calls that the directory store makes of a file system; every method raises OSError."""

    def make_folder(self, path: Path) -> None:
        """Create a folder; FileExistsError if there is something."""

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""

    def create(self, path: Path) -> int:
        """Create a file and return a descriptor to write to it; FileExistsError if it exists."""

    def write(self, file: int, data: memoryview) -> int:
        """Write some of `data`; return how much."""

    def sync(self, file: int) -> None:
        """Make the content of a file durable."""

    def close(self, file: int) -> None:
        """Close a descriptor."""

    def name_new(self, old: Path, new: Path) -> None:
        """Give the file `old` the name `new`; FileExistsError if there is one.

        Afterwards `old` may or may not be a name of it.
        """

    def remove(self, path: Path) -> None:
        """Remove the name of a file; FileNotFoundError if there is none."""

    def read_into(self, path: Path, offset: int, out: memoryview) -> int:
        """Read bytes of a file into `out`; return how many there were."""

    def size(self, path: Path) -> int:
        """Size of a file in bytes."""

    def modified_at(self, path: Path) -> float:
        """Time of the last write to a file, in seconds by the file system's clock."""

    def files(self, folder: Path) -> Iterator[tuple[str, int]]:
        """Paths below `folder`, relative to it, of all files, with their sizes."""


class SystemFiles:
    """The calls of the operating system."""

    def make_folder(self, path: Path) -> None:
        """See `FileCalls`."""
        path.mkdir(FOLDER_MODE)

    def sync_folder(self, path: Path) -> None:
        """See `FileCalls`."""
        folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def create(self, path: Path) -> int:
        """See `FileCalls`."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)

    def write(self, file: int, data: memoryview) -> int:
        """See `FileCalls`."""
        return os.write(file, data)

    def sync(self, file: int) -> None:
        """See `FileCalls`."""
        os.fsync(file)

    def close(self, file: int) -> None:
        """See `FileCalls`."""
        os.close(file)

    def name_new(self, old: Path, new: Path) -> None:
        """See `FileCalls`: by a hard link, else by a rename that replaces nothing."""
        try:
            new.hardlink_to(old)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _rename_without_replacing(old, new)

    def remove(self, path: Path) -> None:
        """See `FileCalls`."""
        path.unlink()

    def read_into(self, path: Path, offset: int, out: memoryview) -> int:
        """See `FileCalls`."""
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            done = 0
            while done < len(out):
                count = file.readinto(out[done:])
                if not count:
                    break
                done += count
            return done

    def size(self, path: Path) -> int:
        """See `FileCalls`."""
        return path.stat().st_size

    def modified_at(self, path: Path) -> float:
        """See `FileCalls`."""
        return path.stat().st_mtime

    def files(self, folder: Path) -> Iterator[tuple[str, int]]:
        """See `FileCalls`."""
        for where, _, names in os.walk(folder, onerror=_raise):
            for name in names:
                path = Path(where, name)
                with contextlib.suppress(FileNotFoundError):  # another process has removed it
                    found = path.lstat()
                    if stat.S_ISREG(found.st_mode):
                        yield path.relative_to(folder).as_posix(), found.st_size


def _raise(error: OSError) -> None:
    raise error


def _rename_without_replacing(old: Path, new: Path) -> None:
    """Linux's renameat2 with RENAME_NOREPLACE, for file systems without hard links."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        raise OSError(errno.EOPNOTSUPP, "no way to name a file without replacing another") from None
    if rename(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), _RENAME_NOREPLACE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(old), None, str(new))
