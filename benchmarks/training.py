"""Data-parallel SGD of a small network on 1, 2 and 4 ranks: samples a second, and time in calls.

    python benchmarks/training.py
    python benchmarks/training.py --quick --json

The batch is the same for any number of ranks, which share it out; the gradient has 0.5 MB.  All
ranks have one thread, so a rank gains by another only if there is a processor for it.  The models
of all ranks are compared, and those of different numbers of ranks are the same but for the order
in which float32 are added.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _machine import machine_facts
from _report import training_table
from _training_worker import BATCH

WORKER = Path(__file__).with_name("_training_worker.py")
WORLD_SIZES = (1, 2, 4)
STEPS, QUICK_STEPS = 400, 40
ALIKE = 1e-4  # of the models' mean weight


def train(world_size: int, steps: int) -> dict[str, Any]:
    """Return the result of rank 0."""
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        out = Path(folder) / "figures"
        tracker = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(world_size)]
        tracker += ["--state-dir", f"{folder}/job", "--"]
        subprocess.run(
            [*tracker, sys.executable, str(WORKER), str(steps), str(out)],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdout=sys.stderr,
        )
        figures: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return figures


def take(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then one line for each number of ranks."""
    steps = QUICK_STEPS if arguments.quick else STEPS
    lines: list[dict[str, Any]] = [{"machine": machine_facts(), "quick": arguments.quick}]
    models = []
    for world_size in WORLD_SIZES:
        print(f"training on {world_size} ranks", file=sys.stderr)
        found = train(world_size, steps)
        models.append(found["model"])
        lines.append(
            {
                "ranks": world_size,
                "samples_per_s": round(BATCH * steps / found["seconds"]),
                "communication": round(found["waited"] / found["seconds"], 3),
                "model": found["digest"][:16],
            }
        )
    if not all(math.isclose(model, models[0], rel_tol=ALIKE) for model in models):
        raise AssertionError(f"different numbers of ranks have trained different models: {models}")
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Measure and print."""
    arguments = parser().parse_args()
    lines = take(arguments)
    print("\n".join(map(json.dumps, lines)) if arguments.json else training_table(lines))


if __name__ == "__main__":
    main()
