"""Programs whose ranks exchange through the segment of their host, unless faults need links."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.conformance.recorder import Array, Recorder, digest, same
from tests.conformance.training_programs import expected_allreduce

BLOCK = 33_000  # elements of 8 bytes: three chunks for two ranks
CALLS = 6  # of a version


def on_one_host(record: Recorder) -> Any:
    """Views of results are held over versions, and stay what they were; copies are written to."""
    comm = record.comm
    first, _ = record.load(None)
    held: list[tuple[Array, str]] = []
    for version in range(first, 3):
        for call in range(CALLS):
            got, x = _sum(record, version, call)
            held.append((got, digest(got)))
            small = x[:3].copy()
            same(record.allreduce(small, "max"), _all(record, version, call)[-1][:3], "max")
            same(record.allreduce(x, "mean", out=x), got / comm.world_size, "mean, in place")
            x[...] = -1
        record.checkpoint(None)
        assert [digest(view) for view, _ in held] == [sha for _, sha in held], "a view changed"
        del held[: CALLS // 2]
    return None


def _all(record: Recorder, version: int, call: int) -> list[Array]:
    """All ranks' operands."""
    size = record.comm.world_size
    elements = np.arange(size * BLOCK + 3, dtype=np.float64) + 0.5
    return [elements * (rank + 1) + np.sin(10 * version + call) for rank in range(size)]


def _sum(record: Recorder, version: int, call: int) -> tuple[Array, Array]:
    """A view of the sum, and this rank's operand."""
    inputs = _all(record, version, call)
    mine = inputs[record.comm.rank]
    got = record.allreduce(mine, copy=False)
    same(got, expected_allreduce(inputs, "sum", record.spec), "sum")
    return got, mine


PROGRAMS: dict[str, Callable[[Recorder], Any]] = {"on_one_host": on_one_host}
