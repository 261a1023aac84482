"""HogWild: threads of a worker train on one array without a lock, and workers average.

    python examples/hogwild.py                                     # alone
    ftcomm-tracker run -n 3 python examples/hogwild.py          # three workers

Logistic regression on the Mushroom data.  A row has 22 of 126 columns, so a step changes few
weights, and an update that another thread overwrites is seldom (Recht, Re, Wright, Niu, "HogWild!",
2011).  After each epoch `average_weights` makes one model of all workers'.

Same bytes on every rank: the weights behind each average, whatever the threads did.  So checkpoints
are made there.  Same bytes as in another run: only with --threads 1.  With more, the steps of an
epoch follow from timing.  A worker that is killed then makes its epoch again by other steps, unless
the average was complete: that one it replays.  The setting --verify inputs would refuse the job.
"""

import argparse
import hashlib
import threading

import numpy as np
import numpy.typing as npt
from mushroom import DATA, WIDTH, accuracy, load_rows

import ftcomm
from ftcomm.patterns import average_weights

Floats = npt.NDArray[np.float64]
Columns = npt.NDArray[np.intp]


def sparse(features: Floats) -> Columns:
    """The columns of each row that are 1; all rows have as many."""
    return np.nonzero(features)[1].reshape(len(features), -1)


def run_thread(
    weights: Floats, columns: Columns, labels: Floats, order: Columns, rate: float
) -> None:
    """Make one step with each row in `order`; other threads write into `weights` meanwhile."""
    for row in order:
        own = columns[row]
        slope = 1.0 / (1.0 + np.exp(-weights[own].sum())) - labels[row]
        weights[own] -= rate * slope


def run_epoch(
    weights: Floats, columns: Columns, labels: Floats, order: Columns, options: argparse.Namespace
) -> None:
    """Share the rows out among threads, and wait for all of them."""
    parts = [order[number :: options.threads] for number in range(options.threads)]
    shared = (weights, columns, labels)
    threads = [
        threading.Thread(target=run_thread, args=(*shared, part, options.rate)) for part in parts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def train(comm: ftcomm.Communicator, options: argparse.Namespace) -> Floats:
    """Train to the last epoch, from wherever the job stands, and return the weights."""
    features, labels = load_rows(DATA / "agaricus.train.svm", comm.rank, comm.world_size)
    columns = sparse(features)
    test = load_rows(DATA / "agaricus.test.svm", 0, 1) if comm.rank == 0 else None
    epoch, weights = comm.load_checkpoint(default=np.zeros(WIDTH))
    while epoch < options.epochs:
        order = np.random.default_rng((options.seed, epoch, comm.rank)).permutation(len(labels))
        run_epoch(weights, columns, labels, order, options)
        average_weights(comm, [weights])
        epoch = comm.checkpoint(weights)
        if test is not None:
            print(f"epoch {epoch}: test {100 * accuracy(weights, *test):.2f} %")
    return np.asarray(weights)


def main() -> None:
    """Train, and let rank 0 say what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2, help="of each worker (%(default)s)")
    parser.add_argument(
        "--epochs", type=int, default=8, help="times through the rows (%(default)s)"
    )
    parser.add_argument("--rate", type=float, default=0.05, help="of learning (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of rows (%(default)s)")
    options = parser.parse_args()
    if options.threads < 1:
        parser.error(f"--threads {options.threads}: a worker needs one at least")
    with ftcomm.init() as comm:
        weights = train(comm, options)
        if comm.rank == 0:
            print(f"model {hashlib.sha256(weights.tobytes()).hexdigest()}")


if __name__ == "__main__":
    main()
