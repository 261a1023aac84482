"""A training of XGBoost by ftcomm and by XGBoost's own group, without failures.

    python benchmarks/xgboost_training.py
    python benchmarks/xgboost_training.py -n 2 --rows 7000 --turns 5

Both train in the same processes, one after the other, in an order that changes from turn to turn.
A turn is a job of its own.  The time is that of the whole call, forming the group included; on a
machine with other work that of rank 0's processor says more.  The figure is the median of the
ratios within the turns.  It needs xgboost.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _report import table

WORKER = Path(__file__).with_name("_xgboost_worker.py")


def turn(ranks: int, rows: int, rounds: int, order: str) -> dict[str, list[float]]:
    """Seconds of each way on rank 0, and seconds of its processor."""
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        tracker = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(ranks)]
        tracker += ["--max-restarts", "0", "--state-dir", f"{folder}/job", "--", sys.executable]
        subprocess.run(
            [*tracker, str(WORKER), str(rows // ranks), str(rounds), order, f"{folder}/figures"],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=sys.stderr,
        )
        seconds: dict[str, list[float]] = json.loads(Path(folder, "figures").read_text("utf-8"))
        return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--ranks", type=int, default=2, help="[default: %(default)s]")
    parser.add_argument("--rows", default="7000,500000", help="of all [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=30, help="[default: %(default)s]")
    parser.add_argument("--turns", type=int, default=11, help="[default: %(default)s]")
    arguments = parser.parse_args()
    lines = []
    for rows in map(int, arguments.rows.split(",")):
        orders = ["own,ftcomm", "ftcomm,own"] * arguments.turns
        turns = [
            turn(arguments.ranks, rows, arguments.rounds, order)
            for order in orders[: arguments.turns]
        ]
        for column, clock in enumerate(("passed", "of the processor")):
            ratios = [seconds["ftcomm"][column] / seconds["own"][column] for seconds in turns]
            low, middle, high = statistics.quantiles(ratios, n=4)
            own = statistics.median(seconds["own"][column] for seconds in turns)
            figures = f"{own:.3f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}"
            lines.append([str(rows), clock, *figures])
    print(table(["rows", "seconds", "XGBoost's own", "ftcomm's ratio", "quartiles"], lines))


if __name__ == "__main__":
    main()
