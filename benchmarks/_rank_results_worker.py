"""One rank of a library in `rank_results.py`: LIBRARY KIND [RANK WORLD_SIZE STORE]."""

import importlib
import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from _turns import Array, Call, Prepare, take_turns

import ftcomm


def of_ftcomm(kind: str) -> None:
    """ftcomm: the script's own array in, an array of the script's out."""
    with ftcomm.init() as comm:
        comm.load_checkpoint()
        size = comm.world_size

        def prepare(operand: Array) -> Call:
            out = np.empty_like(operand)
            if kind == "alltoall":
                return lambda: comm.alltoall(operand, out=out)
            if kind == "send_recv":
                return _round_trip(
                    comm.rank,
                    lambda to: comm.send(operand, to),
                    lambda source: comm.recv(source, out=out),
                    out,
                )
            part = np.empty(len(operand) // size, np.float32)
            return lambda: comm.reduce_scatter(operand, out=part)

        _serve(comm.rank, size, kind, prepare, lambda: comm.checkpoint(None))


def of_gloo(kind: str) -> None:
    """torch.distributed's gloo, over TCP."""
    rank, size, store = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size
    )

    def prepare(operand: Array) -> Call:
        given = torch.from_numpy(operand)
        if kind == "send_recv":
            back = np.empty_like(operand)
            return _round_trip(
                rank,
                lambda to: distributed.send(given, to),
                lambda source: distributed.recv(torch.from_numpy(back), source),
                back,
            )
        is_exchange = kind == "alltoall"
        out = torch.empty(len(operand) if is_exchange else len(operand) // size)
        run = distributed.all_to_all_single if is_exchange else distributed.reduce_scatter_tensor

        def call() -> Array:
            run(out, given)
            return cast("Array", out.numpy())

        return call

    _serve(rank, size, kind, prepare)
    distributed.destroy_process_group()


def of_open_mpi(kind: str) -> None:
    """Open MPI through mpi4py."""
    world: Any = importlib.import_module("mpi4py.MPI").COMM_WORLD
    size = world.Get_size()

    def prepare(operand: Array) -> Call:
        is_exchange = kind != "reduce_scatter"
        out = np.empty(len(operand) if is_exchange else len(operand) // size, np.float32)
        if kind == "send_recv":
            return _round_trip(
                world.Get_rank(),
                lambda to: world.Send(operand, to),
                lambda source: world.Recv(out, source),
                out,
            )
        run = world.Alltoall if is_exchange else world.Reduce_scatter_block

        def call() -> Array:
            run(operand, out)
            return out

        return call

    _serve(world.Get_rank(), size, kind, prepare)


def _round_trip(
    rank: int, send: Callable[[int], object], receive: Callable[[int], object], out: Array
) -> Call:
    """There and back between the ranks of each pair."""
    other = rank ^ 1

    def call() -> Array:
        if rank < other:
            send(other)
            receive(other)
        else:
            receive(other)
            send(other)
        return out

    return call


def _serve(
    rank: int, size: int, kind: str, prepare: Prepare, between: Callable[[], object] = lambda: None
) -> None:
    wanted = size if kind == "reduce_scatter" else 1
    take_turns(rank, wanted, prepare, between, divisor=size)


def main() -> None:
    """Be one rank."""
    libraries = {"ftcomm": of_ftcomm, "gloo": of_gloo, "mpi": of_open_mpi}
    libraries[sys.argv[1]](sys.argv[2])


if __name__ == "__main__":
    main()
