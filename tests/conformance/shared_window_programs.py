"""Programs whose results lie in a shared window."""

import mmap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ftcomm.control.hub import Hub
from ftcomm.transport.shared_window import SharedWindow
from tests.conformance.recorder import Array, Recorder, digest, same
from tests.conformance.training_programs import expected_allreduce

BLOCK = 33_000  # elements of 8 bytes: too many for one frame
CALLS = 6  # of a version
ARRIVAL_S = 60.0


def in_common(record: Recorder) -> Any:
    """Views of results are held over versions, and stay what they were; copies are written to.

    The first call of an epoch seeks shared window, without waiting; this waits, in the first epoch,
    unless the worker is `alone`.  The next call joins it, those behind that are made there.
    """
    comm, arrived = record.comm, _arrival()
    if record.spec.get("alone"):
        arrived.set()
    first, _ = record.load(None)
    held: list[tuple[Array, str]] = []
    for version in range(first, 3):
        for call in range(CALLS):
            got, x = _sum(record, version, call)
            held.append((got, digest(got)))
            place = {
                "call": call + CALLS * version,
                "epoch": comm.epoch,
                "common": is_shared_result(got),
            }
            record.events.write(kind="place", rank=comm.rank, **place)
            if call == version == 0 and comm.epoch == 1:  # in later ones it may replay
                assert arrived.wait(ARRIVAL_S), "no shared window"
            same(record.allreduce(x, "mean", out=x), got / comm.world_size, "mean, in place")
            x[...] = -1
        record.checkpoint(None)
        assert [digest(view) for view, _ in held] == [sha for _, sha in held], "a view changed"
        del held[: CALLS // 2]
    return None


def _sum(record: Recorder, version: int, call: int) -> tuple[Array, Array]:
    """A view of the sum, and this rank's operand."""
    comm = record.comm
    elements = np.arange(comm.world_size * BLOCK + 3, dtype=np.float64)
    inputs = [
        np.sin(elements) * (rank + 1) + 10 * version + call for rank in range(comm.world_size)
    ]
    got = record.allreduce(inputs[comm.rank], copy=False)
    same(got, expected_allreduce(inputs, "sum", "auto"), "sum")
    return got, inputs[comm.rank]


def _arrival() -> threading.Event:
    """Set when this worker has shared window."""
    arrived, add = threading.Event(), Hub.add_shared_window

    def add_and_tell(hub: Hub, memory: SharedWindow) -> bool:
        added = add(hub, memory)
        arrived.set()
        return added

    Hub.add_shared_window = add_and_tell  # type: ignore[method-assign]  # to see when it comes
    return arrived


def is_shared_result(array: Array) -> bool:
    """Tell whether the memory under an array is mapped, not this process's own."""
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.obj if isinstance(base, memoryview) else base.base
    return isinstance(base, mmap.mmap)


PROGRAMS: dict[str, Callable[[Recorder], Any]] = {"in_common": in_common}
