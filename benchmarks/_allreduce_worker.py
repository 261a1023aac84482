"""One rank of `allreduce.py`: ftcomm and torch gloo in turn, in the same processes.

Rank 0 writes one JSON line per size to the file that it is given.
"""

import argparse
import contextlib
import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ftcomm

BATCHES = 5  # the two libraries take turns, so that a busy moment of the machine meets both
BATCH_BYTES = 400_000_000  # results are logged until the next checkpoint
MOST_CALLS = 400

Allreduce = Callable[[Any], Any]


def calls_per_batch(nbytes: int) -> int:
    """Enough for a steady median, few enough for the log."""
    return max(3, min(MOST_CALLS, BATCH_BYTES // max(nbytes, 1) // 4))


def timed(call: Allreduce, operand: Any, calls: int) -> list[float]:
    """Seconds that each of `calls` calls took."""
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        call(operand)
        seconds.append(time.perf_counter() - began)
    return seconds


@contextlib.contextmanager
def gloo(rank: int, world_size: int, store: Path) -> Iterator[Any | None]:
    """The torch module with a gloo group of the same ranks, or None without torch."""
    try:
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
    except ImportError:
        yield None
        return
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size
    )
    try:
        yield torch
    finally:
        distributed.destroy_process_group()


def measure(comm: Any, torch: Any | None, nbytes: int) -> dict[str, Any]:
    """Median microseconds of both for one size; a wrong sum ends the benchmark."""
    operand = np.ones(nbytes // 4, np.float32)
    out = np.empty_like(operand)
    calls = calls_per_batch(nbytes)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(BATCHES):
        ours += timed(lambda array: comm.allreduce(array, out=out), operand, calls)
        if not (out == comm.world_size).all():
            raise AssertionError("allreduce gave a wrong sum")
        comm.checkpoint(None)  # drops the log, outside the timed part
        if torch is not None:
            theirs += timed(torch.distributed.all_reduce, torch.zeros(nbytes // 4), calls)
    return {
        "nbytes": nbytes,
        "calls": len(ours),
        "ftcomm_us": statistics.median(ours) * 1e6,
        "gloo_us": statistics.median(theirs) * 1e6 if theirs else None,
    }


def main() -> None:
    """Measure every size that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", required=True, help="bytes, separated by commas")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    arguments = parser.parse_args()
    with ftcomm.init() as comm:
        comm.load_checkpoint()
        with gloo(comm.rank, comm.world_size, arguments.store) as torch:
            for size in arguments.sizes.split(","):
                line = json.dumps(measure(comm, torch, int(size)))
                if comm.rank == 0:
                    with arguments.out.open("a") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    main()
