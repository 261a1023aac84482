"""A training step by ftcomm.torch.DDP and by the backend beside torch's over gloo, in turns.

    python benchmarks/torch_ddp.py
    python benchmarks/torch_ddp.py -n 2 --quick --json

Every way trains a model of its own in the same processes.  In each turn each way makes one step, in
an order that changes from turn to turn, so that the machine's other load falls on all of them.  The
figure is the median of the ratios within the turns.  It needs torch: pip install 'ftcomm[torch]'.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _machine import machine_facts
from _report import table

WORKER = Path(__file__).with_name("_torch_ddp_worker.py")
WORLD_SIZES = (2, 4)
WIDTHS = {"0.6 MB": 223, "20 MB": 1290}  # of three layers
TURNS, QUICK_TURNS = 200, 20


def measure(ranks: int, width: int, turns: int) -> dict[str, Any]:
    """Return the result of rank 0 for a model of this width."""
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        out = Path(folder) / "figures"
        tracker = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(ranks)]
        tracker += ["--state-dir", f"{folder}/job", "--"]
        worker = [str(WORKER), str(width), str(turns), str(Path(folder) / "gloo"), str(out)]
        subprocess.run(
            [*tracker, sys.executable, *worker],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdout=sys.stderr,
        )
        figures: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return figures


def take(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then one line for each number of ranks, size of the gradients, and way."""
    lines: list[dict[str, Any]] = [{"machine": machine_facts(), "quick": arguments.quick}]
    turns = QUICK_TURNS if arguments.quick else TURNS
    world_sizes = [int(text) for text in arguments.world_sizes.split(",")]
    for ranks, (size, width) in itertools.product(world_sizes, WIDTHS.items()):
        found = measure(ranks, width, turns)
        lines += [
            {"ranks": ranks, "gradients": size, "way": way, **facts} for way, facts in found.items()
        ]
    return lines


def as_table(lines: list[dict[str, Any]]) -> str:
    """One row for each way."""
    head = ["ranks", "gradients", "way", "ms a step", "of gloo's", "quartiles"]
    rows = [
        [
            str(line["ranks"]), line["gradients"], line["way"], f"{line['ms']:.2f}",
            f"{line['ratio']:.2f}", f"{line['low']:.2f} to {line['high']:.2f}",
        ]
        for line in lines
        if "way" in line
    ]  # fmt: skip
    return table(head, rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--world-sizes", default=",".join(map(str, WORLD_SIZES)))
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TURNS} turns")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    arguments = parser.parse_args()
    lines = take(arguments)
    print("\n".join(map(json.dumps, lines)) if arguments.json else as_table(lines))


if __name__ == "__main__":
    main()
