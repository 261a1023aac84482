"""Jacobi: heat in a square plate, cut into blocks; neighbours exchange their edges.

    python examples/jacobi.py                                          # alone
    ftcomm-tracker run -n 4 python examples/jacobi.py               # four blocks

The plate is hot at its upper edge.  Each point becomes the mean of its four neighbours, sweep after
sweep, until nothing changes any more (Jacobi's method for Laplace's equation).  Each rank has one
block of the plate, with a frame of points that belong to its neighbours, which it gets by
`sendrecv` before each sweep.

A block is the local state of its rank.  A rank that is killed gets its block again from another
rank that keeps a copy, and the edges from those that sent them.
"""

import argparse
import hashlib

import numpy as np
import numpy.typing as npt

import ftcomm

Block = npt.NDArray[np.float64]


def grid_of(world_size: int) -> tuple[int, int]:
    """Rows and columns of blocks, as square as the number of ranks allows."""
    rows = next(r for r in range(int(world_size**0.5), 0, -1) if world_size % r == 0)
    return rows, world_size // rows


class Plate:
    """One rank's block, and the ranks around it."""

    def __init__(self, comm: ftcomm.Communicator, block: Block) -> None:
        self.comm, self.block = comm, block
        rows, columns = grid_of(comm.world_size)
        row, column = divmod(comm.rank, columns)
        self.up = comm.rank - columns if row > 0 else None
        self.down = comm.rank + columns if row < rows - 1 else None
        self.left = comm.rank - 1 if column > 0 else None
        self.right = comm.rank + 1 if column < columns - 1 else None

    def exchange(self) -> None:
        """Get the frame: the nearest points of each neighbour."""
        block = self.block
        self._swap(self.up, block[1, 1:-1], block[0, 1:-1])
        self._swap(self.down, block[-2, 1:-1], block[-1, 1:-1])
        self._swap(self.left, block[1:-1, 1], block[1:-1, 0])
        self._swap(self.right, block[1:-1, -2], block[1:-1, -1])

    def _swap(self, neighbour: int | None, edge: Block, frame: Block) -> None:
        """Send an edge to a neighbour, and put its edge into the frame."""
        if neighbour is not None:  # it sends the same number of points: the plate is cut evenly
            self.comm.sendrecv(edge, neighbour, neighbour, out=frame)

    def sweep(self) -> float:
        """Each point becomes the mean of its neighbours; return the greatest change."""
        block = self.block
        new = (block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]) / 4
        change = float(np.abs(new - block[1:-1, 1:-1]).max())
        block[1:-1, 1:-1] = new
        return change


def fresh_block(comm: ftcomm.Communicator, size: int) -> Block:
    """A cold block with its frame; above the uppermost blocks it is hot."""
    rows, columns = grid_of(comm.world_size)
    block = np.zeros((size // rows + 2, size // columns + 2))
    if comm.rank < columns:
        block[0] = 100.0
    return block


def run(comm: ftcomm.Communicator, options: argparse.Namespace) -> str:
    """Sweep from wherever the job stands; return a digest of the whole plate."""
    version, change, block = comm.load_checkpoint(
        default=np.inf, local_default=fresh_block(comm, options.size)
    )
    while version < options.rounds and change > options.until:
        plate = Plate(comm, block)
        own = 0.0
        for _ in range(options.sweeps):
            plate.exchange()
            own = plate.sweep()
        change = comm.allreduce(own, "max")
        version = comm.checkpoint(change, local=block)
        if comm.rank == 0:
            print(f"round {version}: the last sweep changed {change:.6f} degrees at most")
    inner = np.ascontiguousarray(block[1:-1, 1:-1])
    return hashlib.sha256(comm.allgather(inner).tobytes()).hexdigest()


def main() -> None:
    """Compute, and let rank 0 say what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--size", type=int, default=240, help="points along an edge of the plate (%(default)s)"
    )
    parser.add_argument(
        "--sweeps", type=int, default=50, help="between two checkpoints (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=20, help="at most (%(default)s)")
    parser.add_argument(
        "--until", type=float, default=1e-3, help="degrees that count as no change (%(default)s)"
    )
    options = parser.parse_args()
    with ftcomm.init() as comm:
        rows, columns = grid_of(comm.world_size)
        if options.size % rows or options.size % columns:
            parser.error(f"--size {options.size} is no multiple of {rows} and {columns} blocks")
        digest = run(comm, options)
        if comm.rank == 0:
            print(f"model {digest}")


if __name__ == "__main__":
    main()
