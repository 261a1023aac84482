"""A small neural network learns to read handwritten digits, on several workers.

    pip install '.[examples]'
    python examples/digits.py                                     # alone
    ftcomm-tracker run -n 4 python examples/digits.py          # four workers

Rank 0 reads the images and gives every rank its part.  In each step every rank draws a batch of
its own part, and one allreduce averages the gradients, the loss and the share of correct answers.
Kill any worker at any time: the weights are the same to the bit.  docs/porting.md goes through it.
"""

import argparse
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ftcomm

PIXELS = 64  # 8 x 8
DIGITS = 10
TESTED = 5  # every fifth row is not learnt from, but tested with
MOMENTUM = 0.9

Array = np.ndarray[Any, Any]
State = dict[str, Any]


def read_digits() -> Array:
    """scikit-learn's digits in a fixed order: 64 pixels from 0 to 1 and the label, float64."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - a slow import, for one rank

    images, labels = load_digits(return_X_y=True)
    return np.column_stack([images / 16.0, labels])


# --- the network: one hidden layer, all weights in one flat array ---------------------------------


def first_weights(seed: int, hidden: int) -> Array:
    """Random weights and zero biases; the same for the same seed."""
    rng = np.random.default_rng(seed)
    layers = [
        rng.normal(0.0, np.sqrt(2.0 / PIXELS), PIXELS * hidden),
        np.zeros(hidden),
        rng.normal(0.0, np.sqrt(2.0 / hidden), hidden * DIGITS),
        np.zeros(DIGITS),
    ]
    return np.concatenate(layers)


def split(flat: Array, hidden: int) -> tuple[Array, Array, Array, Array]:
    """The layers' matrices and biases, as views of the flat array."""
    ends = np.cumsum([PIXELS * hidden, hidden, hidden * DIGITS])
    inner, inner_bias, outer, outer_bias = np.split(flat, ends)
    return inner.reshape(PIXELS, hidden), inner_bias, outer.reshape(hidden, DIGITS), outer_bias


def forward(weights: Array, rows: Array, hidden: int) -> tuple[Array, Array]:
    """Activations of the hidden layer, and the probability of every digit, for each row."""
    inner, inner_bias, outer, outer_bias = split(weights, hidden)
    active = np.maximum(rows[:, :PIXELS] @ inner + inner_bias, 0.0)
    scores = active @ outer + outer_bias
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return active, scores / scores.sum(axis=1, keepdims=True)


def loss_and_gradient(weights: Array, rows: Array, hidden: int) -> Array:
    """The mean gradient over these rows, behind it their mean loss and share of correct ones."""
    active, chances = forward(weights, rows, hidden)
    labels = rows[:, PIXELS].astype(int)
    every = np.arange(len(rows))
    loss = -np.mean(np.log(chances[every, labels]))
    right = np.mean(chances.argmax(axis=1) == labels)
    error = chances
    error[every, labels] -= 1.0
    error /= len(rows)
    behind = (error @ split(weights, hidden)[2].T) * (active > 0.0)
    parts = [rows[:, :PIXELS].T @ behind, behind.sum(axis=0), active.T @ error, error.sum(axis=0)]
    return np.concatenate([*(part.ravel() for part in parts), [loss, right]])


# --- the job --------------------------------------------------------------------------------------


def deal(comm: ftcomm.Communicator, rows: Array | None) -> Array:
    """This rank's part of the rows that rank 0 has read; the others pass None."""
    parts = None if rows is None else np.array_split(rows, comm.world_size)
    return comm.scatter(parts, root=0)


def batches(rows: Array, epoch: int, rank: int, batch: int, seed: int) -> Iterator[Array]:
    """This rank's batches of an epoch: the same for the same arguments, whoever asks again."""
    order = np.random.default_rng((seed, epoch, rank)).permutation(len(rows))
    for start in range(0, len(rows) - batch + 1, batch):
        yield rows[order[start : start + batch]]


def learn(
    comm: ftcomm.Communicator, state: State, drawn: list[Array], options: argparse.Namespace
) -> tuple[State, Array]:
    """Go over one epoch's batches; returns the next state, and the mean loss and share right."""
    weights, velocity = state["weights"], state["velocity"]
    seen = np.zeros(2)
    for rows in drawn:
        mean = comm.allreduce(loss_and_gradient(weights, rows, options.hidden), op="mean")
        velocity = MOMENTUM * velocity - options.learning_rate * mean[:-2]
        weights = weights + velocity
        seen += mean[-2:] / len(drawn)
        if options.pause:
            time.sleep(options.pause)
    return {"epochs": state["epochs"] + 1, "weights": weights, "velocity": velocity}, seen


def accuracy(comm: ftcomm.Communicator, weights: Array, rows: Array, hidden: int) -> float:
    """Share of all ranks' rows that are classified correctly."""
    told = forward(weights, rows, hidden)[1].argmax(axis=1)
    right, total = comm.allreduce(np.array([np.sum(told == rows[:, PIXELS]), len(rows)]))
    return float(right / total)


def train(comm: ftcomm.Communicator, options: argparse.Namespace) -> Array:
    """Train to the last epoch, from wherever the job stands, and return the weights."""
    mine = deal(comm, read_digits() if comm.rank == 0 else None)
    tested = np.arange(len(mine)) % TESTED == 0
    rows, test_rows = mine[~tested], mine[tested]
    # The parts differ by one row, but every rank must make the same number of calls.
    smallest = int(comm.allreduce(len(rows), op="min"))
    batch = min(options.batch, smallest)

    # Of all defaults only rank 0's counts, so only rank 0 needs to have one.
    _, state = comm.load_checkpoint(default=start(options) if comm.rank == 0 else None)
    began = time.monotonic()
    while state["epochs"] < options.epochs:
        drawn = batches(rows, state["epochs"], comm.rank, batch, options.seed)
        state, (loss, right) = learn(comm, state, list(drawn)[: smallest // batch], options)
        test_right = accuracy(comm, state["weights"], test_rows, options.hidden)
        comm.checkpoint(state)
        # From here on the epoch cannot be lost or run again: now the world may see it.
        if comm.rank == 0:
            print(
                f"epoch {state['epochs']}: loss {loss:.4f}, right {100 * right:.2f} %,"
                f" test {100 * test_right:.2f} %, {time.monotonic() - began:.1f} s"
            )
            if options.save is not None:
                write(options.save, state)
    return np.asarray(state["weights"])


def start(options: argparse.Namespace) -> State:
    """The state before the first epoch, or the one that an earlier job has saved."""
    if options.resume is not None:
        with np.load(options.resume) as file:
            weights, velocity = file["weights"], file["velocity"]
            return {"epochs": int(file["epochs"]), "weights": weights, "velocity": velocity}
    weights = first_weights(options.seed, options.hidden)
    return {"epochs": 0, "weights": weights, "velocity": np.zeros_like(weights)}


def write(path: Path, state: State) -> None:
    """Write the state whole or not at all: this process, too, may die half-way."""
    half = path.with_name(path.name + ".part")
    with half.open("wb") as file:
        np.savez(file, **state)
    half.replace(path)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--epochs", type=int, default=20, help="times through the images (%(default)s)"
    )
    parser.add_argument(
        "--batch", type=int, default=16, help="rows per rank and step (%(default)s)"
    )
    parser.add_argument(
        "--hidden", type=int, default=32, help="units of the hidden layer (%(default)s)"
    )
    parser.add_argument(
        "--learning-rate", type=float, default=0.05, help="length of a step (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (%(default)s)")
    parser.add_argument("--save", type=Path, help="file for the state, written after each epoch")
    parser.add_argument("--resume", type=Path, help="go on from a file that an earlier job saved")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to rest after a step")
    return parser.parse_args(arguments)


def main() -> None:
    """Train, and let rank 0 say what came out."""
    options = parse()
    with ftcomm.init() as comm:
        weights = train(comm, options)
        if comm.rank == 0:  # inside the block: after it nobody would come back to this line
            print(f"model {hashlib.sha256(weights.tobytes()).hexdigest()}")


if __name__ == "__main__":
    main()
