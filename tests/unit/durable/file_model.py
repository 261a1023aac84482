"""A file system in memory that forgets what was not synced, as a machine does that loses power."""

import errno
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAX_SUBSETS = 8  # unsynced names of which every subset is tried; of more, prefixes alone


class PowerLostError(Exception):
    """The machine stops before the next call."""


@dataclass
class Inode:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass
class FileModel:
    """Implements `FileCalls`. Names and contents are durable once they were synced.

    Attributes:
        calls_left: before the power is lost.
    """

    folders: set[Path]
    names: dict[Path, Inode] = field(default_factory=dict)
    durable_folders: set[Path] = field(default_factory=set)
    durable_names: dict[Path, Inode] = field(default_factory=dict)
    calls_left: float = float("inf")
    calls: int = 0
    _open: dict[int, Inode] = field(default_factory=dict)

    def _count(self) -> None:
        if self.calls_left <= 0:
            raise PowerLostError
        self.calls_left -= 1
        self.calls += 1

    def _in_folder(self, path: Path) -> None:
        if path.parent not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))

    def make_folder(self, path: Path) -> None:
        self._count()
        self._in_folder(path)
        if path in self.folders or path in self.names:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        self.folders.add(path)

    def sync_folder(self, path: Path) -> None:
        self._count()
        self.durable_folders |= {each for each in self.folders if each.parent == path}
        for name in [n for n in self.durable_names if n.parent == path and n not in self.names]:
            del self.durable_names[name]
        self.durable_names |= {n: inode for n, inode in self.names.items() if n.parent == path}

    def create(self, path: Path) -> int:
        self._count()
        self._in_folder(path)
        if path in self.names:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        self.names[path] = Inode()
        file = len(self._open) + 3
        self._open[file] = self.names[path]
        return file

    def write(self, file: int, data: memoryview) -> int:
        self._count()
        self._open[file].content += data
        return len(data)

    def sync(self, file: int) -> None:
        self._count()
        self._open[file].durable = bytes(self._open[file].content)

    def close(self, file: int) -> None:
        self._open[file] = Inode()

    def name_new(self, old: Path, new: Path) -> None:
        self._count()
        self._in_folder(new)
        if new in self.names:
            raise FileExistsError(errno.EEXIST, "exists", str(new))
        self.names[new] = self.names[old]

    def remove(self, path: Path) -> None:
        self._count()
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        del self.names[path]

    def read_into(self, path: Path, offset: int, out: memoryview) -> int:
        self._must_be_there(path)
        part = self.names[path].content[offset : offset + len(out)]
        out[: len(part)] = part
        return len(part)

    def size(self, path: Path) -> int:
        if path in self.folders:
            return 0
        self._must_be_there(path)
        return len(self.names[path].content)

    def modified_at(self, path: Path) -> float:
        self._must_be_there(path)
        return 0.0

    def files(self, folder: Path) -> Iterator[tuple[str, int]]:
        if folder not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(folder))
        for path, inode in list(self.names.items()):
            if path.is_relative_to(folder):
                yield path.relative_to(folder).as_posix(), len(inode.content)

    def _must_be_there(self, path: Path) -> None:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))

    def after_power_loss(self) -> Iterator["FileModel"]:
        """Yield what may be on the disk: names kept or lost in any order, contents torn."""
        changed = [n for n in {**self.names, **self.durable_names} if self._differs(n)]
        new_folders = sorted(self.folders - self.durable_folders)
        pieces = [*new_folders, *changed]
        for kept in _subsets(pieces):
            for torn in (0.0, 0.5, 1.0):
                yield self._recovered(set(kept), torn)

    def _differs(self, name: Path) -> bool:
        return self.names.get(name) is not self.durable_names.get(name)

    def _recovered(self, kept: set[Path], torn: float) -> "FileModel":
        root = min(self.folders)
        folders = {root} | self.durable_folders | (self.folders & kept)
        names = dict(self.durable_names)
        for name in kept:
            if name in self.names:
                names[name] = self.names[name]
            else:
                names.pop(name, None)
        folders = {f for f in folders if all(p in folders for p in f.parents if p >= root)}
        copies: dict[int, Inode] = {}
        for inode in names.values():
            rest = inode.content[len(inode.durable) :]
            content = inode.durable + bytes(rest[: int(len(rest) * torn)])
            copies[id(inode)] = Inode(bytearray(content), content)
        whole = {n: copies[id(i)] for n, i in names.items() if n.parent in folders}
        return FileModel(set(folders), dict(whole), set(folders), dict(whole))


def _subsets(pieces: list[Path]) -> Iterator[tuple[Path, ...]]:
    if len(pieces) > MAX_SUBSETS:
        yield from (tuple(pieces[:count]) for count in range(len(pieces) + 1))
        return
    for count in range(len(pieces) + 1):
        yield from itertools.combinations(pieces, count)
