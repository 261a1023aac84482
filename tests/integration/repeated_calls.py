"""A worker that makes the same calls again and again: ``repeated_calls.py FOLDER``.

Worker 1 kills itself once, in the middle, if FOLDER holds a file ``kill``.  Rank 0 writes a digest
of all results, and how many calls took the slow path, into FOLDER.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import ftcomm
from ftcomm.communicator import Communicator
from ftcomm.engine.engine import DistributedEngine
from ftcomm.memory.pool import LoggedResult
from ftcomm.protocol.signature import Kind
from ftcomm.requests.request import Request

ROUNDS = 200
DIES_IN = 140
VERSION_ROUNDS = 50
POOLED = 40_000
KINDS = (Kind.ALLREDUCE, Kind.BROADCAST, Kind.ALLGATHER, Kind.ALLGATHERV, Kind.BARRIER)
LARGER = ftcomm.reduction(np.fmax, name="fmax")
NAMED = ftcomm.reduction(lambda a, b: np.maximum(a, b) + 1, name="higher")
STREAMED = (393_216, 262_145)  # segment by segment; three ranks share out the first evenly


class Counter:
    """Counts the calls of `KINDS` that take the slow path."""

    def __init__(self) -> None:
        self.count = 0
        long_way = DistributedEngine.run

        def run(engine: DistributedEngine, call: Request) -> LoggedResult:
            self.count += call.kind in KINDS
            return long_way(engine, call)

        DistributedEngine.run = run  # type: ignore[method-assign]  # to count


def one_round(comm: Communicator, number: int) -> list[Any]:
    """Calls of several forms, some of which may not go the fast path."""
    base = np.arange(6, dtype=np.float32) * (comm.rank + 1) + number
    table = base.reshape(2, 3).copy()
    out = np.empty_like(base)
    large = np.resize(base, POOLED)  # its results have memory from a pool
    results = [
        comm.allreduce(large, out=np.empty_like(large)),
        comm.allreduce(large, op="min"),
        comm.allreduce(large, op=max, copy=False),
        comm.allreduce(large, op="prod", out=large),
        shifted(comm, large),
        comm.allreduce(base, out=out),
        comm.allreduce(table, op=np.maximum),
        *[comm.allreduce(base, tag=tag) for tag in (1, "1", None)],
        comm.allreduce(base.astype(np.int64), copy=False),
        comm.allreduce(base, op="mean", out=base),
        comm.allreduce(table.T),
        comm.allreduce([number, comm.rank]),
        comm.allreduce(base, LARGER),
        comm.allreduce(base, NAMED),
        comm.broadcast(base, root=1),
        comm.broadcast(large, root=2, out=np.empty_like(large)),
        comm.broadcast(table, out=table),
        comm.broadcast(table if comm.rank == 2 else None, root=2),
    ]
    comm.barrier()
    results += numbers(comm, number)
    results += gathers(comm, number)
    if number % 5 == 0:
        results += [sum_of(comm, count, number) for count in STREAMED]
    if number % 7 == 0:
        results.append(comm.broadcast(table, root=number % comm.world_size))
    return [np.array(result) for result in results]


def numbers(comm: Communicator, number: int) -> list[Any]:
    """Compute the result of each number, of its type, executed or replayed."""
    given = [number, 0.5 * number, np.float32(number)]
    got = [comm.allreduce(x, "max") for x in given]
    assert [type(x) for x in got] == [int, float, np.float32]
    return got


def gathers(comm: Communicator, number: int) -> list[Any]:
    """Every rank's rows: it brings one more than the rank before it."""
    counts = list(range(1, comm.world_size + 1))
    all_rows = [np.full((count, 2), number + 0.5 * count) for count in counts]
    rows = all_rows[comm.rank]
    ends = np.array([rows[0, 0], comm.rank])
    large = np.full(POOLED, float(comm.rank + number))
    results = [
        comm.allgatherv(rows, counts),
        comm.allgather(ends, out=np.empty((comm.world_size, 2))),
        comm.allgather(large, copy=False),
    ]
    assert (results[0] == np.concatenate(all_rows)).all()
    assert results[1].tolist() == [[each[0, 0], rank] for rank, each in enumerate(all_rows)]
    assert (results[2][:, 0] == np.arange(comm.world_size) + number).all()
    return results


def shifted(comm: Communicator, x: Any) -> Any:
    """A sum put behind its input, which it overlaps."""
    wanted, memory = comm.allreduce(x), np.append(x, x[:5])
    got = comm.allreduce(memory[:-5], out=memory[5:])
    assert (got == wanted).all()
    return got


def sum_of(comm: Communicator, count: int, number: int) -> Any:
    """A sum that is known beforehand, of two different calls: memory may hold an older result."""
    for plus in (0, number):
        x = np.arange(count, dtype=np.float32) + (comm.rank + plus)
        result = comm.allreduce(x)
        ranks = range(comm.world_size)
        expected = sum((np.arange(count, dtype=np.float64) + (r + plus) for r in ranks), 0.0)
        assert (result == expected).all(), (count, number, plus)
    return result


def main() -> None:
    """Run all rounds."""
    folder, counter = Path(sys.argv[1]), Counter()
    with ftcomm.init() as comm:
        version, state = comm.load_checkpoint(default=b"")
        digest = state
        for number in range(version * VERSION_ROUNDS, ROUNDS):
            if number == DIES_IN and comm.worker_id == "1" and (folder / "kill").exists():
                (folder / "kill").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            for result in one_round(comm, number):
                raw = f"{result.dtype}{result.shape}".encode() + result.tobytes()
                digest = hashlib.sha256(digest + raw).digest()
            if (number + 1) % VERSION_ROUNDS == 0:
                comm.checkpoint(digest)
        if comm.rank == 0:
            (folder / "result").write_text(f"{digest.hex()} {counter.count}")


if __name__ == "__main__":
    main()
