"""A training of LightGBM by ftcomm and by LightGBM's own sockets, without failures.

    python benchmarks/lightgbm_training.py
    python benchmarks/lightgbm_training.py -n 2 --rows 7000 --turns 3

Both train the same model in the same processes.  Each round is made by the one, then by the other,
so that the machine's other load falls on both.  A round of ftcomm's includes its checkpoint.  A
turn is a job of its own.  The figure is the median of the ratios within the rounds of all turns.
It needs lightgbm.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from _report import table

WORKER = Path(__file__).with_name("_lightgbm_worker.py")
Rounds = dict[str, list[float]]


def turn(ranks: int, rows: int, rounds: int) -> Rounds:
    """Seconds of each round on rank 0, by each way."""
    with ExitStack() as sockets:
        found = [sockets.enter_context(socket.socket()) for _ in range(ranks)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        ports = ",".join(str(each.getsockname()[1]) for each in found)
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        tracker = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(ranks)]
        tracker += ["--max-restarts", "0", "--state-dir", f"{folder}/job", "--", sys.executable]
        subprocess.run(
            [*tracker, str(WORKER), str(rows // ranks), str(rounds), ports, f"{folder}/figures"],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=sys.stderr,
        )
        seconds: Rounds = json.loads(Path(folder, "figures").read_text("utf-8"))
        return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--ranks", type=int, default=2, help="[default: %(default)s]")
    parser.add_argument("--rows", default="7000,500000", help="of all [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=50, help="[default: %(default)s]")
    parser.add_argument("--turns", type=int, default=5, help="[default: %(default)s]")
    arguments = parser.parse_args()
    lines = []
    for rows in map(int, arguments.rows.split(",")):
        turns = [turn(arguments.ranks, rows, arguments.rounds) for _ in range(arguments.turns)]
        own, ours = ([time for each in turns for time in each[way]] for way in ("own", "ftcomm"))
        ratios = [mine / its for mine, its in zip(ours, own, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        milliseconds = f"{1e3 * statistics.median(own):.2f}"
        lines.append([str(rows), milliseconds, f"{middle:.2f}", f"{low:.2f} to {high:.2f}"])
    head = ["rows", "ms a round by LightGBM's sockets", "ftcomm's ratio", "quartiles"]
    print(table(head, lines))


if __name__ == "__main__":
    main()
