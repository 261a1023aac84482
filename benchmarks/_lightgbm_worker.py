"""Rank of `lightgbm_training.py`: each round of a training, by LightGBM's sockets and by ftcomm.

python _lightgbm_worker.py 3500 50 15001,15002 figures
"""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

import ftcomm
import ftcomm.lightgbm
from ftcomm.lightgbm import parameters

COLUMNS = 28  # as the data of the Higgs boson have
PARAMS = {"objective": "binary", "num_leaves": 31, "verbosity": -1}
WARM_UP = 2  # rounds


def by_sockets(rank: int, ports: list[int], make: Callable[[], Any]) -> Any:
    """A Booster in LightGBM's own network of this thread."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    params = {
        **parameters.checked(PARAMS, len(ports)),
        "machines": addresses,
        "local_listen_port": ports[rank],
    }
    return lightgbm.Booster(params, make())


def seconds_of(work: Callable[[], Any]) -> float:
    """The time that some work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Make each round by both; rank 0 writes the seconds of each."""
    rows, rounds = int(sys.argv[1]), int(sys.argv[2])
    ports = [int(port) for port in sys.argv[3].split(",")]
    own: list[float] = []
    ours: list[float] = []
    with ftcomm.init() as comm, ThreadPoolExecutor(1) as thread:  # a network is of one thread
        x = np.random.default_rng(comm.rank).normal(size=(rows, COLUMNS)).astype(np.float32)
        y = x[:, 0] + x[:, 1] * x[:, 2] + x[:, 3] > 0

        def make() -> Any:
            return lightgbm.Dataset(x, y)

        sockets = thread.submit(by_sockets, comm.rank, ports, make).result()
        update, resumed = lightgbm.Booster.update, 0.0

        def in_turn(booster: Any) -> Any:
            """End ftcomm's round before, make one by sockets, and begin ftcomm's next one."""
            nonlocal resumed
            ours.append(time.perf_counter() - resumed)
            own.append(thread.submit(seconds_of, partial(update, sockets)).result())
            resumed = time.perf_counter()
            return update(booster)

        lightgbm.Booster.update = in_turn
        booster = ftcomm.lightgbm.train(PARAMS, lambda _: make(), rounds + 1)
        both = [each.model_to_string().partition("\nparameters:")[0] for each in (booster, sockets)]
        assert both[0] == both[1]
    if comm.rank == 0:
        times = {"own": own[:-1], "ftcomm": ours[1:]}
        found = {way: each[WARM_UP:] for way, each in times.items()}
        Path(sys.argv[4]).write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
