"""A program that says which results its rank holds."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ftcomm.recovery.archive.results import KEEP_BY_ALL_BYTES
from tests.conformance.recorder import Recorder

CALLS = 12
LARGE = KEEP_BY_ALL_BYTES // 8 + 1  # elements
SIZES = (8, LARGE, 100)  # in turn


def kept(record: Recorder) -> Any:
    """Sums of small and large arrays; from the second of a size on they go the fast path."""
    comm = record.comm
    record.load(None)
    for number in range(CALLS):
        record.allreduce(np.ones(SIZES[number % len(SIZES)]))
    engine: Any = comm._session.engine
    held = [at.seqno for at in engine._core.log.positions() if at.version == 0]
    record.events.write(kind="held", rank=comm.rank, seqnos=held)
    return None


PROGRAMS: dict[str, Callable[[Recorder], Any]] = {"kept": kept}
