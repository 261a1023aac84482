"""Open MPI through mpi4py, over shared memory."""

from pathlib import Path

from peers import with_open_mpi

NAME = "Open MPI shared memory"
missing = with_open_mpi.missing
environment = with_open_mpi.environment


def commands(world_size: int, folder: Path) -> list[list[str]]:
    """As `with_open_mpi`, over the transport that it calls vader."""
    del folder
    return [with_open_mpi.launcher(world_size, "vader,self")]
