"""Programs that break the promise of a lazy checkpoint."""

from typing import Any

import numpy as np

from tests.conformance.recorder import Recorder


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


PROGRAMS = {"careless": careless, "odd_lazy": odd_lazy}
