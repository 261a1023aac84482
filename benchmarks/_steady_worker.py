"""One rank that makes small collectives until it is told to stop, and notes when each completed."""

import json
import sys
import time
from pathlib import Path

import numpy as np

import ftcomm

ELEMENTS = 256
CALLS = 100  # of a version
PAUSE_S = 0.001  # leaves the processors to the others most of the time


def main() -> None:
    """Go on until the file `stop` is there; all ranks learn of it in the same collective."""
    folder = Path(sys.argv[1])
    completed = []
    with ftcomm.init() as comm:
        comm.load_checkpoint()
        stopping = False
        while not stopping:
            for _ in range(CALLS):
                stops = np.full(ELEMENTS, float((folder / "stop").exists()))
                stopping = bool(comm.allreduce(stops, op="max")[0])
                completed.append(time.monotonic())
                if stopping:
                    break
                time.sleep(PAUSE_S)
            comm.checkpoint(None)
    (folder / f"completed.{comm.worker_id}").write_text(json.dumps(completed))


if __name__ == "__main__":
    main()
