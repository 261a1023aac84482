"""Collectives on up to 4,096 ranks, by the alpha-beta model fitted to what was measured here.

    python benchmarks/alpha_beta.py                     # fits benchmarks/results/compare.jsonl
    python benchmarks/alpha_beta.py --results other.jsonl --json

The steps of the real schedules are followed on all ranks, so what waits for what is exact.  Alpha,
beta and gamma are fitted to 2 and 4 ranks of this machine.  What was measured of more ranks is
predicted and compared.  Ranks that share processors take turns: times are multiplied by ranks /
processors.  All else is extrapolated: as if each rank had a processor, and every link were as this
machine's; a network's switches and its crowds are not in the model.
"""

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _peers import OURS, TCP
from _report import alpha_beta_table
from _schedules import Costs, predict

from ftcomm.collectives.schedules.schedule import Schedule
from ftcomm.collectives.selection import RING_BLOCK_BYTES, schedule_for
from ftcomm.protocol.signature import Algorithm, Kind

RESULTS = Path(__file__).with_name("results") / "compare.jsonl"
FITTED = (2, 4)
ITEMSIZE = 4
ALGORITHMS = (Algorithm.RECURSIVE_DOUBLING, Algorithm.RING)
WORLD_SIZES = (16, 64, 256, 1024, 4096)
SIZES = (1024, 1 << 20, 100 * (1 << 20))
Measured = list[tuple[int, int, float]]  # ranks, bytes, seconds


def measured(lines: list[dict[str, Any]]) -> tuple[int, Measured]:
    """Processors, and what `compare.py` found of our own library over TCP."""
    processors = next(line["machine"]["cpus"] for line in lines if "machine" in line)
    found = [
        (line["world_size"], line["nbytes"], line["peers"][OURS]["us"] / 1e6)
        for line in lines
        if (line.get("kind"), line.get("transport")) == ("allreduce", TCP)
    ]
    return processors, found


def schedule(algorithm: Algorithm, world_size: int, nbytes: int, rank: int) -> Schedule:
    """The real one; with as many elements as the ranks can share evenly."""
    count = max(nbytes // ITEMSIZE, 1)
    if algorithm is not Algorithm.RECURSIVE_DOUBLING:
        count = -(-count // world_size) * world_size
    return schedule_for(Kind.ALLREDUCE, world_size, rank, count, ITEMSIZE, algorithm=algorithm)


def time_of(algorithm: Algorithm, world_size: int, nbytes: int, costs: Costs) -> float:
    """Seconds of one allreduce, each rank with a processor of its own."""
    schedule_of = functools.partial(schedule, algorithm, world_size, nbytes)
    return predict(schedule_of, world_size, ITEMSIZE, costs)


def counted(world_size: int, nbytes: int, processors: int) -> list[float]:
    """Count the alphas, betas and gammas in the time of what a large group takes."""
    is_long = nbytes >= RING_BLOCK_BYTES * world_size
    algorithm = Algorithm.RING if is_long else Algorithm.RECURSIVE_DOUBLING
    units = (Costs(1, 0, 0), Costs(0, 1, 0), Costs(0, 0, 1))
    turns = max(world_size / processors, 1.0)
    return [turns * time_of(algorithm, world_size, nbytes, unit) for unit in units]


def fit(rows: list[list[float]], seconds: list[float]) -> Costs:
    """Least squares of the relative errors, none of the costs below 0: all subsets are tried."""
    scaled = np.array(rows) / np.array(seconds)[:, None]
    best: tuple[float, list[float]] = (float("inf"), [0.0, 0.0, 0.0])
    for size in (1, 2, 3):
        for chosen in itertools.combinations(range(3), size):
            found, *_ = np.linalg.lstsq(scaled[:, chosen], np.ones(len(seconds)), rcond=None)
            costs = [0.0, 0.0, 0.0]
            for index, value in zip(chosen, found, strict=True):
                costs[index] = float(value)
            error = float(((scaled @ costs - 1) ** 2).sum())
            if min(costs) >= 0 and error < best[0]:
                best = (error, costs)
    return Costs(*best[1])


def take(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The machine, the fit, what it says of what was measured, and of what was not."""
    yield next(line for line in lines if "machine" in line)
    processors, found = measured(lines)
    rows = {(n, nbytes): counted(n, nbytes, processors) for n, nbytes, _ in found}
    used = [(n, nbytes, seconds) for n, nbytes, seconds in found if n in FITTED]
    if len(used) < 3:
        raise SystemExit(f"fewer than 3 figures over TCP for {FITTED} ranks in the results")
    costs = fit([rows[n, nbytes] for n, nbytes, _ in used], [seconds for *_, seconds in used])
    yield {
        "alpha_us": costs.alpha * 1e6,
        "beta_ns": costs.beta * 1e9,
        "gamma_ns": costs.gamma * 1e9,
    }
    for n, nbytes, seconds in found:
        predicted = float(np.dot(rows[n, nbytes], [costs.alpha, costs.beta, costs.gamma]))
        yield {
            "checked": n,
            "nbytes": nbytes,
            "fitted": n in FITTED,
            "measured_us": round(seconds * 1e6, 1),
            "predicted_us": round(predicted * 1e6, 1),
        }
    for n, nbytes in itertools.product(WORLD_SIZES, SIZES):
        print(f"{n} ranks, {nbytes:,} bytes", file=sys.stderr)
        times = {a.name.lower(): time_of(a, n, nbytes, costs) * 1e6 for a in ALGORITHMS}
        yield {"predicted": n, "nbytes": nbytes, "us": {k: round(v, 1) for k, v in times.items()}}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="of compare.py")
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Predict and print."""
    arguments = parser().parse_args()
    text = arguments.results.read_text(encoding="utf-8")
    lines = list(take([json.loads(line) for line in text.splitlines()]))
    print("\n".join(map(json.dumps, lines)) if arguments.json else alpha_beta_table(lines))


if __name__ == "__main__":
    main()
