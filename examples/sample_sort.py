"""Sample sort: numbers that lie on all ranks are sorted over all ranks, batch after batch.

    python examples/sample_sort.py                                     # alone
    ftcomm-tracker run -n 4 python examples/sample_sort.py          # four workers

Each rank sorts its own numbers and offers a few of them as a sample.  The samples of all ranks give
the bounds between ranks, and one alltoallv sends each number to the rank whose range it lies in.
Then each rank sorts what it got, and all ranks in rank order have the sorted batch (Frazer and
McKellar, 1970).

A rank that is killed gets its share of the batch again from what the others have kept of theirs.
"""

import argparse
import hashlib

import numpy as np
import numpy.typing as npt

import ftcomm

Numbers = npt.NDArray[np.float64]
OVERSAMPLING = 16  # samples of each rank for each bound: more of them, more equal shares


def batch_of(rank: int, batch: int, options: argparse.Namespace) -> Numbers:
    """The numbers that `rank` begins with, which are not spread evenly."""
    rng = np.random.default_rng((options.seed, batch, rank))
    numbers: Numbers = rng.standard_normal(options.count) * (rank + 1)
    return numbers


def bounds_between_ranks(comm: ftcomm.Communicator, own: Numbers) -> Numbers:
    """The same ``world_size - 1`` bounds on all ranks, from samples of all."""
    picks = np.linspace(0, len(own) - 1, OVERSAMPLING * comm.world_size).astype(int)
    samples = np.sort(comm.allgather(own[picks]), axis=None)
    return samples[OVERSAMPLING * comm.world_size :: OVERSAMPLING * comm.world_size]


def sort_over_ranks(comm: ftcomm.Communicator, numbers: Numbers) -> Numbers:
    """This rank's share of all ranks' numbers, sorted; no number of a lower rank is greater."""
    own = np.sort(numbers)
    bounds = bounds_between_ranks(comm, own)
    shares = comm.alltoallv(np.split(own, np.searchsorted(own, bounds)))
    return np.sort(np.concatenate(shares))


def check(comm: ftcomm.Communicator, share: Numbers, count: int) -> list[int]:
    """The number of numbers on each rank, which must be in order over ranks, and all there."""
    low, high = (share[0], share[-1]) if len(share) else (np.inf, -np.inf)
    ends = comm.allgather(np.array([low, high, len(share)]))
    filled = ends[ends[:, 2] > 0]
    if not (filled[1:, 0] >= filled[:-1, 1]).all() or ends[:, 2].sum() != count:
        raise AssertionError(f"this is not sorted: {ends.tolist()}")
    return [int(number) for number in ends[:, 2]]


def run(comm: ftcomm.Communicator, options: argparse.Namespace) -> str:
    """Sort all batches, from wherever the job stands; return a digest of all."""
    batch, digest = comm.load_checkpoint(default="")
    while batch < options.batches:
        share = sort_over_ranks(comm, batch_of(comm.rank, batch, options))
        sizes = check(comm, share, options.count * comm.world_size)
        own = np.frombuffer(hashlib.sha256(share.tobytes()).digest(), np.uint8)
        digest = hashlib.sha256(digest.encode() + comm.allgather(own).tobytes()).hexdigest()
        batch = comm.checkpoint(digest)
        if comm.rank == 0:
            print(f"batch {batch}: the ranks have {sizes} numbers")
    return str(digest)


def main() -> None:
    """Sort, and let rank 0 say what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=10, help="how many (%(default)s)")
    parser.add_argument(
        "--count", type=int, default=200_000, help="numbers of each rank in a batch (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the numbers (%(default)s)")
    options = parser.parse_args()
    with ftcomm.init() as comm:
        digest = run(comm, options)
        if comm.rank == 0:
            print(f"model {digest}")


if __name__ == "__main__":
    main()
