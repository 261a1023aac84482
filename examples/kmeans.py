"""k-means: sorts handwritten digits into clusters without being told what they are.

    pip install '.[examples]'
    python examples/kmeans.py                                     # alone
    ftcomm-tracker run -n 4 python examples/kmeans.py          # four workers

Every rank finds the nearest centre of each of its rows; one allreduce adds up the rows, their
number and their distance for every centre.  It ends when the total distance has not changed:
all ranks have the same total, so all end in the same step.
"""

import argparse
import hashlib

import numpy as np
from digits import DIGITS, PIXELS, Array, deal, read_digits

import ftcomm


def sums_by_centre(rows: Array, centres: Array) -> Array:
    """For each centre the sum of the rows that are nearest to it, their number and distance."""
    distance = np.sum((rows[:, None, :] - centres[None, :, :]) ** 2, axis=2)
    nearest = distance.argmin(axis=1)
    belongs = (nearest[:, None] == np.arange(len(centres))).astype(float)
    counts = belongs.sum(axis=0)
    return np.column_stack([belongs.T @ rows, counts, np.sum(belongs * distance, axis=0)])


def first_centres(rows: Array, clusters: int, seed: int) -> Array:
    """Some of the rows, the same ones for the same seed."""
    return np.random.default_rng(seed).choice(rows, clusters, replace=False)


def cluster(comm: ftcomm.Communicator, options: argparse.Namespace) -> Array:
    """Move the centres until they rest, from wherever the job stands, and return them."""
    everything = read_digits() if comm.rank == 0 else None
    rows = deal(comm, everything)[:, :PIXELS]
    first = None
    if everything is not None:
        centres = first_centres(everything[:, :PIXELS], options.clusters, options.seed)
        first = (centres, float("inf"), False)

    step, (centres, before, rests) = comm.load_checkpoint(default=first)
    while not rests and step < options.steps:
        sums = comm.allreduce(sums_by_centre(rows, centres))
        counts, total = sums[:, PIXELS], float(sums[:, PIXELS + 1].sum())
        moved = sums[:, :PIXELS] / np.maximum(counts, 1.0)[:, None]
        centres = np.where(counts[:, None] > 0.0, moved, centres)  # an empty heap stays
        before, rests = total, total == before
        step = comm.checkpoint((centres, before, rests))
        if comm.rank == 0:
            print(f"step {step}: distance {total:.4f}, rows {counts.astype(int).tolist()}")
    return np.asarray(centres)


def main() -> None:
    """Cluster, and let rank 0 say what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--clusters", type=int, default=DIGITS, help="how many to sort into (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=100, help="at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first centres (%(default)s)")
    options = parser.parse_args()
    with ftcomm.init() as comm:
        centres = cluster(comm, options)
        if comm.rank == 0:
            print(f"model {hashlib.sha256(centres.tobytes()).hexdigest()}")


if __name__ == "__main__":
    main()
