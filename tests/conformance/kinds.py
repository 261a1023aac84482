"""A training program that calls every kind of collective, each checked against plain numpy.

Results that differ per rank are written down per rank.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.conformance.recorder import Recorder

Array = np.ndarray[Any, Any]
Case = tuple[Any, Callable[[int], Any]]  # what the call returns here, and what each rank must get


def same(got: Any, wanted: Any, what: str) -> None:
    """Compare bit for bit, inside containers too.

    Raises:
        AssertionError: saying which kind gave what.
    """
    if isinstance(wanted, np.ndarray):
        assert isinstance(got, np.ndarray), what
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), what
        assert got.tobytes() == wanted.tobytes(), what
    elif isinstance(wanted, (list, tuple)):
        assert type(got) is type(wanted), what
        assert len(got) == len(wanted), what
        for one, other in zip(got, wanted, strict=True):
            same(one, other, what)
    elif isinstance(wanted, dict):
        assert list(got) == list(wanted), what
        same(list(got.values()), list(wanted.values()), what)
    else:
        assert (type(got), got) == (type(wanted), wanted), what


def rows_of(rank: int, step: int) -> Array:
    """As many rows as the rank's number and the step say, none at all among them."""
    count = (3 * rank + step) % 5
    return np.full((count, 3), 10.0 * rank + step) + np.arange(3)


def thing_of(rank: int, step: int) -> dict[str, Any]:
    """An object with something of everything in it."""
    return {"rank": rank, "w": np.arange(rank + step), "t": (1.5, None, [b"x", "ü", 1 << 70])}


class _Kinds:
    """One rank's calls at one step, each with what every rank must get."""

    def __init__(self, record: Recorder, step: int) -> None:
        self.comm = record.comm
        self.rank, self.size = record.comm.rank, record.comm.world_size
        self.step = step
        self.root = step % self.size
        self.ranks = range(self.size)

    def allgatherv(self) -> Case:
        """Rows of all."""
        rows = [rows_of(rank, self.step) for rank in self.ranks]
        got = self.comm.allgatherv(rows_of(self.rank, self.step))
        return got, lambda _: np.concatenate(rows)

    def scatter_array(self) -> Case:
        """One element for each."""
        parts = np.arange(self.size * 6, dtype=np.int32).reshape(self.size, 2, 3) + self.step
        got = self.comm.scatter(parts if self.rank == self.root else None, self.root)
        return got, lambda rank: parts[rank]

    def scatter_list(self) -> Case:
        """Parts of different lengths."""
        parts = np.array_split(np.arange(self.size * 2 + 1) / 3 + self.step, self.size)
        got = self.comm.scatter(parts if self.rank == self.root else None, self.root)
        return got, lambda rank: parts[rank]

    def broadcast_object(self) -> Case:
        """The root's object."""
        own = thing_of(self.rank, self.step)
        got = self.comm.broadcast_object(own if self.rank == self.root else None, self.root)
        return got, lambda _: thing_of(self.root, self.step)

    def allgather_object(self) -> Case:
        """Objects of all, of different sizes."""
        got = self.comm.allgather_object(thing_of(self.rank, self.step))
        return got, lambda _: [thing_of(rank, self.step) for rank in self.ranks]

    def reduce(self) -> Case:
        """The sum for the root."""
        got = self.comm.reduce(np.full(5, 1 + self.rank + self.step), "sum", self.root)
        total = np.full(5, sum(1 + rank + self.step for rank in self.ranks))
        return got, lambda rank: total if rank == self.root else None

    def gather(self) -> Case:
        """A stack for the root."""
        got = self.comm.gather(np.full(2, self.rank * 1.5), self.root)
        stack = np.stack([np.full(2, rank * 1.5) for rank in self.ranks])
        return got, lambda rank: stack if rank == self.root else None

    def gatherv(self) -> Case:
        """Rows for the root."""
        rows = [rows_of(rank, self.step) for rank in self.ranks]
        got = self.comm.gatherv(rows_of(self.rank, self.step), self.root)
        return got, lambda rank: np.concatenate(rows) if rank == self.root else None


KINDS = (
    "allgatherv",
    "scatter_array",
    "scatter_list",
    "broadcast_object",
    "allgather_object",
    "reduce",
    "gather",
    "gatherv",
)


def every_kind(record: Recorder) -> Any:
    """Each version calls each kind once; version 1 is where tests kill."""
    comm = record.comm
    first, total = record.load(0.0)
    for version in range(first, 2):
        for number, name in enumerate(KINDS):
            kinds = _Kinds(record, version * len(KINDS) + number)
            place = f"{comm.version}.{comm.seqno}@{comm.rank}"
            got, wanted = record.local(name, place, getattr(kinds, name))
            same(got, wanted(comm.rank), f"{name} on rank {comm.rank}")
            total += math.fsum(np.ravel(wanted(kinds.root)).tolist()) if number < 3 else 1.0
        total = float(comm.allreduce(total, "max"))
        assert record.checkpoint(total) == version + 1
    return total


PROGRAMS: dict[str, Callable[[Recorder], Any]] = {"every_kind": every_kind}
