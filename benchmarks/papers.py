"""The experiments of "Distributed TensorFlow with MPI" (Vishnu et al., 2016).

    python benchmarks/papers.py
    python benchmarks/papers.py --model dnn --ranks 1,2 --average gradients --kills 2

Rank 0 reads the samples and deals them out.  Each rank makes steps of SGD on its own samples, 32 in
a step.  The gradients are averaged in each step, or the weights after each epoch.  Speed-ups are of
samples a second, with checkpoints, and measured where each rank has a processor; all data goes over
TCP.  Beyond that, and for the paper's own data sets, of which the shapes alone are used, speed-ups
are those of the alpha-beta model.  Its alpha and beta are of two sizes of allreduce in the same
run, and the time of a step is that of one rank.

With `--kills K` each training runs once more, and K workers are killed one after another.  The exit
status is 1 if a model's SHA-256 is not that of the undisturbed run.
"""

import argparse
import functools
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alpha_beta
import numpy as np
from _machine import machine_facts
from _papers_networks import DENSE, EXPERIMENTS, MODELS, SHAPES
from _papers_worker import AVERAGES, BATCH, GRADIENTS
from _report import papers_table
from _schedules import Costs
from recovery import plan_faults

WORKER = Path(__file__).with_name("_papers_worker.py")
EPOCHS, QUICK_EPOCHS = 12, 3
CALLS, QUICK_CALLS = 15, 3
PAPER_RANKS = (1, 16, 32, 64)  # of the published speed-ups
# Over TCP, as beyond this machine's processors there are other machines.
LAUNCHER = [sys.executable, "-m", "ftcomm_tracker", "run", "--transport", "tcp"]
Line = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """An epoch on one rank: steps, seconds of each, and bytes of all weights."""

    steps: float
    step_s: float
    nbytes: int


def fit(allreduces: list[tuple[int, float]], processors: int) -> Costs:
    """Alpha and beta of bytes and seconds of two allreduces of two ranks; combining is in beta."""
    rows = [alpha_beta.counted(2, nbytes, processors)[:2] for nbytes, _ in allreduces]
    alpha, beta = np.linalg.solve(rows, [seconds for _, seconds in allreduces])
    return Costs(float(alpha), float(beta), 0.0)


def epoch_s(work: Work, ranks: int, average: str, costs: Costs) -> float:
    """Seconds of an epoch by the model: the steps are shared out, and each average is awaited."""
    steps = work.steps / ranks
    if ranks == 1:
        return steps * work.step_s
    counted = alpha_beta.counted(ranks, work.nbytes, processors=ranks)
    allreduce_s = float(np.dot(counted, [costs.alpha, costs.beta, costs.gamma]))
    return steps * work.step_s + (steps if average == GRADIENTS else 1.0) * allreduce_s


def speedup(work: Work, ranks: int, average: str, costs: Costs) -> float:
    """Speed-up over one rank by the model."""
    return round(epoch_s(work, 1, average, costs) / epoch_s(work, ranks, average, costs), 2)


def run_job(ranks: int, *words: str, faults: str = "") -> Line:
    """Run a job; returns what rank 0 found, and the workers that were killed."""
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        out, state = Path(folder) / "figures", Path(folder) / "job"
        job = ["-n", str(ranks), "--state-dir", str(state)]
        subprocess.run(
            [*LAUNCHER, *job, "--", sys.executable, str(WORKER), str(out), *words],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "FTCOMM_FAULTS": faults},
            stdout=sys.stderr,
        )
        figures: Line = json.loads(out.read_text(encoding="utf-8"))
        incidents = state / "incidents.jsonl"
        lines = incidents.read_text(encoding="utf-8").splitlines() if incidents.exists() else []
        return {**figures, "killed": [who for line in lines for who in json.loads(line)["victims"]]}


def train(name: str, average: str, arguments: argparse.Namespace, costs: Costs) -> Iterator[Line]:
    """One line for each number of ranks, and one for the kills."""
    epochs, kills = max(arguments.epochs, arguments.kills), arguments.kills
    common = {"experiment": name, "average": average}

    @functools.cache
    def found(ranks: int, faults: str = "") -> Line:
        print(f"{name}, {average}, {ranks} ranks, faults {faults or 'none'}", file=sys.stderr)
        return run_job(ranks, "train", name, average, str(epochs), faults=faults)

    one = Work(found(1)["steps"], found(1)["epoch_s"] / found(1)["steps"], found(1)["nbytes"])
    for ranks in sorted({1, *arguments.ranks}):
        line = {**common, "ranks": ranks, "by_model": speedup(one, ranks, average, costs)}
        if ranks <= arguments.processors:
            speed, alone = samples_per_s(found(ranks), ranks), samples_per_s(found(1), 1)
            line |= {"samples_per_s": round(speed), "measured": round(speed / alone, 2)}
            line |= {"right": found(ranks)["right"]}
        yield line
    if kills:
        ranks = max([2, *(n for n in arguments.ranks if n <= arguments.processors)])
        undisturbed = found(ranks)
        seqno = undisturbed["steps"] // 2 if average == GRADIENTS else 0
        faults = plan_faults("half_sent=kill", ranks, kills, first_version=0, seqno=seqno)
        killed = found(ranks, faults)
        line = {**common, "kills": kills, "killed": killed["killed"], "model": killed["model"]}
        yield line | {"undisturbed": undisturbed["model"]}


def samples_per_s(found: Line, ranks: int) -> float:
    """Of all ranks together."""
    return float(found["steps"] * BATCH * ranks / found["epoch_s"])


def take(arguments: argparse.Namespace) -> list[Line]:
    """The machine, alpha and beta, each training, then the paper's data sets by the model."""
    arguments.epochs = arguments.epochs or (QUICK_EPOCHS if arguments.quick else EPOCHS)
    arguments.processors = os.cpu_count() or 1
    averages = arguments.average or AVERAGES
    lines: list[Line] = [{"machine": machine_facts(), "quick": arguments.quick}]
    models = set(arguments.model or MODELS)
    if importlib.util.find_spec("torch") is None and models != {DENSE}:
        lines.append({"missing": f"{', '.join(sorted(models - {DENSE}))}: torch is not installed"})
        models &= {DENSE}
    shapes = {name: shape for name, shape in SHAPES.items() if shape.model in models}
    calls = QUICK_CALLS if arguments.quick else CALLS
    found = run_job(2, "measure", str(calls), *shapes)
    costs = fit(found["allreduces"], arguments.processors)
    lines.append({"alpha_us": round(costs.alpha * 1e6, 2), "beta_ns": round(costs.beta * 1e9, 4)})
    for name, average in itertools.product(EXPERIMENTS, averages):
        if EXPERIMENTS[name].model in models:
            lines += train(name, average, arguments, costs)
    for name, average in itertools.product(shapes, averages):
        work = Work(shapes[name].samples / BATCH, **found["shapes"][name])
        by_ranks = {str(n): speedup(work, n, average, costs) for n in PAPER_RANKS}
        step_us = round(work.step_s * 1e6)
        line = {"shape": name, "average": average, "nbytes": work.nbytes, "step_us": step_us}
        lines.append({**line, "speedups": by_ranks})
    return lines


def is_equal(lines: list[Line]) -> bool:
    """True if as many workers were killed as was asked for, and no model differs by it."""
    kills = [line for line in lines if "kills" in line]
    return all(
        len(line["killed"]) == line["kills"] and line["model"] == line["undisturbed"]
        for line in kills
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", choices=MODELS, help="default: all")
    parser.add_argument("--average", action="append", choices=AVERAGES, help="default: both")
    parser.add_argument(
        "--ranks",
        type=lambda text: [int(word) for word in text.split(",")],
        default="1,2,4,8",
        help="beyond the processors by the model alone; default %(default)s",
    )
    parser.add_argument("--kills", type=int, default=0, help="of workers in a second run")
    parser.add_argument("--epochs", type=int, help=f"default {EPOCHS}; at least one for each kill")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_EPOCHS} epochs, fewer calls")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> int:
    """Measure and print; 1 if kills have changed a model."""
    arguments = parser().parse_args()
    lines = take(arguments)
    print("\n".join(map(json.dumps, lines)) if arguments.json else papers_table(lines))
    return 0 if is_equal(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
