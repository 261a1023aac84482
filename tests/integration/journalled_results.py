"""A look into the journals of results in a folder, for scripts of tests and for the tests."""

import os
from pathlib import Path

from ftcomm.durable.journal.journal_format import ResultHead, read_header, read_records
from ftcomm.durable.store import DamagedObjectError


def journals(folder: Path) -> list[Path]:
    """All journals there, in order of their names."""
    return sorted(folder.rglob("*.ftj"))


def results_in(path: Path) -> list[int]:
    """Sequence numbers of the whole results in a journal."""
    with path.open("rb") as file:
        try:
            _, crc = read_header(file, path.name)
        except DamagedObjectError:  # it is being made
            return []
        heads = [head for head, _ in read_records(file, crc, path.stat().st_size)]
    return [head.seqno for head in heads if isinstance(head, ResultHead)]


def await_results(folder: Path, rank: int, version: int, count: int) -> None:
    """Return once the journals of a rank for a version have so many results in all.

    A commit is 50 ms away at most, and nobody is told of it.
    """
    name = f"rank-{rank}.v{version}.*.ftj"
    while _count(folder, name) < count:
        os.sched_yield()


def _count(folder: Path, name: str) -> int:
    try:
        return sum(len(results_in(path)) for path in folder.rglob(name))
    except FileNotFoundError:  # a rank is just removing what an earlier attempt has left
        return 0
