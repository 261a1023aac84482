"""Open MPI through mpi4py, over TCP alone."""

import importlib
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from _turns import Array, Call, take_turns

NAME = "Open MPI TCP"


def missing() -> str | None:
    """None where mpi4py and Open MPI's launcher are installed."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    return None if shutil.which("mpirun") else "mpirun is not installed"


def commands(world_size: int, folder: Path) -> list[list[str]]:
    """Open MPI's own launcher."""
    del folder
    return [launcher(world_size, "tcp,self")]


def launcher(world_size: int, transports: str) -> list[str]:
    """One job of Open MPI over these byte transfer layers."""
    mpirun = ["mpirun", "-n", str(world_size), "--mca", "pml", "ob1", "--mca", "btl", transports]
    return [*mpirun, "--bind-to", "none", sys.executable, __file__]


def environment() -> dict[str, str]:
    """More ranks than processors, and root, are what a benchmark in a container has."""
    return {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def main() -> None:
    """Be one rank."""
    world: Any = importlib.import_module("mpi4py.MPI").COMM_WORLD

    def prepare(operand: Array) -> Call:
        out = np.empty_like(operand)

        def call() -> Array:
            world.Allreduce(operand, out)
            return out

        return call

    take_turns(world.Get_rank(), world.Get_size(), prepare)


if __name__ == "__main__":
    main()
