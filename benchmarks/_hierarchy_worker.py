"""One rank of `hierarchy.py`: takes turns between algorithms, and prints what each cost."""

import json
import sys
import time
from pathlib import Path

import numpy as np

import ftcomm

DEVICE = "eth0"


def sent_bytes() -> int:
    """Count the bytes that left this host so far, headers of all layers included."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.strip().startswith(f"{DEVICE}:"))
    return int(line.partition(":")[2].split()[8])


def main() -> None:
    """Measure each algorithm once a round; the first round of all is for warmth."""
    nbytes, rounds, *algorithms = sys.argv[1:]
    with ftcomm.init() as comm:
        comm.load_checkpoint()
        x = np.random.default_rng(comm.rank).standard_normal(int(nbytes) // 4).astype(np.float32)
        for number in range(int(rounds) + 1):
            for algorithm in algorithms:
                comm.barrier()
                sent = sent_bytes()
                comm.barrier()  # nobody begins before all have looked at their host's count
                began = time.perf_counter()
                total = comm.allreduce(x, algorithm=algorithm)
                seconds = time.perf_counter() - began
                comm.barrier()
                line = {
                    "rank": comm.rank,
                    "algorithm": algorithm,
                    "seconds": seconds,
                    "sent": sent_bytes() - sent,
                    "sum": float(total.astype(np.float64).sum()),
                }
                if number:
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
