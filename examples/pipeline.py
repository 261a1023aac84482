"""Pipeline: each rank trains one layer of a network, and micro-batches flow through the ranks.

    python examples/pipeline.py                                        # alone: one layer
    ftcomm-tracker run -n 4 python examples/pipeline.py             # four stages

Activations go forward to the next rank, and gradients back, as messages.  Each rank runs the
schedule "one forward, one backward" (Narayanan et al., 2019): it begins with as many forward passes
as there are stages behind it, then takes turns, so that it keeps the activations of few
micro-batches at a time.

A layer is the local state of its rank.  A rank that is killed gets its layer again from another
rank that keeps a copy, and the messages of the step from those that sent them.
"""

import argparse
import hashlib
from collections import deque

import numpy as np
import numpy.typing as npt

import ftcomm

Matrix = npt.NDArray[np.float64]


class Stage:
    """One layer, with the gradient of a step and the activations that its backward passes need."""

    def __init__(self, comm: ftcomm.Communicator, weights: Matrix) -> None:
        self.comm, self.weights = comm, weights
        self.gradient = np.zeros_like(weights)
        self.kept: deque[tuple[Matrix, Matrix]] = deque()
        self.loss = 0.0
        self.is_first, self.is_last = comm.rank == 0, comm.rank == comm.world_size - 1

    def forward(self, inputs: Matrix) -> None:
        """One micro-batch forward: from the data or the stage before, to the stage behind."""
        x = inputs if self.is_first else self.comm.recv(self.comm.rank - 1, "forward")
        h = np.tanh(x @ self.weights)
        self.kept.append((x, h))
        if not self.is_last:
            self.comm.send(h, self.comm.rank + 1, "forward")

    def backward(self, targets: Matrix) -> None:
        """The oldest micro-batch back: from the loss or the stage behind, to the stage before."""
        x, h = self.kept.popleft()
        if self.is_last:
            slope = h - targets
            self.loss += float((slope**2).mean())
        else:
            slope = self.comm.recv(self.comm.rank + 1, "backward")
        slope = slope * (1.0 - h**2)
        self.gradient += x.T @ slope
        if not self.is_first:
            self.comm.send(slope @ self.weights.T, self.comm.rank - 1, "backward")


def batches_of(step: int, options: argparse.Namespace) -> list[tuple[Matrix, Matrix]]:
    """The micro-batches of a step, alike on all ranks: inputs, and what the network shall learn."""
    rng = np.random.default_rng((options.seed, step))
    inputs = rng.standard_normal((options.batches, options.rows, options.width))
    return [(x, np.tanh(x[:, ::-1])) for x in inputs]


def train_step(stage: Stage, step: int, options: argparse.Namespace) -> None:
    """All micro-batches of a step through this stage, one forward and one backward in turn."""
    batches = batches_of(step, options)
    ahead = min(stage.comm.world_size - stage.comm.rank - 1, len(batches))
    for inputs, _ in batches[:ahead]:
        stage.forward(inputs)
    for number, (_, targets) in enumerate(batches):
        if number + ahead < len(batches):
            stage.forward(batches[number + ahead][0])
        stage.backward(targets)
    stage.weights = stage.weights - options.rate / len(batches) * stage.gradient


def run(comm: ftcomm.Communicator, options: argparse.Namespace) -> str:
    """Train from wherever the job stands; return a digest of all layers."""
    rng = np.random.default_rng((options.seed, comm.rank, 1))
    fresh = rng.standard_normal((options.width, options.width)) / np.sqrt(options.width)
    step, _, weights = comm.load_checkpoint(default=None, local_default=fresh)
    while step < options.steps:
        stage = Stage(comm, weights)
        train_step(stage, step, options)
        weights = stage.weights
        loss = comm.allreduce(stage.loss / options.batches)  # the last stage's: others have none
        step = comm.checkpoint(None, local=weights)
        if comm.rank == 0:
            print(f"step {step}: loss {loss:.6f}")
    return hashlib.sha256(comm.allgather(weights).tobytes()).hexdigest()


def main() -> None:
    """Train, and let rank 0 say what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps (%(default)s)")
    parser.add_argument("--batches", type=int, default=8, help="micro-batches a step (%(default)s)")
    parser.add_argument("--rows", type=int, default=64, help="of a micro-batch (%(default)s)")
    parser.add_argument("--width", type=int, default=64, help="of each layer (%(default)s)")
    parser.add_argument("--rate", type=float, default=0.02, help="of learning (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of data and layers (%(default)s)")
    options = parser.parse_args()
    with ftcomm.init() as comm:
        digest = run(comm, options)
        if comm.rank == 0:
            print(f"model {digest}")


if __name__ == "__main__":
    main()
