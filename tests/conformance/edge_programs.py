"""Programs at the edges: payloads of odd sizes, and collectives that carry nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.conformance.recorder import Array, Recorder, same


def sizes(record: Recorder) -> Any:
    """One size of payload and state per version, in bytes; some are below the number of ranks."""
    comm, spec = record.comm, record.spec
    ranks = range(comm.world_size)

    def block(rank: int, version: int, size: int) -> Array:
        return ((np.arange(size) * (rank + 3) + version) % 251).astype(np.uint8)

    first, state = record.load(np.zeros(0, np.uint8))
    for version in range(first, len(spec["sizes"])):
        size = spec["sizes"][version]
        blocks = [block(rank, version, size) for rank in ranks]
        total = record.allreduce(blocks[comm.rank])
        same(total, np.add.reduce(blocks, dtype=np.uint8), "sum")
        root = version % comm.world_size
        state = record.broadcast(blocks[comm.rank], root)
        same(state, blocks[root], "broadcast")
        same(record.allgather(blocks[comm.rank]), np.stack(blocks), "gathered")
        record.checkpoint(state)
    return state


def empty(record: Recorder) -> Any:
    """After a broadcast a collective without an element, which all the same goes to everybody."""
    comm = record.comm
    record.load(None)
    for _ in range(2):
        record.allreduce(np.ones(4))
    got = record.broadcast(np.arange(4.0) * (comm.rank == 0), 0)
    same(got, np.arange(4.0), "broadcast")
    result = record.call(record.spec["how"], lambda: EMPTY[record.spec["how"]](record))
    assert result.size == 0
    total = record.allreduce(got)
    record.checkpoint(total)
    return total


def scribbler(record: Recorder) -> Any:
    """Overwrites every result as soon as it has it: it is the user's own; inputs stay as they were.

    The arrays are of both ways to send: in one piece, and in segments.
    """
    comm = record.comm
    first, _ = record.load(None)
    for version in range(first, 2):
        for step in range(4):
            x = np.arange((500.0, 20_000.0)[step % 2]) * (comm.rank + 1) + step
            before = x.copy()
            got = (
                record.allreduce(x),
                record.allgather(x),
                record.broadcast(x, version),
                record.allreduce(x, out=np.empty_like(x)),
            )
            same(x, before, "the input")
            for result in got:
                result[...] = -1
        record.checkpoint(None)
    return None


def in_place(record: Recorder) -> Any:
    """Results in the user's own arrays: beside the input, and over it."""
    comm = record.comm
    first, _ = record.load(None)
    for _ in range(first, 2):
        out = np.zeros(20_000)
        for step in range(3):
            x = np.arange(20_000.0) * (comm.rank + 1) + step
            before = x.copy()
            assert record.allreduce(x, out=out) is out
            same(x, before, "the input")
            assert record.allreduce(x, out=x) is x
            same(x, out, "in place")
        record.checkpoint(out)
    return None


EMPTY: dict[str, Callable[[Recorder], Array]] = {
    "allreduce": lambda record: record.comm.allreduce(np.zeros(0)),
    "allgather": lambda record: record.comm.allgather(np.zeros((0, 3))),
    "allgatherv": lambda record: record.comm.allgatherv(np.zeros((0, 3))),
}

PROGRAMS: dict[str, Callable[[Recorder], Any]] = {
    "sizes": sizes,
    "empty": empty,
    "in_place": in_place,
    "scribbler": scribbler,
}
