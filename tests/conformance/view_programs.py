"""A program that tries to write to everything that it is given without a copy."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.conformance.recorder import Array, Recorder
from tests.helpers.writing import ways_to_write

LARGE = 200_000  # elements of 8 bytes: in several chunks
POOLED = 20_000
SHAPES = [(), (0,), (3,), (2, 3), (POOLED,), (LARGE,), (2, LARGE // 2)]


def prying(record: Recorder) -> Any:
    """Each call three times: the later ones go the fast path, or are replayed."""
    first, total = record.load(0.0)
    for version in range(first, 2):
        for shape in SHAPES:
            for again in range(3):
                x = np.full(shape, float(version + again))
                total += sum(_tried(record, what, call) for what, call in _calls(record, x))
        record.checkpoint(total)
    return total


def _calls(record: Recorder, x: Array) -> list[tuple[str, Callable[[], Array]]]:
    comm, rows = record.comm, np.atleast_1d(x)
    calls: list[tuple[str, Callable[[], Array]]] = [
        ("allreduce", lambda: comm.allreduce(x, copy=False)),
        ("iallreduce", lambda: comm.iallreduce(x, copy=False).wait()),
        ("broadcast", lambda: comm.broadcast(x, copy=False)),
    ]
    if x.size < LARGE:  # the others have one way for all sizes
        calls += [
            ("allgather", lambda: comm.allgather(x, copy=False)),
            ("allgatherv", lambda: comm.allgatherv(rows, copy=False)),
        ]
    return calls


def _tried(record: Recorder, what: str, call: Callable[[], Array]) -> float:
    got = record.call(what, call)
    assert ways_to_write(got) == [], what
    return float(got.sum())


PROGRAMS: dict[str, Callable[[Recorder], Any]] = {"prying": prying}
