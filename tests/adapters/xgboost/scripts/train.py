"""A small training that kills itself where it is told to.

    python train.py --kill 1.7.inside

The moments of a round: ``joining`` XGBoost's group, in ``data``, ``before`` XGBoost begins with it,
``inside`` of it, and ``after`` it.  The first two are of the round for which a group forms: 0, or
the one that a process ran last, if another kill has broken its group.
"""

import argparse
import hashlib
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from xgboost import collective

import ftcomm
import ftcomm.xgboost

ROUNDS, ROWS = 20, 3000


class Kills:
    """SIGKILL for this process at a rank's round and moment, once each over all its restarts.

    At those of ``all`` it tells its number instead, and waits for the signal of the test.
    """

    def __init__(self, asked: list[str], rank: int) -> None:
        self._asked, self._rank = asked, rank
        self.round = 0

    def at(self, moment: str) -> None:
        if self._is_asked(moment):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is_asked(moment, "all"):
            print("stands:", os.getpid(), flush=True)
            threading.Event().wait()

    def inside(self) -> None:
        """Die when the caller is in a call of XGBoost's, which lets other threads run."""
        if self._is_asked("inside"):
            goes_on = threading.Event()

            def die() -> None:
                goes_on.wait()
                os.kill(os.getpid(), signal.SIGKILL)

            threading.Thread(target=die).start()
            goes_on.set()

    def _is_asked(self, moment: str, rank: str = "") -> bool:
        name = f"{rank or self._rank}.{self.round}.{moment}"
        mark = Path(f"killed-{self._rank}.{self.round}.{moment}")
        if name not in self._asked or mark.exists():
            return False
        mark.touch()
        return True


def hook(kills: Kills) -> None:
    """Have XGBoost's functions die at the moments."""
    join, update = collective.init, xgboost.Booster.update

    def joining(**options: Any) -> None:
        kills.at("joining")
        join(**options)

    def updating(booster: xgboost.Booster, data: xgboost.DMatrix, iteration: int) -> None:
        kills.round = iteration
        kills.at("before")
        kills.inside()
        update(booster, data, iteration)
        kills.at("after")

    collective.init, xgboost.Booster.update = joining, updating


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", action="append", default=[])
    parser.add_argument("--params", type=json.loads, default={})
    parser.add_argument("--quantile", action="store_true")
    options = parser.parse_args()
    params = {"objective": "binary:logistic", "nthread": 1, "max_depth": 4, **options.params}
    kind = xgboost.QuantileDMatrix if options.quantile else xgboost.DMatrix
    with ftcomm.init() as comm:
        kills = Kills(options.kill, comm.rank)
        hook(kills)
        x = np.random.default_rng(comm.rank).normal(size=(ROWS, 8))
        y = x[:, 0] + x[:, 1] * x[:, 2] > 0

        def make_dmatrix(comm: ftcomm.Communicator) -> xgboost.DMatrix:
            kills.at("data")
            return kind(x, y)

        booster = ftcomm.xgboost.train(params, make_dmatrix, ROUNDS)
        assert booster.num_boosted_rounds() == ROUNDS
        print("epoch", comm.epoch)
        print("model", hashlib.sha256(booster.save_raw("ubj")).hexdigest())


if __name__ == "__main__":
    main()
