"""One rank of `result_memory.py`: versions of results, and what all ranks hold behind each."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import ftcomm

ITEMSIZE = 4


def main() -> None:
    """Run the versions; rank 0 writes the sum of all ranks' memory at the start and in each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--smallest", type=int, required=True)
    parser.add_argument("--largest", type=int, required=True)
    parser.add_argument("--results", type=int, required=True)
    parser.add_argument("--versions", type=int, required=True)
    parser.add_argument("--view", action="store_true")
    options = parser.parse_args()
    x = np.ones(options.largest // ITEMSIZE, np.float32)
    held: list[int] = []
    newest: list[Any] = []  # a script holds its last result until it has the next one
    with ftcomm.init() as comm:
        comm.load_checkpoint()
        comm.barrier()
        held.append(held_by_all(comm))
        for version in range(options.versions):
            rng = np.random.default_rng(version)  # the same sizes on all ranks
            sizes = rng.integers(options.smallest, options.largest, options.results, endpoint=True)
            for size in sizes:
                newest[:] = [comm.allreduce(x[: int(size) // ITEMSIZE], copy=not options.view)]
            held.append(held_by_all(comm))
            comm.checkpoint(None)
        if comm.rank == 0:
            options.out.write_text(json.dumps(held))


def held_by_all(comm: ftcomm.Communicator) -> int:
    """Bytes of all ranks; what they share counts once."""
    return int(comm.allreduce(np.array([proportional_set_size()]))[0])


def proportional_set_size() -> int:
    """Bytes of this process, and its part of those that it shares with others."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/smaps_rollup has no line Pss")


if __name__ == "__main__":
    main()
