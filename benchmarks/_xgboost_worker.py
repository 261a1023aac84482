"""Rank of `xgboost_training.py`: the same training by XGBoost alone and by ftcomm, in turn.

python _xgboost_worker.py 3500 30 own,ftcomm figures
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

import ftcomm
import ftcomm.xgboost

COLUMNS = 28  # as the data of the Higgs boson have
PARAMS = {"objective": "binary:logistic", "nthread": 1, "verbosity": 0}


def by_xgboost(comm: ftcomm.Communicator, make: Callable[[Any], Any], rounds: int) -> Any:
    """A training in XGBoost's own group; ftcomm tells the address alone."""
    tracker = RabitTracker(comm.world_size, "127.0.0.1", sortby="task") if not comm.rank else None
    if tracker is not None:
        tracker.start()
    address = comm.broadcast_object(tracker and tracker.worker_args())
    with collective.CommunicatorContext(**address, dmlc_task_id=f"{comm.rank:08}"):
        booster = xgboost.train(PARAMS, make(comm), rounds)
    if tracker is not None:
        tracker.wait_for(10)
    return booster


def by_ftcomm(_: ftcomm.Communicator, make: Callable[[Any], Any], rounds: int) -> Any:
    """The same, which survives losses."""
    return ftcomm.xgboost.train(PARAMS, make, rounds, tracker_host="127.0.0.1")


WAYS = {"own": by_xgboost, "ftcomm": by_ftcomm}


def main() -> None:
    """Train by each way in the order of the arguments; rank 0 writes its seconds by two clocks."""
    rows, rounds, order, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    xgboost.set_config(verbosity=0)
    seconds, boosters = {}, []
    with ftcomm.init() as comm:
        x = np.random.default_rng(comm.rank).normal(size=(rows, COLUMNS)).astype(np.float32)
        y = x[:, 0] + x[:, 1] * x[:, 2] + x[:, 3] > 0
        for way in order.split(","):
            comm.barrier()
            begin = time.perf_counter(), time.process_time()
            booster = WAYS[way](comm, lambda _: xgboost.DMatrix(x, y, nthread=1), rounds)
            seconds[way] = time.perf_counter() - begin[0], time.process_time() - begin[1]
            boosters.append(booster.save_raw("ubj"))
        assert boosters[0] == boosters[1]
        if comm.rank == 0:
            Path(path).write_text(json.dumps(seconds), "utf-8")


if __name__ == "__main__":
    main()
