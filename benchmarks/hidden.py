"""Share of the communication that is hidden behind computing.

    python benchmarks/hidden.py
    python benchmarks/hidden.py -n 2 --nbytes 4000000 --layers 32 --json
    python benchmarks/hidden.py --compute away --quick

A step works for each of some layers and sums the layer's gradient over all ranks. It is taken in
three ways, in turns in one run: without communication (A), with `allreduce` (S), and with
`iallreduce` and all waits at the end (I).  Communication costs S - A, of which (S - I) / (S - A) is
hidden.  The last layer's sum has nothing behind it to hide in.

- matmul: products of matrices on the ranks' own processors, with one thread.  What a rank
  copies and adds for a sum takes a processor too: hiding it needs one that is free for each rank.
- away: the work is done elsewhere, on an accelerator say, and the processor is free: a sleep.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _machine import machine_facts
from _report import hidden_table

WORKER = Path(__file__).with_name("_hidden_worker.py")
COMPUTE = ("matmul", "away")
NBYTES, LAYERS, ROUNDS, QUICK_ROUNDS = 2_000_000, 16, 20, 4
RATIO = 1.5  # a layer's work takes as many times as long as its sum: all of it could be hidden
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


def measure(compute: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one job; returns its line of the results."""
    rounds = QUICK_ROUNDS if options.quick else options.rounds
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        out = Path(folder, "times.json")
        worker = [sys.executable, str(WORKER), "--out", str(out), "--compute", compute]
        worker += ["--layers", str(options.layers), "--nbytes", str(options.nbytes)]
        worker += ["--rounds", str(rounds), "--ratio", str(options.ratio)]
        tracker = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(options.n)]
        subprocess.run(
            [*tracker, "--state-dir", folder, "--", *worker],
            check=True,
            env={**os.environ, **ONE_THREAD},
            stdout=sys.stderr,
            stderr=sys.stderr,
        )
        times: dict[str, list[float]] = json.loads(out.read_text())
    alone, synchronous, nonblocking = (
        statistics.median(times[name]) * 1000 for name in ("alone", "sync", "async")
    )
    return {
        "world_size": options.n,
        "compute": compute,
        "nbytes": options.nbytes,
        "layers": options.layers,
        "alone_ms": round(alone, 2),
        "sync_ms": round(synchronous, 2),
        "async_ms": round(nonblocking, 2),
        "hidden": round((synchronous - nonblocking) / (synchronous - alone), 3),
        "rounds": rounds,
    }


def take(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then a line for each kind of work."""
    kinds = COMPUTE if options.compute is None else (options.compute,)
    return [{"machine": machine_facts()}, *(measure(compute, options) for compute in kinds)]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--nbytes", type=int, default=NBYTES, help="of one layer's gradient")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--ratio", type=float, default=RATIO, help="of work to communication")
    parser.add_argument("--compute", choices=COMPUTE, help="one kind of work instead of both")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds")
    parser.add_argument("--json", action="store_true", help="a line each instead of a table")
    return parser


def main() -> None:
    """Measure and print."""
    options = parser().parse_args()
    lines = take(options)
    print("\n".join(map(json.dumps, lines)) if options.json else hidden_table(lines))


if __name__ == "__main__":
    main()
