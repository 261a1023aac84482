"""Allreduce of float32, ftcomm beside torch gloo, 4 B to 100 MB, medians of one run.

    python benchmarks/allreduce.py -n 2
    python benchmarks/allreduce.py -n 4 --sizes 8,1048576 --transport tcp --json

Everything of ftcomm is on: headers, signatures, the log, the lock, the copy into `out`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _machine import machine_facts

SIZES = (4, 1024, 16_384, 65_536, 262_144, 1_048_576, 10_000_000, 100_000_000)
WORKER = Path(__file__).with_name("_allreduce_worker.py")


def run_workers(world_size: int, sizes: str, transport: str) -> list[dict[str, Any]]:
    """Start the group under a tracker of its own; returns rank 0's lines."""
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        out = Path(folder, "results")
        worker = [sys.executable, str(WORKER), "--sizes", sizes, "--out", str(out)]
        worker += ["--store", str(Path(folder, "store"))]
        tracker = [sys.executable, "-m", "ftcomm_tracker.cli", "run", "-n", str(world_size), "--"]
        environment = {**os.environ, "FTCOMM_TRANSPORT": transport}
        subprocess.run(tracker + worker, check=True, env=environment, stdout=sys.stderr)
        return [json.loads(line) for line in out.read_text().splitlines()]


def table(results: list[dict[str, Any]]) -> str:
    """Columns for people."""
    rows = [f"{'bytes':>12} {'calls':>6} {'ftcomm us':>12} {'gloo us':>12} {'gloo/ftcomm':>12}"]
    for line in results:
        ours, theirs = line["ftcomm_us"], line["gloo_us"]
        beside = (
            f"{'-':>12} {'-':>12}" if theirs is None else f"{theirs:12.1f} {theirs / ours:12.1f}"
        )
        rows.append(f"{line['nbytes']:12,} {line['calls']:6} {ours:12.1f} {beside}")
    return "\n".join(rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", "--world-size", type=int, default=2)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, by commas")
    parser.add_argument("--transport", default="auto", help="auto or tcp; gloo always uses TCP")
    parser.add_argument("--json", action="store_true", help="one line per size, with the machine")
    arguments = parser.parse_args()
    options = {"world_size": arguments.world_size, "transport": arguments.transport}
    facts = options | machine_facts()
    results = run_workers(arguments.world_size, arguments.sizes, arguments.transport)
    if arguments.json:
        for line in results:
            print(json.dumps(facts | line))
        return
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(table(results))


if __name__ == "__main__":
    main()
