"""One rank of a library in `rank_results.py`: LIBRARY KIND [RANK WORLD_SIZE STORE]."""

import importlib
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from _turns import Array, Call, Prepare, take_turns

import ftcomm

MEET_LIMIT_S = 60.0
LOOK_S = 0.05  # between two looks for the other rank
SPINS = 100  # as many tries as ftcomm makes before it sleeps


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


def of_bare(kind: str) -> None:
    """A TCP connection for each pair, in pure Python, and nothing else."""
    rank, size, meeting = int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5])
    with _met(rank, meeting.with_name(f"pair-{rank // 2}")) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def prepare(operand: Array) -> Call:
            out = np.empty_like(operand)
            return _round_trip(
                rank,
                lambda _: connection.sendall(operand.data),
                lambda _: _fill(connection, out.data.cast("B")),
                out,
            )

        _serve(rank, size, kind, prepare)


def _met(rank: int, meeting: Path) -> socket.socket:
    """A connection to the other rank of the pair, which find each other by a file."""
    if rank % 2 == 0:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            whole = meeting.with_suffix(".new")
            whole.write_text(str(listener.getsockname()[1]))
            whole.rename(meeting)
            return listener.accept()[0]
    until = time.monotonic() + MEET_LIMIT_S
    while not meeting.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"rank {rank - 1} did not come within {MEET_LIMIT_S:g} s")
        time.sleep(LOOK_S)
    return socket.create_connection(("127.0.0.1", int(meeting.read_text())))


def _fill(connection: socket.socket, room: memoryview) -> None:
    """Read without sleeping, as long as a small message takes to come; then in one call."""
    got = 0
    for _ in range(SPINS):
        try:
            got += connection.recv_into(room[got:], 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            os.sched_yield()
        if got == len(room):
            return
    while got < len(room):
        got += connection.recv_into(room[got:], 0, socket.MSG_WAITALL)


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
    libraries = {"ftcomm": of_ftcomm, "gloo": of_gloo, "mpi": of_open_mpi, "bare": of_bare}
    libraries[sys.argv[1]](sys.argv[2])


if __name__ == "__main__":
    main()
