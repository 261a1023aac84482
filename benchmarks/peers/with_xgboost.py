"""XGBoost's collective, which came out of rabit; its tracker runs beside the ranks."""

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from _turns import Array, Call, take_turns

NAME = "XGBoost"
TRACKER_LIMIT_S = 60  # after the ranks have ended


def missing() -> str | None:
    """None where xgboost is installed."""
    return None if importlib.util.find_spec("xgboost") else "xgboost is not installed"


def commands(world_size: int, folder: Path) -> list[list[str]]:
    """The tracker, which starts the ranks."""
    del folder
    return [[sys.executable, __file__, str(world_size)]]


def environment() -> dict[str, str]:
    """Nothing more."""
    return {}


def serve(world_size: int) -> None:
    """Be the tracker."""
    tracker: Any = importlib.import_module("xgboost.tracker").RabitTracker(
        n_workers=world_size, host_ip="127.0.0.1", sortby="task"
    )
    tracker.start()
    arguments = json.dumps(tracker.worker_args())
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(world_size), str(rank), arguments])
        for rank in range(world_size)
    ]
    statuses = [rank.wait() for rank in ranks]
    if any(statuses):
        raise SystemExit(1)
    tracker.wait_for(TRACKER_LIMIT_S)


def main() -> None:
    """Be the tracker or one rank."""
    world_size = int(sys.argv[1])
    if len(sys.argv) == 2:
        serve(world_size)
        return
    collective: Any = importlib.import_module("xgboost.collective")

    def prepare(operand: Array) -> Call:
        return lambda: cast("Array", collective.allreduce(operand, collective.Op.SUM))

    arguments = json.loads(sys.argv[3])
    with collective.CommunicatorContext(**arguments, dmlc_task_id=sys.argv[2]):
        take_turns(collective.get_rank(), world_size, prepare)


if __name__ == "__main__":
    main()
