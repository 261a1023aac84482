"""One rank that makes an allreduce for each line that it reads, and says how long it took."""

import sys
import time

import numpy as np

import ftcomm


def main() -> None:
    """Go on until standard input ends."""
    nbytes = int(sys.argv[1])
    with ftcomm.init() as comm:
        comm.load_checkpoint()
        operand = np.ones(nbytes // 4, np.float32)
        out = np.empty_like(operand)
        for _ in sys.stdin:
            comm.barrier()
            began = time.perf_counter()
            comm.allreduce(operand, out=out)
            seconds = time.perf_counter() - began
            if not (out == comm.world_size).all():
                raise AssertionError("allreduce gave a wrong sum")
            print(seconds, flush=True)
            comm.checkpoint(None)  # drops the log


if __name__ == "__main__":
    main()
