"""Memory limit of this process: the machine's, or less under a control group.

A container's limit is not what the machine's size says.  A group is inside others, each with a
limit of its own, and the least one holds; in a container the outer ones may not be visible.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_MEMBERSHIP, _MOUNTS = "/proc/self/cgroup", "/proc/self/mountinfo"
# Of version 2; above `high` processes are slowed down until they hardly run.
_V2_FILES = ("memory.max", "memory.high")
_V1_FILES = ("memory.limit_in_bytes",)


class _Mount(NamedTuple):
    """Mount point of a hierarchy of control groups."""

    root: PurePosixPath  # the group that is seen there
    folder: PurePosixPath  # the place
    files: tuple[str, ...]  # that say limits in each group


def limit_files(membership: str, mounts: str) -> list[PurePosixPath]:
    """The files that may hold limits of this process, of its own group and of all around it.

    `membership` is what ``/proc/self/cgroup`` says, `mounts` what ``/proc/self/mountinfo`` says.
    """
    found = []
    groups = dict(_groups(membership))
    for mount in _hierarchies(mounts):
        group = groups.get(mount.files)
        if group is None:
            continue
        inside = PurePosixPath()
        if group.is_relative_to(mount.root) and ".." not in group.parts:
            inside = group.relative_to(mount.root)  # else it is outside of what is seen
        for part in (inside, *inside.parents):
            found += [mount.folder / part / name for name in mount.files]
    return found


def parse_limit(text: str) -> int | None:
    """Bytes, as a control group's file says them; None if it sets no limit."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def memory_limit() -> int:
    """Bytes of memory that this process may use, all others of its group included."""
    limits = [_machine_bytes()]
    with contextlib.suppress(OSError):  # a system without them
        for file in limit_files(Path(_MEMBERSHIP).read_text(), Path(_MOUNTS).read_text()):
            with contextlib.suppress(OSError):  # the outermost group has none
                limit = parse_limit(Path(file).read_text())
                limits += [] if limit is None else [limit]
    return min(limits)


def _machine_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # a system that does not say it
        return sys.maxsize


def _groups(membership: str) -> Iterator[tuple[tuple[str, ...], PurePosixPath]]:
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield _V2_FILES, PurePosixPath(path)
        elif "memory" in controllers.split(","):
            yield _V1_FILES, PurePosixPath(path)


def _hierarchies(mounts: str) -> Iterator[_Mount]:
    for line in mounts.splitlines():
        place, _, what = line.partition(" - ")
        fields, kinds = place.split(), what.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        root, folder = (PurePosixPath(_unescaped(field)) for field in fields[3:5])
        if kinds[0] == "cgroup2":
            yield _Mount(root, folder, _V2_FILES)
        elif kinds[0] == "cgroup" and "memory" in kinds[2].split(","):
            yield _Mount(root, folder, _V1_FILES)


def _unescaped(field: str) -> str:
    """A path as mountinfo writes it: space, tab, line end and backslash are octal numbers."""
    for code in (0o40, 0o11, 0o12, 0o134):
        field = field.replace(f"\\{code:03o}", chr(code))
    return field
