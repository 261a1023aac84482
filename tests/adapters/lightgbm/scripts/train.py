"""A small training that kills itself where it is told to.

    python train.py --kill 1.7.scatter3

The moments of a round: ``before`` it, ``gather0`` and so on as LightGBM calls an allgather,
``scatter0`` and so on as it calls a reduce_scatter, and ``after`` it.  In round -1 it makes the
Dataset: ``gather2`` has the bins.
"""

import argparse
import hashlib
import json
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

import ftcomm
import ftcomm.lightgbm
from ftcomm.lightgbm.network import BoostingNetwork

ROUNDS, ROWS = 20, 2000


class Kills:
    """SIGKILL for this process at a rank's round and moment, once each over all its restarts.

    At those of ``all`` it tells its number instead, and waits for the signal of the test.
    """

    def __init__(self, asked: list[str], rank: int) -> None:
        self._asked, self._rank = asked, rank
        self._counts: Counter[str] = Counter()
        self.round = -1

    def at(self, moment: str) -> None:
        if self._is_asked(str(self._rank), moment):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is_asked("all", moment):
            print("stands:", os.getpid(), flush=True)
            threading.Event().wait()

    def call(self, kind: str) -> None:
        self.at(f"{kind}{self._counts[kind]}")
        self._counts[kind] += 1

    def begin(self, index: int) -> None:
        self.round = index
        self._counts.clear()
        self.at("before")

    def _is_asked(self, rank: str, moment: str) -> bool:
        name = f"{rank}.{self.round}.{moment}"
        mark = Path(f"killed-{self._rank}.{self.round}.{moment}")
        if name not in self._asked or mark.exists():
            return False
        mark.touch()
        return True


def hook(kills: Kills) -> None:
    """Have LightGBM's functions and its callbacks die at the moments."""
    update, gather = lightgbm.Booster.update, BoostingNetwork._allgather
    scatter = BoostingNetwork._reduce_scatter

    def updating(booster: Any) -> Any:
        kills.begin(booster.num_trees() // booster.num_model_per_iteration())
        is_finished = update(booster)
        kills.at("after")
        return is_finished

    def gathering(network: BoostingNetwork, *arguments: Any) -> None:
        kills.call("gather")
        gather(network, *arguments)

    def scattering(network: BoostingNetwork, *arguments: Any) -> None:
        kills.call("scatter")
        scatter(network, *arguments)

    lightgbm.Booster.update = updating
    BoostingNetwork._allgather, BoostingNetwork._reduce_scatter = gathering, scattering


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", action="append", default=[], metavar="RANK.ROUND.MOMENT")
    parser.add_argument("--params", type=json.loads, default={})
    options = parser.parse_args()
    params = {"objective": "binary", "num_leaves": 15, "verbosity": -1, **options.params}
    with ftcomm.init() as comm:
        hook(Kills(options.kill, comm.rank))
        x = np.random.default_rng(comm.rank).normal(size=(ROWS, 8))
        x[:, 7] = np.round(3 * x[:, 7])
        y = np.digitize(x[:, 0] + x[:, 1] * x[:, 2], [0.0, 1.0][: params.get("num_class", 2) - 1])

        def make_dataset(comm: ftcomm.Communicator) -> lightgbm.Dataset:
            return lightgbm.Dataset(x, y, categorical_feature=[7])

        booster = ftcomm.lightgbm.train(params, make_dataset, ROUNDS)
        assert booster.current_iteration() == ROUNDS
    print("model", hashlib.sha256(booster.model_to_string().encode()).hexdigest())


if __name__ == "__main__":
    main()
