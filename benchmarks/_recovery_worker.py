"""One rank of `recovery.py`: small collectives as fast as they go, and what a fault cost here."""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import numpy as np

import ftcomm

CALLS = 20  # collectives of one version; the fault is in the middle
ELEMENTS = 256
KILL_AT = 10  # as the faults of `recovery.py`


def die_once(comm: ftcomm.Communicator, folder: Path, kills: int) -> None:
    """Kill this process if it is this rank's turn in this version, and nobody has died in it."""
    if 1 <= comm.version <= kills and comm.rank == (comm.version - 1) % comm.world_size:
        mark = folder / f"killed-{comm.version}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def one_version(comm: ftcomm.Communicator, log: Path, kills: int) -> None:
    """Make a version's calls; note the time lost where the epoch changed between two of them."""
    operand = np.ones(ELEMENTS, np.float32)
    epoch, last = comm.epoch, 0.0
    for call in range(CALLS):
        if call == KILL_AT:
            die_once(comm, log.parent, kills)
        result = comm.allreduce(operand)
        now = time.monotonic()
        if result[0] != comm.world_size:
            raise AssertionError("allreduce gave a wrong sum")
        if call and comm.epoch != epoch:
            line = {"version": comm.version, "lost_ms": (now - last) * 1000}
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")
        epoch, last = comm.epoch, now


def main() -> None:
    """Run all versions, with a pause after each so that the faults are apart."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--versions", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True, help="seconds")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=0, help="so many versions lose a worker")
    arguments = parser.parse_args()
    with ftcomm.init() as comm:
        version, _ = comm.load_checkpoint(default=None)
        for _ in range(version, arguments.versions):
            one_version(comm, arguments.out / f"{comm.worker_id}.jsonl", arguments.kills)
            comm.checkpoint(None)
            time.sleep(arguments.pause)  # here, so that a restarted worker does not begin with it


if __name__ == "__main__":
    main()
