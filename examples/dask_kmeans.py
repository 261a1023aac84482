"""k-means on a Dask cluster: each rank is a task, has its part of the rows, and may be lost.

    pip install '.[dask]'
    python examples/dask_kmeans.py                                # a cluster on this machine
    python examples/dask_kmeans.py --scheduler 10.0.0.1:8786      # yours

Every rank finds the nearest centre of each of its rows; one allreduce adds up the rows, their
number and their distance for every centre.  Dask carries no data between the steps: the ranks call
each other.  Kill any worker of the cluster meanwhile, and the centres are the same to the bit.
"""

import argparse
import hashlib
from typing import Any

import distributed
import numpy as np

import ftcomm
import ftcomm.dask

COLUMNS = 16
Array = np.ndarray[Any, Any]


def rows_of(rank: int, count: int, clusters: int, seed: int) -> Array:
    """A rank's own rows, around as many points as there are clusters: shape (count, COLUMNS)."""
    points = np.random.default_rng(seed).uniform(-10.0, 10.0, (clusters, COLUMNS))
    dice = np.random.default_rng([seed, rank])
    spread = dice.normal(size=(count, COLUMNS))
    return np.asarray(points[dice.integers(clusters, size=count)] + spread)


def sums_by_centre(rows: Array, centres: Array) -> Array:
    """For each centre the sum of the rows that are nearest to it, their number and distance."""
    distance = np.sum((rows[:, None, :] - centres[None, :, :]) ** 2, axis=2)
    belongs = (distance.argmin(axis=1)[:, None] == np.arange(len(centres))).astype(float)
    counts = belongs.sum(axis=0)
    return np.column_stack([belongs.T @ rows, counts, np.sum(belongs * distance, axis=0)])


def cluster(count: int, clusters: int, steps: int, seed: int) -> tuple[int, float, Array]:
    """Move the centres until they rest; what one rank does.

    Returns:
        The number of steps, the mean distance to the nearest centre, and the centres.
    """
    with ftcomm.init() as comm:
        rows = rows_of(comm.rank, count, clusters, seed)
        first = rows_of(0, clusters, clusters, seed), float("inf"), False
        step, (centres, before, rests) = comm.load_checkpoint(default=first)
        while not rests and step < steps:
            sums = comm.allreduce(sums_by_centre(rows, centres))
            counts, total = sums[:, COLUMNS], float(sums[:, COLUMNS + 1].sum())
            moved = sums[:, :COLUMNS] / np.maximum(counts, 1.0)[:, None]
            centres = np.where(counts[:, None] > 0.0, moved, centres)  # an empty heap stays
            before, rests = total, total == before
            step = comm.checkpoint((centres, before, rests))
        return step, before / (count * comm.world_size), centres


def main() -> None:
    """Cluster, and say what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scheduler", help="address of a cluster (one on this machine is started)")
    parser.add_argument("--workers", type=int, default=2, help="ranks (%(default)s)")
    parser.add_argument("--rows", type=int, default=20_000, help="of each rank (%(default)s)")
    parser.add_argument("--clusters", type=int, default=12, help="centres (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of rows and centres (%(default)s)")
    options = parser.parse_args()
    arguments = options.rows, options.clusters, options.steps, options.seed
    own = {"n_workers": options.workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    where = {"address": options.scheduler} if options.scheduler else own
    with distributed.Client(**where) as client:
        results = ftcomm.dask.run(client, cluster, options.workers, arguments)
    step, distance, centres = results[0]
    print(f"{step} steps, mean distance {distance:.4f}")
    print(f"model {hashlib.sha256(centres.tobytes()).hexdigest()}")


if __name__ == "__main__":
    main()
