"""A training step by Lightning, the Trainer of Hugging Face and Accelerate, over ftcomm and gloo.

    python benchmarks/torch_frameworks.py
    python benchmarks/torch_frameworks.py -n 2 --frameworks lightning --quick --json

The same framework trains the same model with the same data set over ftcomm and, by its stock DDP,
over gloo.  The trainings are in the same processes, each in a thread of its own.  In each turn each
makes one step while the others wait, in an order that changes from turn to turn, so that the
machine's other load falls on all of them.  A step is that of the framework's own loop: from the
begin of a batch to that of the next one.  So it includes reading a batch.  ftcomm keeps a
checkpoint every 10 steps, and turns with one do not count.

The figure is the median of the ratios within the turns.  By default the Trainer has DDP find unused
parameters; a row more has gloo without that.  It needs the frameworks: pip install 'ftcomm[torch]'
lightning transformers accelerate.
"""

import argparse
import importlib.metadata
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
from torch_ddp import QUICK_TURNS, TURNS, WIDTHS, WORLD_SIZES

WORKERS = {  # by the name of the package
    "lightning": "_lightning_worker.py",
    "transformers": "_trainer_worker.py",
    "accelerate": "_accelerate_worker.py",
}


def measure(framework: str, ranks: int, width: int, turns: int) -> dict[str, Any]:
    """Return the result of rank 0 for a model of this width."""
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        tracker = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(ranks)]
        tracker += ["--max-restarts", "0", "--state-dir", f"{folder}/job", "--"]
        worker = [str(Path(__file__).with_name(WORKERS[framework])), str(width), str(turns), folder]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run(
            [*tracker, sys.executable, *worker],
            check=True,
            env={**os.environ, **threads, "HF_HUB_OFFLINE": "1"},
            stdout=sys.stderr,
        )
        figures: dict[str, Any] = json.loads((Path(folder) / "figures").read_text("utf-8"))
        return figures


def take(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then a line for each framework, number of ranks, size of gradients, and way."""
    frameworks = arguments.frameworks.split(",")
    versions = {name: importlib.metadata.version(name) for name in frameworks}
    lines: list[dict[str, Any]] = [
        {"machine": {**machine_facts(), **versions}, "quick": arguments.quick}
    ]
    turns = QUICK_TURNS if arguments.quick else TURNS
    world_sizes = [int(text) for text in arguments.world_sizes.split(",")]
    for framework, ranks, (size, width) in itertools.product(
        frameworks, world_sizes, WIDTHS.items()
    ):
        found = measure(framework, ranks, width, turns)
        lines += [
            {"framework": framework, "ranks": ranks, "gradients": size, "way": way, **facts}
            for way, facts in found.items()
        ]
    return lines


def as_table(lines: list[dict[str, Any]]) -> str:
    """One row for each way."""
    head = ["framework", "ranks", "gradients", "way", "ms a step", "of gloo's", "quartiles"]
    rows = [
        [
            line["framework"], str(line["ranks"]), line["gradients"], line["way"],
            f"{line['ms']:.2f}", f"{line['ratio']:.2f}", f"{line['low']:.2f} to {line['high']:.2f}",
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
    parser.add_argument(
        "-n",
        "--world-sizes",
        default=",".join(map(str, WORLD_SIZES)),
        help="[default: %(default)s]",
    )
    parser.add_argument(
        "--frameworks", default=",".join(WORKERS), help="packages [default: %(default)s]"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TURNS} turns")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    arguments = parser.parse_args()
    lines = take(arguments)
    print("\n".join(map(json.dumps, lines)) if arguments.json else as_table(lines))


if __name__ == "__main__":
    main()
