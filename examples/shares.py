"""Shares by speed: a worker gets as many rows as it handles while the others handle theirs.

    python examples/shares.py                                        # alone
    ftcomm-tracker run -n 3 python examples/shares.py --slow 3    # rank 0 takes three times as long

Data-parallel training with equal shares waits in each step for the slowest worker: it assumes
"equal compute capacity" (Vishnu et al., "Distributed TensorFlow with MPI", 2016).  Here
each worker first measures how many rows a second it handles; all learn all rates, and rank 0 deals
the rows by them.  The gradient is a sum over all rows, so what is computed stays the same but for
the order of additions.  --equal deals equal shares, to compare.

All this is in the prelude, before `load_checkpoint`.  So a worker that is killed gets the rates and
the rows that it had got, however fast its next process is, and the model is the same to the bit.  A
job that has lost all workers measures again.  With --rates nothing is measured, and each run has
the same bits.
"""

import argparse
import hashlib
import time

import numpy as np
import numpy.typing as npt
from mushroom import DATA, WIDTH, accuracy, load_rows, share_of_step

import ftcomm

SAMPLE = 256  # rows that are measured with

Floats = npt.NDArray[np.float64]


def share(weights: Floats, rows: Floats, labels: Floats, times: int) -> Floats:
    """These rows' share of a step, computed `times` times: a slow worker."""
    for _ in range(times - 1):
        share_of_step(weights, rows, labels)
    return share_of_step(weights, rows, labels)


def measured_rate(times: int, seconds: float) -> float:
    """Rows a second that this worker handles, by as many samples as fit into the time."""
    rows, labels = np.ones((SAMPLE, WIDTH)), np.ones(SAMPLE)
    began, samples = time.perf_counter(), 0
    while not samples or time.perf_counter() - began < seconds:
        share(np.zeros(WIDTH), rows, labels, times)
        samples += 1
    return SAMPLE * samples / (time.perf_counter() - began)


def counts_by(rates: Floats, rows: int) -> list[int]:
    """Rows of each worker, in proportion to the rates; they add up to `rows`."""
    ends = np.rint(np.cumsum(rates) / rates.sum() * rows).astype(int)
    return [int(count) for count in np.diff(ends, prepend=0)]


def deal(comm: ftcomm.Communicator, rates: Floats) -> tuple[Floats, Floats]:
    """This worker's rows and labels, of those that rank 0 reads."""
    parts = None
    if comm.rank == 0:
        features, labels = load_rows(DATA / "agaricus.train.svm", 0, 1)
        ends = np.cumsum(counts_by(rates, len(labels)))
        parts = np.split(np.column_stack([features, labels]), ends[:-1])
    mine = comm.scatterv(parts)
    return mine[:, :-1].copy(), mine[:, -1].copy()


def train(comm: ftcomm.Communicator, options: argparse.Namespace) -> Floats:
    """Train to the last step, from wherever the job stands, and return the weights."""
    times = options.slow if comm.rank == 0 else 1
    if options.rates:
        rates = np.array(options.rates)
    else:
        own = 1.0 if options.equal else measured_rate(times, options.measure)
        rates = comm.allgather(own)
    rows, labels = deal(comm, rates)
    total = int(comm.allreduce(len(labels)))

    step, weights = comm.load_checkpoint(default=np.zeros(WIDTH))
    began, computed = time.perf_counter(), 0.0
    while step < options.steps:
        before = time.perf_counter()
        own_share = share(weights, rows, labels, times)
        computed += time.perf_counter() - before
        weights = weights - options.rate / total * comm.allreduce(own_share)[:-1]
        step = comm.checkpoint(weights)
    took = time.perf_counter() - began
    for rank, (count, seconds) in enumerate(comm.allgather(np.array([len(labels), computed]))):
        if comm.rank == 0:
            print(f"rank {rank}: {count:.0f} rows, computed {seconds:.2f} of {took:.2f} s")
    return np.asarray(weights)


def rates_in(text: str) -> list[float]:
    """Numbers above 0, separated by commas."""
    rates = [float(part) for part in text.split(",")]
    if not all(0.0 < rate < float("inf") for rate in rates):
        raise argparse.ArgumentTypeError(f"{text}: each must be above 0")
    return rates


def main() -> None:
    """Train, and let rank 0 say what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100, help="of training (%(default)s)")
    parser.add_argument("--rate", type=float, default=2.0, help="of learning (%(default)s)")
    parser.add_argument("--slow", type=int, default=1, help="times that rank 0 computes a step")
    parser.add_argument("--measure", type=float, default=0.3, help="seconds (%(default)s)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--equal", action="store_true", help="do not measure: equal shares")
    how.add_argument(
        "--rates", type=rates_in, metavar="RATES", help="of the ranks, such as 1,2,2: no measuring"
    )
    options = parser.parse_args()
    with ftcomm.init() as comm:
        if options.rates and len(options.rates) != comm.world_size:
            parser.error(f"--rates has {len(options.rates)} rates for {comm.world_size} ranks")
        weights = train(comm, options)
        if comm.rank == 0:
            test = load_rows(DATA / "agaricus.test.svm", 0, 1)
            print(f"test {100 * accuracy(weights, *test):.2f} %")
            print(f"model {hashlib.sha256(weights.tobytes()).hexdigest()}")


if __name__ == "__main__":
    main()
