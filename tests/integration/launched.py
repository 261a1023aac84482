"""Functions that the tests launch, in a module that workers can import."""

import functools
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import ftcomm
from ftcomm.testing import local_group


class DataError(Exception):
    """Wrong data; its constructor is not called with what `args` has."""

    def __init__(self, row: int, *, column: str) -> None:
        super().__init__(f"row {row}, column {column}")


def train(steps: int, *, mark: str = "", dying: int = 1) -> tuple[int, bytes]:
    """Rank and bytes of a model; with `mark` a rank is killed once, in its sixth step."""
    with ftcomm.init() as comm:
        version, weights = comm.load_checkpoint(default=np.zeros(100))
        for step in range(version, steps):
            if mark and step == 5 and comm.rank == dying:
                die_once(mark)
            weights = weights + comm.allreduce(np.sin(weights * (comm.rank + 1)) + step)
            comm.checkpoint(weights)
        sys.stdout.write(f"trained by {comm.rank}\n")
    return comm.rank, weights.tobytes()


def die_once(mark: str) -> None:
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def die_in_close(mark: str, *, when: str) -> int:
    """Return with an open communicator; rank 1 is killed once before or after it is closed."""
    comm = ftcomm.init()
    close, die = comm.close, functools.partial(die_once, mark)
    steps = (die, close) if when == "before" else (close, die)
    if comm.rank == 1:
        comm.close = lambda: [step() for step in steps]
    return int(comm.allreduce(comm.rank + 1))


def die_after_close(mark: str) -> int:
    with ftcomm.init() as comm:
        rank = comm.rank
    if rank == 1:
        die_once(mark)
    return rank


def fail(rank: int, error: Any) -> None:
    with ftcomm.init() as comm:
        comm.load_checkpoint(default=0)
        comm.barrier()
        if comm.rank == rank:
            raise error
        comm.barrier()


def fail_by_own_class() -> None:
    with ftcomm.init() as comm:
        if comm.rank == 1:
            raise DataError(3, column="x")
        comm.barrier()


def disagree() -> None:
    with ftcomm.init() as comm:
        comm.allreduce(np.zeros(comm.rank + 1))


def return_what_cannot_be_sent() -> Any:
    with ftcomm.init():
        return threading.Lock()


def never_join() -> int:
    return 3


def shown(name: str) -> str | None:
    with ftcomm.init():
        return os.environ.get(name)


def open_others() -> int:
    """A rank; other communicators are opened and closed beside that of the job."""
    comm = ftcomm.init()
    with local_group(2) as group:
        group.run(lambda other: other.barrier())
    with ftcomm.init("none", job="alone") as alone:
        alone.barrier()
    comm.barrier()
    return comm.rank
