"""A program of small results for `kills`: a prelude of several calls, then versions of eight.

Every result goes into the state, so that one that is missing, run twice or another one shows in
the model.  There are no local states: any one member has all that the job needs.
"""

import argparse
import hashlib
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import ftcomm

WIDTH = 64
CALLS_A_VERSION = 8

Floats = np.ndarray[Any, np.dtype[np.float64]]


def share(comm: ftcomm.Communicator, seed: float) -> Floats:
    """This rank's input: sums of such numbers depend on the order of the operands."""
    return np.sin(seed + np.arange(WIDTH) * (comm.rank + 1))


def mixed(comm: ftcomm.Communicator, number: int, state: Floats) -> Floats:
    """One call of the `number`th kind, and the state with its result in it."""
    seed = float(state[0]) + number
    kind = number % 4
    if kind == 0:
        result = comm.allreduce(share(comm, seed))
    elif kind == 1:
        result = comm.broadcast(share(comm, seed), root=number % comm.world_size)
    elif kind == 2:
        result = comm.allgather(share(comm, seed)[:4]).reshape(-1)
    else:
        result = np.full(WIDTH, comm.allreduce(float(comm.rank) + seed))
    return np.cos(state + np.resize(result, WIDTH))


def main() -> None:
    """Run all versions, and let rank 0 say and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to rest after a call")
    parser.add_argument("--model", type=Path, required=True)
    options = parser.parse_args()
    with ftcomm.init() as comm:
        rest, first = threading.Event(), np.zeros(WIDTH)  # computing takes time, too
        for number in range(6):
            first = mixed(comm, number, first)
        version, state = comm.load_checkpoint(default=first)
        for _ in range(version, options.steps):
            for number in range(CALLS_A_VERSION):
                state = mixed(comm, number, np.asarray(state))
                rest.wait(options.pause)
            state = state + first
            comm.checkpoint(state)
        if comm.rank == 0:
            model = np.asarray(state).tobytes()
            half = options.model.with_suffix(".part")
            half.write_bytes(model)
            half.replace(options.model)
            sys.stdout.write(f"model {hashlib.sha256(model).hexdigest()}\n")


if __name__ == "__main__":
    main()
