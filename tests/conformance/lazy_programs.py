"""Programs whose lazy checkpoints take long to pack, or that break the promise of one."""

import time
from typing import Any

import numpy as np

from ftcomm.state.lazy import LazyState
from tests.conformance import training_programs
from tests.conformance.recorder import Recorder


def slowly_packed(record: Recorder) -> Any:
    """`lazy_recover` with a state that takes `packing_s` to pack, as one of many gigabytes does."""
    pack = LazyState.raw

    def packed_slowly(state: LazyState) -> bytes | None:
        end = time.monotonic() + record.spec["packing_s"]
        while time.monotonic() < end:
            state.packed_now()
        return pack(state)

    LazyState.raw = packed_slowly  # type: ignore[method-assign]  # in this process alone
    return training_programs.lazy_recover(record)


def careless(record: Recorder) -> Any:
    """Writes to what the first checkpoint holds, at once."""
    state = {"w": [np.zeros(8), np.ones(8)]}
    version, state = record.load(state)
    while version < 2:
        state["w"][0] = state["w"][0] + record.allreduce(np.ones(8))
        version = record.checkpoint(state, lazy=True)
        state["w"][1] += 1
        record.allreduce(np.ones(8))
    return None


def odd_lazy(record: Recorder) -> Any:
    """One rank checkpoints lazily, and the others do not."""
    record.load(0)
    record.checkpoint(1, lazy=record.comm.rank == record.spec["odd"])


PROGRAMS = {"careless": careless, "odd_lazy": odd_lazy, "slowly_packed": slowly_packed}
