"""Programs of collectives that give each rank a result of its own, checked against plain numpy.

Sums here depend on their order: the harness compares their bits with those of a run without faults.
"""

import os
from typing import Any

import numpy as np

from tests.conformance.kinds import same
from tests.conformance.recorder import Recorder

Array = np.ndarray[Any, Any]
ROWS = 300  # of each block; a row is two numbers
CALLS = 2  # of one kind in a version


class RankResults:
    """One rank's calls at one step, each with what this rank must get."""

    def __init__(self, record: Recorder, step: int, state: float) -> None:
        self.comm, self.log = record.comm, record.spec.get("log")
        self.rank, self.size = self.comm.rank, self.comm.world_size
        self.root, self.step, self.state = step % self.size, step, state
        self.is_root = self.rank == self.root
        self.inputs = [self._given(rank) for rank in range(self.size)]
        self.x = self.inputs[self.rank]

    def _given(self, rank: int) -> Array:
        rng = np.random.default_rng((rank, self.step))
        rows = rng.standard_normal((ROWS * self.size, 2)) * 10.0 ** rng.integers(-3, 4)
        return rows + self.state

    def _of(self, x: Array, rank: int) -> Array:
        """Block `rank` of as many equal ones."""
        return x[rank * ROWS : (rank + 1) * ROWS]

    def _ragged(self, source: int, target: int) -> Array:
        """The rows of one rank for another: none at all among them."""
        return self.inputs[source][: (source * target + self.step) % 5 * 50]

    def reduce_scatter(self) -> tuple[Any, Any]:
        """Equal blocks, by the ring."""
        got = self.comm.reduce_scatter(self.x, algorithm="ring", log=self.log)
        return got, self._of(sum(self.inputs), self.rank)

    def reduce_scatter_counts(self) -> tuple[Any, Any]:
        """Blocks of different lengths, one of them empty."""
        counts = [0, *[ROWS] * (self.size - 2), 2 * ROWS]
        got = self.comm.reduce_scatter(self.x, "max", counts, log=self.log)
        lo = sum(counts[: self.rank])
        return got, np.max(self.inputs, axis=0)[lo : lo + counts[self.rank]]

    def reduce(self) -> tuple[Any, Any]:
        """The mean for the root."""
        got = self.comm.reduce(self.x, "mean", self.root, log=self.log)
        return got, np.mean(self.inputs, axis=0) if self.is_root else None

    def alltoall(self) -> tuple[Any, Any]:
        """A transpose of blocks."""
        got = self.comm.alltoall(self.x, log=self.log)
        return got, np.concatenate([self._of(x, self.rank) for x in self.inputs])

    def alltoallv(self) -> tuple[Any, Any]:
        """A transpose of blocks of any length."""
        ranks = range(self.size)
        got = self.comm.alltoallv([self._ragged(self.rank, r) for r in ranks], log=self.log)
        return got, [self._ragged(r, self.rank) for r in ranks]

    def gather(self) -> tuple[Any, Any]:
        """A stack for the root."""
        got = self.comm.gather(self.x, self.root, log=self.log)
        return got, np.stack(self.inputs) if self.is_root else None

    def gatherv(self) -> tuple[Any, Any]:
        """Rows for the root."""
        rows = [self._ragged(rank, rank) for rank in range(self.size)]
        got = self.comm.gatherv(rows[self.rank], self.root, log=self.log)
        return got, np.concatenate(rows) if self.is_root else None

    def gather_object(self) -> tuple[Any, Any]:
        """Objects for the root."""
        things = [{"rank": rank, "x": x[:100]} for rank, x in enumerate(self.inputs)]
        got = self.comm.gather_object(things[self.rank], self.root, log=self.log)
        return got, things if self.is_root else None

    def scatter(self) -> tuple[Any, Any]:
        """Equal parts of the root's."""
        whole = self.inputs[self.root].reshape(self.size, ROWS, 2)
        got = self.comm.scatter(whole if self.is_root else None, self.root, log=self.log)
        return got, whole[self.rank]

    def scatterv(self) -> tuple[Any, Any]:
        """Parts of the root's, of any length."""
        parts = [self._ragged(self.root, rank) for rank in range(self.size)]
        got = self.comm.scatterv(parts if self.is_root else None, self.root, log=self.log)
        return got, parts[self.rank]

    def scatter_object(self) -> tuple[Any, Any]:
        """The root's objects."""
        things = [{"for": rank, "x": self._of(x, 0)} for rank, x in enumerate(self.inputs)]
        got = self.comm.scatter_object(things if self.is_root else None, self.root, log=self.log)
        return got, things[self.rank]


NAMES = tuple(name for name in vars(RankResults) if not name.startswith("_"))


def rank_results(record: Recorder) -> Any:
    """Two versions of calls of the kinds in `kinds`; each version depends on the one before."""
    comm = record.comm
    first, state = record.load(0.0)
    names = record.spec.get("kinds", NAMES)
    for version in range(first, 2):
        for step in range(CALLS * len(names)):
            calls = RankResults(record, CALLS * len(NAMES) * version + step, state)
            name = names[step // CALLS]
            place = f"{comm.version}.{comm.seqno}@{comm.rank}"
            got, wanted = record.local(name, place, getattr(calls, name))
            check(got, wanted, f"{name} on rank {comm.rank}")
        state = float(record.allreduce(np.array([state + calls.x[0, 0]]), "max")[0])
        record.checkpoint(state)
    return state


def check(got: Any, wanted: Any, what: str) -> None:
    """Compare bit for bit; a reduction within rounding, since its order is not numpy's."""
    if "reduce" in what and wanted is not None:
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-6, err_msg=what)
    else:
        same(got, wanted, what)


def other_bytes(record: Recorder) -> Any:
    """A restarted script gives other bytes to a call that the others have completed."""
    comm, log = record.comm, record.spec["log"]
    record.load(None)
    x = np.arange(8.0 * comm.world_size) + comm.rank + 0.5 * (comm.epoch > 1)
    record.local("alltoall", f"0.0@{comm.rank}", lambda: (comm.alltoall(x, log=log), None))
    record.allreduce(np.ones(1))
    return record.checkpoint(None)


def own_bytes(record: Recorder) -> Any:
    """Each process gives bytes of its own; all ranks have results of one execution of each call."""
    comm = record.comm
    record.load(None)
    own = np.full(comm.world_size, float(os.getpid()))
    for _ in range(2):
        given = [comm.alltoall(own, log="copies"), comm.alltoall(lambda: own, log="copies")]
        given += [np.concatenate(comm.alltoallv([[pid] for pid in own], log="copies"))]
        for pids in given:
            of_all = comm.allgather(pids)
            assert (of_all == of_all[0]).all(), of_all
    return record.checkpoint(None)


PROGRAMS = {"rank_results": rank_results, "other_bytes": other_bytes, "own_bytes": own_bytes}
