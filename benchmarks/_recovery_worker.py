"""One rank of `recovery.py`: small collectives as fast as they go, and what a fault cost here."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import ftcomm

CALLS = 20  # collectives of one version; the fault is in the middle
ELEMENTS = 256
KILL_AT = 10  # as the faults of `recovery.py`


def is_to_die(comm: ftcomm.Communicator, folder: Path, kills: int) -> bool:
    """True if it is this rank's turn in this version, and nobody has died in it."""
    turn = 1 <= comm.version <= kills and comm.rank == (comm.version - 1) % comm.world_size
    return turn and not (folder / f"killed-{comm.version}").exists()


def await_spare(folder: Path, version: int) -> None:
    """Return when `status` shows that a spare holds this version."""
    command = [sys.executable, "-m", "ftcomm_tracker", "status", "--state-dir", str(folder)]
    while True:
        status = json.loads(subprocess.check_output([*command, "--json"]))
        if any(row["version"] >= version for row in status["spares"]):
            return


def die_once(comm: ftcomm.Communicator, folder: Path, kills: int) -> None:
    """Kill this process if it is its turn."""
    if is_to_die(comm, folder, kills):
        (folder / f"killed-{comm.version}").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def one_version(comm: ftcomm.Communicator, log: Path, kills: int) -> None:
    """Make a version's calls; note the time lost where the epoch changed between two of them."""
    if is_to_die(comm, log.parent, kills):  # before the first call, which all wait for
        await_spare(log.parent, comm.version)
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
    parser.add_argument("--state-bytes", type=int, default=0)
    arguments = parser.parse_args()
    with ftcomm.init() as comm:
        version, state = comm.load_checkpoint(np.zeros(arguments.state_bytes, np.uint8))
        for _ in range(version, arguments.versions):
            one_version(comm, arguments.out / f"{comm.worker_id}.jsonl", arguments.kills)
            comm.checkpoint(state)
            time.sleep(arguments.pause)  # here, so that a restarted worker does not begin with it


if __name__ == "__main__":
    main()
