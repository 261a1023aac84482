"""One rank of a library in `compare.py` and `between_hosts.py`: LIBRARY [RANK WORLD_SIZE STORE]."""

import functools
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from _turns import Array, Call, round_trip, take_turns

import ftcomm

TRACKER_LIMIT_S = 60  # of XGBoost's, after the ranks have ended


def of_ftcomm() -> None:
    """Have it all on: headers, signatures, the log, the copy into `out`."""
    with ftcomm.init() as comm:
        comm.load_checkpoint()

        def prepare(operand: Array, kind: str) -> Call:
            if kind == "send_recv":
                return round_trip(
                    comm.rank, operand, comm.send, lambda out, source: comm.recv(source, out=out)
                )
            if kind == "allreduce copy=False":
                return lambda: comm.allreduce(operand, copy=False)
            if kind == "reduce_scatter":
                part = np.empty(len(operand) // comm.world_size, np.float32)
                return lambda: comm.reduce_scatter(operand, out=part)
            out = np.empty_like(operand)
            if kind == "alltoall":
                return lambda: comm.alltoall(operand, out=out)
            return lambda: comm.allreduce(operand, out=out)

        take_turns(comm.rank, comm.world_size, prepare, lambda: comm.checkpoint(None))


def of_gloo(rank_text: str, size_text: str, store: str) -> None:
    """torch.distributed's gloo, over TCP; an allreduce is in place, as its API is."""
    rank, size = int(rank_text), int(size_text)
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size
    )

    def prepare(operand: Array, kind: str) -> Call:
        if kind == "send_recv":
            return round_trip(
                rank,
                operand,
                lambda given, to: distributed.send(torch.from_numpy(given), to),
                lambda out, source: distributed.recv(torch.from_numpy(out), source),
            )
        given = torch.from_numpy(operand)
        if kind == "allreduce":
            out, run = given, distributed.all_reduce
        elif kind == "alltoall":
            out = torch.empty(len(operand))
            run = functools.partial(distributed.all_to_all_single, input=given)
        else:
            out = torch.empty(len(operand) // size)
            run = functools.partial(distributed.reduce_scatter_tensor, input=given)

        def call() -> Array:
            run(out)
            return cast("Array", out.numpy())

        return call

    take_turns(rank, size, prepare)
    distributed.destroy_process_group()


def of_open_mpi() -> None:
    """Open MPI through mpi4py."""
    world: Any = importlib.import_module("mpi4py.MPI").COMM_WORLD
    size = world.Get_size()

    def prepare(operand: Array, kind: str) -> Call:
        if kind == "send_recv":
            return round_trip(world.Get_rank(), operand, world.Send, world.Recv)
        out = np.empty(len(operand) // (size if kind == "reduce_scatter" else 1), np.float32)
        run = {
            "allreduce": world.Allreduce,
            "alltoall": world.Alltoall,
            "reduce_scatter": world.Reduce_scatter_block,
        }[kind]

        def call() -> Array:
            run(operand, out)
            return out

        return call

    take_turns(world.Get_rank(), size, prepare)


def of_xgboost(size_text: str, task: str = "", settings: str = "") -> None:
    """XGBoost's collective, which came out of rabit; without a task its tracker with all ranks."""
    if not task:
        _xgboost_tracker(int(size_text))
        return
    collective: Any = importlib.import_module("xgboost.collective")

    def prepare(operand: Array, _kind: str) -> Call:
        return lambda: cast("Array", collective.allreduce(operand, collective.Op.SUM))

    with collective.CommunicatorContext(**json.loads(settings), dmlc_task_id=task):
        take_turns(collective.get_rank(), int(size_text), prepare)


def _xgboost_tracker(size: int) -> None:
    tracker: Any = importlib.import_module("xgboost.tracker").RabitTracker(
        n_workers=size, host_ip="127.0.0.1", sortby="task"
    )
    tracker.start()
    settings = json.dumps(tracker.worker_args())
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv[:2], str(size), str(rank), settings])
        for rank in range(size)
    ]
    statuses = [rank.wait() for rank in ranks]
    if any(statuses):
        raise SystemExit(1)
    tracker.wait_for(TRACKER_LIMIT_S)


def main() -> None:
    """Be one rank."""
    libraries: dict[str, Callable[..., None]] = {
        "ftcomm": of_ftcomm,
        "gloo": of_gloo,
        "Open MPI": of_open_mpi,
        "XGBoost": of_xgboost,
    }
    libraries[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
