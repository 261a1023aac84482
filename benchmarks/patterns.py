"""Convergence of the patterns of `ftcomm.patterns` beside synchronous SGD, at equal samples.

    python benchmarks/patterns.py
    python benchmarks/patterns.py --quick --json

Four ranks train the network of examples/digits.py on scikit-learn's digits, which are dealt in the
order of the data set, so that the ranks have digits of different writers.  All ways have the same
weights at first, the same rows in each step of each rank and the same learning rate.  After each
epoch the mean of the ranks' weights is tested.  Nothing here follows from timing: a seed gives the
same curves on each run.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _machine import machine_facts
from _report import patterns_table

import ftcomm
from ftcomm.patterns import DiLoCo, Gossip, LocalSGD
from ftcomm.testing import local_group

sys.path.append(str(Path(__file__).parents[1] / "examples"))  # scripts, not a package

import digits

RANKS, BATCH, HIDDEN = 4, 16, 32
RATE, MOMENTUM = 0.05, 0.9  # of SGD in all ways, as in examples/digits.py
EVERY = 17  # steps of an epoch
EPOCHS, QUICK_EPOCHS = 30, 12
SEEDS, QUICK_SEEDS = 5, 2
RECEIVING = ("allreduce", "recv")  # kinds of calls

Array = np.ndarray[Any, Any]
Step = Callable[[Array], None]  # on a batch


class Model:
    """One rank's weights and momentum, and a plain step of SGD with them."""

    def __init__(self, comm: ftcomm.Communicator, seed: int) -> None:
        self.comm = comm
        self.weights = digits.first_weights(seed, HIDDEN)
        self.velocity = np.zeros_like(self.weights)

    def gradient(self, rows: Array) -> Array:
        """Of the mean loss of these rows."""
        return digits.loss_and_gradient(self.weights, rows, HIDDEN)[:-2]

    def apply(self, gradient: Array) -> None:
        """Make a step."""
        self.velocity *= MOMENTUM
        self.velocity -= RATE * gradient
        self.weights += self.velocity


def synchronous(model: Model) -> Step:
    """The mean of the gradients in each step."""
    return lambda rows: model.apply(model.comm.allreduce(model.gradient(rows), "mean"))


def local_sgd(model: Model) -> Step:
    """`LocalSGD`."""
    pattern = LocalSGD(model.comm, every=EVERY)

    def step(rows: Array) -> None:
        model.apply(model.gradient(rows))
        pattern.step([model.weights])

    return step


def diloco(model: Model, momentum: float) -> Step:
    """`DiLoCo`, whose own momentum is for hundreds of outer steps."""
    pattern = DiLoCo(model.comm, every=EVERY, momentum=momentum)
    pattern.begin([model.weights])

    def step(rows: Array) -> None:
        model.apply(model.gradient(rows))
        pattern.step([model.weights])

    return step


def gossip(model: Model) -> Step:
    """`Gossip`."""
    pattern = Gossip(model.comm)

    def step(rows: Array) -> None:
        with pattern.exchange([model.weights]):
            gradient = model.gradient(rows)
        model.apply(gradient)

    return step


WAYS: dict[str, Callable[[Model], Step]] = {
    "synchronous SGD": synchronous,
    "LocalSGD": local_sgd,
    "DiLoCo": lambda model: diloco(model, 0.9),
    "DiLoCo, momentum 0.5": lambda model: diloco(model, 0.5),
    "Gossip": gossip,
}


def train(comm: ftcomm.Communicator, way: str, seed: int, epochs: int, data: Array) -> Array:
    """One row for each epoch: the test's mean loss and share of wrong answers, bytes received."""
    mine = np.array_split(data, RANKS)[comm.rank]
    tested = np.arange(len(mine)) % digits.TESTED == 0
    model = Model(comm, seed)
    step = WAYS[way](model)
    comm.load_checkpoint()
    found = []
    for epoch in range(epochs):
        before = received(comm)
        drawn = digits.batches(mine[~tested], epoch, comm.rank, BATCH, seed)
        for rows in itertools.islice(drawn, EVERY):
            step(rows)
        nbytes = received(comm) - before
        mean = comm.allreduce(model.weights, "mean")
        found.append([*tested_with(comm, mean, mine[tested]), nbytes])
        comm.checkpoint(None)
    return np.array(found)


def received(comm: ftcomm.Communicator) -> int:
    """Bytes of all results and messages so far."""
    return sum(kind.nbytes for name, kind in comm.stats().kinds.items() if name in RECEIVING)


def tested_with(comm: ftcomm.Communicator, weights: Array, rows: Array) -> tuple[float, float]:
    """Mean loss and share of wrong answers over all ranks' test rows."""
    loss, right = digits.loss_and_gradient(weights, rows, HIDDEN)[-2:]
    sums = comm.allreduce(np.array([loss, 1.0 - right, 1.0]) * len(rows))
    return float(sums[0] / sums[2]), float(sums[1] / sums[2])


def mean_of_seeds(way: str, seeds: int, epochs: int, data: Array) -> dict[str, Any]:
    """The figures of one way."""
    runs = []
    for seed in range(seeds):
        with local_group(RANKS) as group:
            runs.append(np.mean(group.run(train, way, seed, epochs, data), axis=0))
    loss, wrong, nbytes = np.mean(runs, axis=0).T
    return {
        "way": way,
        "samples": [EVERY * BATCH * RANKS * (epoch + 1) for epoch in range(epochs)],
        "loss": [round(float(value), 4) for value in loss],
        "wrong": [round(100.0 * float(value), 2) for value in wrong],
        "kb": round(float(nbytes.mean()) / 1000),
        "seeds": seeds,
    }


def take(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The machine, then one line for each way."""
    seeds, epochs = (QUICK_SEEDS, QUICK_EPOCHS) if arguments.quick else (SEEDS, EPOCHS)
    lines: list[dict[str, Any]] = [{"machine": machine_facts(), "quick": arguments.quick}]
    data = digits.read_digits()
    for way in WAYS:
        print(f"{way}: {seeds} seeds", file=sys.stderr)
        lines.append(mean_of_seeds(way, seeds, epochs, data))
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_EPOCHS} epochs, {QUICK_SEEDS} seeds"
    )
    parser.add_argument("--json", action="store_true", help="JSON lines, the machine first")
    return parser


def main() -> None:
    """Train and print."""
    arguments = parser().parse_args()
    lines = take(arguments)
    print("\n".join(map(json.dumps, lines)) if arguments.json else patterns_table(lines))


if __name__ == "__main__":
    main()
