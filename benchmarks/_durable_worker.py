"""One rank of `durable_cost.py`: trains as it is told to, with a store that may be bad."""

import errno
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _turns import connected

import ftcomm
from ftcomm.durable.file_calls import SystemFiles

SLOW_BYTES_PER_S = 1e6
SLOW_WRITE_BYTES = 100_000
SIDE = 256  # of the matrix that a step multiplies with itself
PRODUCTS = 40  # a step: about 20 ms
GRADIENT = np.ones(65_536, np.float32)

_write = SystemFiles.write


def _slow(files: SystemFiles, file: int, data: memoryview) -> int:
    count = _write(files, file, data[:SLOW_WRITE_BYTES])
    time.sleep(count / SLOW_BYTES_PER_S)
    return count


def _failing(number: int) -> Callable[..., int]:
    def write(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return write


WRITES = {"slow": _slow, "errors": _failing(errno.EIO), "full": _failing(errno.ENOSPC)}


def turn(comm: ftcomm.Communicator, state: Any, steps: int) -> float:
    """Seconds of all steps behind one checkpoint."""
    matrix = np.full((SIDE, SIDE), 0.5, np.float32)
    comm.checkpoint(state)
    comm.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        for _ in range(PRODUCTS):
            matrix @ matrix
        comm.allreduce(GRADIENT)
    return time.perf_counter() - began


def main() -> None:
    """Serve orders until the run is over."""
    store, nbytes = sys.argv[1], int(sys.argv[2])
    if store in WRITES:
        setattr(SystemFiles, _write.__name__, WRITES[store])
    with (
        ftcomm.init() as comm,
        connected() as connection,
        connection.makefile("rw", encoding="utf-8") as orders,
    ):
        comm.load_checkpoint()
        state = np.ones(nbytes // 4, np.float32)
        answer: dict[str, Any] = {"rank": comm.rank}
        while True:
            orders.write(json.dumps(answer) + "\n")
            orders.flush()
            line = orders.readline()
            if not line:
                break
            seconds = turn(comm, state, json.loads(line)["steps"])
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            answer = {"seconds": seconds, "memory": peak}


if __name__ == "__main__":
    main()
