"""Long job of a soak: ``worker STOP_FILE`` computes until that file exists.

Every result and every loaded state is compared with what plain arithmetic gives.
"""

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import ftcomm

SMALL, LARGE = 1_000, 100_000  # elements; recursive doubling and the ring
STEPS = 10  # collectives of each kind a version
PAUSE_S = 0.2  # a version, so that the soak's other processes have the machine

Array = np.ndarray[Any, Any]


def main() -> None:
    """Train until told to stop."""
    stop, pause = Path(sys.argv[1]), threading.Event()
    with ftcomm.init() as comm:
        ranks = comm.world_size * (comm.world_size + 1) / 2
        version, state = comm.load_checkpoint(default=np.zeros(SMALL))
        _same(state, _state_of(version, ranks), "state")
        while True:
            for step in range(STEPS):
                state = state + _step(comm, version + step, ranks)
            _same(state, _state_of(version + 1, ranks), "state")
            # Only what is executed asks for the file; who replays is given the earlier answer.
            over = comm.allreduce(np.int64(stop.exists()), "max")
            version = comm.checkpoint(state)
            if over:
                return
            pause.wait(PAUSE_S)


def _step(comm: ftcomm.Communicator, salt: int, ranks: float) -> Array:
    share = float(comm.rank + 1)
    got = comm.allreduce(np.full(SMALL, share))
    _same(got, np.full(SMALL, ranks), "small sum")
    large = comm.allreduce(np.full(LARGE, share * salt))
    _same(large, np.full(LARGE, ranks * salt), "large sum")
    root = salt % comm.world_size
    text = comm.broadcast(np.full(SMALL, salt if comm.rank == root else -1), root)
    _same(text, np.full(SMALL, salt), "broadcast")
    return got


def _state_of(version: int, ranks: float) -> Array:
    return np.full(SMALL, version * STEPS * ranks)


def _same(got: Array, wanted: Array, what: str) -> None:
    if got.dtype != wanted.dtype or got.tobytes() != wanted.tobytes():
        raise AssertionError(f"{what} differs from what arithmetic gives")


if __name__ == "__main__":
    main()
