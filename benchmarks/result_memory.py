"""Memory for results whose sizes differ from version to version, beside that of one size.

    python benchmarks/result_memory.py
    python benchmarks/result_memory.py -n 3 --smallest 8000000 --largest 12000000 --json

A job makes some results in each version. Their sizes are drawn anew in every version, or all are
the mean of the smallest and the largest. What is compared is the most that all ranks together hold
at the end of a version, in proportional set size: what ranks share counts once.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _machine import machine_facts
from _report import result_memory_table

WORKER = Path(__file__).with_name("_result_memory_worker.py")
TRANSPORTS = ("auto", "tcp")  # shared-memory results memory, and in each rank's own
MEGABYTE = 1_000_000
RESULTS, VERSIONS, QUICK_VERSIONS = 20, 10, 3


def measure(
    options: argparse.Namespace, transport: str, sizes: str, *, view: bool
) -> dict[str, Any]:
    """Run one job; returns its line of the results."""
    smallest, largest = options.smallest, options.largest
    versions = QUICK_VERSIONS if options.quick else options.versions
    if sizes == "fixed":
        smallest = largest = (smallest + largest) // 2
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        out = Path(folder, "held.json")
        worker = [sys.executable, str(WORKER), "--out", str(out), *["--view"] * view]
        worker += ["--smallest", str(smallest), "--largest", str(largest)]
        worker += ["--results", str(options.results), "--versions", str(versions)]
        tracker = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(options.n)]
        tracker += ["--transport", transport, "--state-dir", folder]
        subprocess.run([*tracker, "--", *worker], check=True, stdout=sys.stderr, stderr=sys.stderr)
        start, *held = json.loads(out.read_text())
    return {
        "world_size": options.n,
        "transport": transport,
        "copy": not view,
        "sizes": sizes,
        "start_mb": start // MEGABYTE,
        "most_mb": max(held) // MEGABYTE,
        "versions_mb": [nbytes // MEGABYTE for nbytes in held],
    }


def take(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then a line for each transport, kind of result and kind of sizes."""
    transports = TRANSPORTS if options.transport is None else (options.transport,)
    kinds = [(t, view) for t in transports for view in (False, True)]
    return [
        {"machine": machine_facts()},
        *(
            measure(options, transport, sizes, view=view)
            for transport, view in kinds
            for sizes in ("fixed", "varying")
        ),
    ]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=3, help="ranks")
    parser.add_argument("--smallest", type=int, default=8 * MEGABYTE, help="bytes of a result")
    parser.add_argument("--largest", type=int, default=12 * MEGABYTE, help="bytes of a result")
    parser.add_argument("--results", type=int, default=RESULTS, help="in a version")
    parser.add_argument("--versions", type=int, default=VERSIONS)
    parser.add_argument("--transport", help="one instead of both")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_VERSIONS} versions")
    parser.add_argument("--json", action="store_true", help="a line each instead of a table")
    return parser


def main() -> None:
    """Measure and print."""
    options = parser().parse_args()
    lines = take(options)
    print("\n".join(map(json.dumps, lines)) if options.json else result_memory_table(lines))


if __name__ == "__main__":
    main()
