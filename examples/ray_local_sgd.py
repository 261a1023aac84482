"""Local SGD on Ray: each rank is an actor, trains on its own rows, and averages now and then.

    pip install '.[ray]'
    python examples/ray_local_sgd.py                            # a cluster on this machine
    python examples/ray_local_sgd.py --address auto             # that of this machine's node

Between two averages a rank makes some steps alone (Stich, 2019), so it sends less often.  Which
rows a step draws follows from rank, round and step alone, so a restarted rank draws the same.  Kill
any actor or node meanwhile, and the weights are the same to the bit.
"""

import argparse
import hashlib
from typing import Any

import numpy as np
import ray

import ftcomm
import ftcomm.ray

COLUMNS = 32
BATCH = 64
Array = np.ndarray[Any, Any]


def rows_of(rank: int, count: int, seed: int) -> tuple[Array, Array]:
    """A rank's own rows of a logistic regression, shape (count, COLUMNS), and their labels."""
    truth = np.random.default_rng(seed).normal(size=COLUMNS)
    dice = np.random.default_rng([seed, rank])
    x = dice.normal(size=(count, COLUMNS))
    return x, (x @ truth + dice.logistic(size=count) > 0.0).astype(float)


def gradient(weights: Array, x: Array, y: Array) -> Array:
    """Gradient of the mean logistic loss: shape (COLUMNS,)."""
    return np.asarray(x.T @ (1.0 / (1.0 + np.exp(-(x @ weights))) - y) / len(y))


def train(count: int, rounds: int, steps: int, rate: float, seed: int) -> tuple[float, Array]:
    """Train, and return the share of right answers on all rows, and the weights; one rank's."""
    with ftcomm.init() as comm:
        x, y = rows_of(comm.rank, count, seed)
        version, weights = comm.load_checkpoint(default=np.zeros(COLUMNS))
        for each in range(version, rounds):
            own = weights.copy()
            for step in range(steps):
                dice = np.random.default_rng([seed, comm.rank, each, step])
                drawn = dice.integers(count, size=BATCH)
                own -= rate * gradient(own, x[drawn], y[drawn])
            weights = comm.allreduce(own, op="mean")
            comm.checkpoint(weights)
        right = comm.allreduce(float(np.mean((x @ weights > 0.0) == (y > 0.5))), op="mean")
        return right, weights


def main() -> None:
    """Train, and say what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", help="of a cluster (one on this machine is started)")
    parser.add_argument("--workers", type=int, default=2, help="ranks (%(default)s)")
    parser.add_argument("--rows", type=int, default=5_000, help="of each rank (%(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="averages (%(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="between two (%(default)s)")
    parser.add_argument("--rate", type=float, default=0.2, help="of learning (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of rows and batches (%(default)s)")
    options = parser.parse_args()
    arguments = options.rows, options.rounds, options.steps, options.rate, options.seed
    own = {} if options.address else {"num_cpus": options.workers, "include_dashboard": False}
    with ray.init(options.address, **own):
        results = ftcomm.ray.run(train, options.workers, arguments)
    right, weights = results[0]
    print(f"{100.0 * right:.2f} % right")
    print(f"model {hashlib.sha256(weights.tobytes()).hexdigest()}")


if __name__ == "__main__":
    main()
