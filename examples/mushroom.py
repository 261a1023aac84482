"""Logistic regression on the Mushroom data: which mushrooms are poisonous?

    python examples/mushroom.py                                     # alone
    ftcomm-tracker run -n 4 python examples/mushroom.py          # four workers

Every rank has every n-th row and computes its rows' share of the gradient; an allreduce adds the
shares up; a checkpoint ends each step.  Kill any worker at any time: it is started again, loads
the last checkpoint, is given the results that it missed, and the model is the same to the bit.
"""

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np

import ftcomm

DATA = Path(__file__).parent / "data"
WIDTH = 127  # columns are numbered from 1 to 126; column 0 is the constant

Floats = np.ndarray[Any, np.dtype[np.float64]]


def load_rows(path: Path, rank: int, world_size: int) -> tuple[Floats, Floats]:
    """Every `world_size`-th row of a LIBSVM file, as a dense matrix and labels."""
    rows = path.read_text(encoding="ascii").splitlines()[rank::world_size]
    features = np.zeros((len(rows), WIDTH))
    labels = np.zeros(len(rows))
    features[:, 0] = 1.0
    for index, row in enumerate(rows):
        label, *pairs = row.split()
        labels[index] = float(label)
        for pair in pairs:
            column, value = pair.split(":")
            features[index, int(column)] = float(value)
    return features, labels


def share_of_step(weights: Floats, features: Floats, labels: Floats) -> Floats:
    """These rows' share of the gradient, and behind it their share of the loss."""
    margin = features @ weights
    gradient = features.T @ (1.0 / (1.0 + np.exp(-margin)) - labels)
    loss = np.sum(np.logaddexp(0.0, margin) - labels * margin)
    return np.append(gradient, loss)


def accuracy(weights: Floats, features: Floats, labels: Floats) -> float:
    """Share of rows that are classified correctly."""
    return float(np.mean((features @ weights > 0.0) == (labels > 0.5)))


def train(comm: ftcomm.Communicator, options: argparse.Namespace) -> Floats:
    """Train to the last step, from wherever the job stands, and return the model."""
    features, labels = load_rows(DATA / "agaricus.train.svm", comm.rank, comm.world_size)
    test = load_rows(DATA / "agaricus.test.svm", 0, 1) if comm.rank == 0 else None
    # What comes before load_checkpoint() is replayed to a restarted worker like everything else.
    total = int(comm.allreduce(len(labels)))

    version, weights = comm.load_checkpoint(default=np.zeros(WIDTH))
    for step in range(version, options.steps):
        added = comm.allreduce(share_of_step(weights, features, labels))
        weights = weights - options.learning_rate / total * added[:-1]
        comm.checkpoint(weights)
        if test is not None and (step + 1) % max(options.steps // 10, 1) == 0:
            right = 100 * accuracy(weights, *test)
            print(f"step {step + 1}: loss {added[-1] / total:.4f}, test accuracy {right:.2f} %")
        if options.pause:
            time.sleep(options.pause)
    return np.asarray(weights)


def write_model(path: Path, weights: Floats) -> None:
    """Write the model whole or not at all: this process, too, may die half-way."""
    half = path.with_name(path.name + ".part")
    half.write_bytes(weights.tobytes())
    half.replace(path)


def main() -> None:
    """Train, and let rank 0 say and write what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100, help="how many (%(default)s)")
    parser.add_argument(
        "--learning-rate", type=float, default=2.0, help="length of a step (%(default)s)"
    )
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to rest after a step")
    parser.add_argument("--model", type=Path, help="file for the trained weights")
    options = parser.parse_args()
    with ftcomm.init() as comm:
        weights = train(comm, options)
        # Inside the block: until close() a rank 0 that dies here is started again and comes
        # back to this line.  After it, nobody would write the model any more.
        if comm.rank == 0:
            if options.model is not None:
                write_model(options.model, weights)
            print(f"model {hashlib.sha256(weights.tobytes()).hexdigest()}")


if __name__ == "__main__":
    main()
