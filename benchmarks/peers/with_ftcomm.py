"""ftcomm with everything on: headers, signatures, the log, the lock, the copy into `out`."""

import sys
from pathlib import Path

import numpy as np
from _turns import Array, Call, take_turns

import ftcomm

NAME = "ftcomm"


def missing() -> str | None:
    """Nothing: it is what this repository is."""
    return None


def commands(world_size: int, folder: Path) -> list[list[str]]:
    """The launcher with its tracker and all ranks."""
    return [launcher(world_size, folder)]


def launcher(world_size: int, folder: Path, *settings: str) -> list[str]:
    """One job of ftcomm; `settings` are options of its tracker."""
    tracker = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(world_size)]
    tracker += ["--state-dir", str(folder / "job"), *settings]
    return [*tracker, "--", sys.executable, __file__]


def environment() -> dict[str, str]:
    """Nothing more."""
    return {}


def main() -> None:
    """Be one rank."""
    with ftcomm.init() as comm:
        comm.load_checkpoint()

        def prepare(operand: Array) -> Call:
            out = np.empty_like(operand)
            return lambda: comm.allreduce(operand, out=out)

        # a checkpoint drops the log
        take_turns(comm.rank, comm.world_size, prepare, lambda: comm.checkpoint(None))


if __name__ == "__main__":
    main()
