"""A store in a directory, on a disk of this host or one that all hosts share.

An object is written to a temporary file, synced, and only then named; the folder is synced before
the call returns.  So an object is there whole or not at all, whatever the machine does.  The final
name is never opened with O_EXCL and filled: a reader might take a record for torn and pass over it,
and its writer complete it later.
"""

import contextlib
import errno
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from ftcomm.durable.chain import PREFIX as CHAIN
from ftcomm.durable.file_calls import FileCalls, SystemFiles
from ftcomm.durable.store import (
    LEFTOVER_AGE_S,
    Buffer,
    MissingObjectError,
    StoredObject,
    StoreError,
    checked_name,
    is_name,
)
from ftcomm.errors import ConfigError

TEMPORARY = "tmp"  # folder of files that are being written
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class DirectoryStore:
    """A store in the folder `root`, which is made if it is not there."""

    def __init__(self, root: Path, files: FileCalls | None = None, *, create: bool = True) -> None:
        """Open the store; raises ConfigError.

        Args:
            root: an absolute path.
            files: calls of the file system; those of the operating system by default.
            create: False: `root` must be a store, and nothing is written by opening it.
        """
        self._root = root
        self._files = SystemFiles() if files is None else files
        self._durable: set[Path] = set()  # folders whose names are durable
        try:
            if create:
                self._make_folder(self._path(TEMPORARY))
            elif not self._is_folder(self._path(TEMPORARY)):
                raise ConfigError(
                    f"{root} is no checkpoint store: it has no folder {TEMPORARY!r}",
                    remedy="give the directory that --checkpoint named",
                )
        except OSError as error:
            raise ConfigError(
                f"the checkpoint store {root} cannot be used: {error.strerror or error}",
                remedy="give a directory that this user can write to",
            ) from None

    @property
    def url(self) -> str:
        """The folder's path."""
        return str(self._root)

    def put_new(self, name: str, data: Buffer) -> bool:
        """See `Store.put_new`."""
        with self._writing(name):
            return self._put(checked_name(name), [data])[1]

    def put(self, name: str, parts: Iterable[Buffer]) -> int:
        """See `Store.put`."""
        with self._writing(name):
            nbytes, is_new = self._put(checked_name(name), parts)
        if not is_new:
            raise StoreError(f"{self._root}: object {name} exists, and its name was to be new")
        return nbytes

    def get(self, name: str) -> bytes:
        """See `Store.get`."""
        with self._reading(name):
            path = self._path(checked_name(name))
            data = bytearray(self._files.size(path))
            count = self._files.read_into(path, 0, memoryview(data))
            return bytes(data[:count])

    def read_into(self, name: str, offset: int, out: memoryview) -> int:
        """See `Store.read_into`."""
        with self._reading(name):
            return self._files.read_into(self._path(checked_name(name)), offset, out)

    def list(self, prefix: str) -> list[StoredObject]:
        """See `Store.list`."""
        folder, _, start = prefix.rpartition("/")
        before = f"{folder}/" if folder else ""
        found = []
        try:
            with self._reading(prefix):
                for path, nbytes in self._files.files(self._path(folder)):
                    name = before + path
                    if not path.startswith(start) or name.startswith(f"{TEMPORARY}/"):
                        continue
                    if is_name(name):  # NFS has deleted files that are read still: .nfs and digits
                        found.append(StoredObject(name, nbytes))
        except MissingObjectError:  # the folder of nothing that was written yet
            return []
        return sorted(found, key=lambda each: each.name)

    def delete(self, name: str) -> None:
        """See `Store.delete`."""
        with self._writing(name), contextlib.suppress(FileNotFoundError):
            self._files.remove(self._path(checked_name(name)))

    def remove_leftovers(self) -> int:
        """See `Store.remove_leftovers`: temporary files without a write for an hour.

        The file system's own clock says how old they are, by a file that is made for that.  A
        writer that is slower than that fails, and writes the object again.
        """
        clock = self._path(f"{TEMPORARY}/{secrets.token_hex(16)}")
        removed = 0
        with self._writing(TEMPORARY):
            self._files.close(self._files.create(clock))
            now = self._files.modified_at(clock)
            self._files.remove(clock)
            for name, _ in self._files.files(self._path(TEMPORARY)):
                path = self._path(f"{TEMPORARY}/{name}")
                with contextlib.suppress(FileNotFoundError):  # its writer has ended, or another gc
                    if now - self._files.modified_at(path) > LEFTOVER_AGE_S:
                        self._files.remove(path)
                        removed += 1
        return removed

    # --- writing ------------------------------------------------------------------------------

    def _put(self, name: str, parts: Iterable[Buffer]) -> tuple[int, bool]:
        """Write an object; return its size, and False if another has the name."""
        files, folder = self._files, name.rpartition("/")[0]
        temporary = self._path(f"{TEMPORARY}/{secrets.token_hex(16)}")
        file = files.create(temporary)
        try:
            try:
                nbytes = sum(self._write(file, part) for part in parts)
                files.sync(file)
            finally:
                files.close(file)
            self._make_folder(self._path(folder))
            is_new = True
            try:
                files.name_new(temporary, self._path(name))
            except FileExistsError:
                is_new = False
            # Also for another's object: that writer may have died before it came to this.
            files.sync_folder(self._path(folder))
        except FileNotFoundError:  # somebody has removed the folder: the next try makes it again
            if not name.startswith(CHAIN):  # nobody can read a chain without its first records
                self._durable.difference_update(self._path(name).parents)
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):  # a rename has taken the name away
                files.remove(temporary)
        return nbytes, is_new

    def _write(self, file: int, part: Buffer) -> int:
        view = memoryview(part).cast("B")
        done = 0
        while done < len(view):
            done += self._files.write(file, view[done:])
        return done

    def _make_folder(self, path: Path) -> None:
        """Make a folder, and those above it to the root's own, durably.

        One that is there may have been made by another process just now, which may die before its
        name is durable: so the folder above is synced for each of them, once.
        """
        if path in self._durable:
            return
        if path != self._root:
            self._make_folder(path.parent)
        elif not self._is_folder(path.parent):
            self._make_above(path.parent)
        with contextlib.suppress(FileExistsError):
            self._files.make_folder(path)
        self._sync_name(path)
        self._durable.add(path)

    def _make_above(self, path: Path) -> None:
        if path.parent != path and not self._is_folder(path.parent):
            self._make_above(path.parent)
        with contextlib.suppress(FileExistsError):  # another process was quicker
            self._files.make_folder(path)
        self._files.sync_folder(path.parent)

    def _is_folder(self, path: Path) -> bool:
        try:
            self._files.size(path)
        except FileNotFoundError:
            return False
        return True

    def _sync_name(self, path: Path) -> None:
        try:
            self._files.sync_folder(path.parent)
        except PermissionError:
            # A folder above the root may not be readable. Then this user has not made the root.
            if path != self._root:
                raise

    def _path(self, name: str) -> Path:
        return self._root / name

    # --- errors -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failed(name, error) from error

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if not self._is_there():
                raise self._failed(name, error) from error
            raise MissingObjectError(f"{self._root} has no object {name}") from None
        except OSError as error:
            raise self._failed(name, error) from error

    def _is_there(self) -> bool:
        """False if the whole store has gone, as when a disk is not mounted any more."""
        try:
            self._files.size(self._path(TEMPORARY))
        except OSError:
            return False
        return True

    def _failed(self, name: str, error: OSError) -> StoreError:
        full = error.errno in _NO_ROOM
        remedy = "make room on its disk" if full else None
        return StoreError(f"{self._root}: {name}: {error.strerror or error}", remedy=remedy)
