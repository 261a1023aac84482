"""Job of a losing session: ``training VERSIONS PAUSE_S`` computes so many versions, and ends.

Sums of random numbers differ in their last bits if anything is added in another order, so the last
state shows it.  Each rank has a local state too.  The pauses give faults time to come: the run
without faults, which only shows what is right, makes none.
"""

import os
import sys
import threading
from pathlib import Path

import numpy as np

import ftcomm

SMALL, LARGE = 1_000, 50_000  # elements; recursive doubling and the ring
STEPS = 3  # small sums a version


def main() -> None:
    """Train from the newest checkpoint to the last version."""
    versions, pause_s = int(sys.argv[1]), float(sys.argv[2])
    has_faults = Path(os.environ["FTCOMM_HISTORY"]).parent.name.startswith("run-")
    pause = threading.Event()
    with ftcomm.init() as comm:
        version, state, local = comm.load_checkpoint(np.zeros(SMALL), np.zeros(1))
        while version < versions:
            state, local = _train(comm, version, state, local)
            version = comm.checkpoint(state, local)
            pause.wait(pause_s if has_faults else 0.0)


def _train(
    comm: ftcomm.Communicator, version: int, state: np.ndarray, local: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    for step in range(STEPS):
        numbers = np.random.default_rng([version, step, comm.rank])
        state = 0.5 * state + comm.allreduce(numbers.standard_normal(SMALL))
    large = comm.allreduce(np.random.default_rng([version, comm.rank]).standard_normal(LARGE))
    local = local + large[comm.rank]
    # What only one rank knows comes back by its local state alone.
    owners = comm.allgather(local)
    root = version % comm.world_size
    told = comm.broadcast(state[:1] if comm.rank == root else np.zeros(1), root)
    return state + large[:SMALL] + owners.sum() + told, local


if __name__ == "__main__":
    main()
