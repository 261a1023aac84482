"""Program of every form that a call with a result of each rank's own has."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.conformance.rank_result_programs import check
from tests.conformance.recorder import Recorder

Array = np.ndarray[Any, Any]
ROWS = 5000  # of each block: 40 KB, so that all is logged by contributions


class Forms:
    """One rank's calls in one version."""

    def __init__(self, record: Recorder, state: float) -> None:
        self.record, self.comm, self.log = record, record.comm, record.spec.get("log")
        rank, size = self.comm.rank, self.comm.world_size
        numbers = [np.arange(float(ROWS * size)) + 7 * each + state for each in range(size)]
        self.x = numbers[rank]
        own = slice(rank * ROWS, (rank + 1) * ROWS)
        self.blocks = np.concatenate([x[own] for x in numbers])  # of all ranks for this one
        self.total = np.sum(numbers, axis=0)
        self.part = self.total[own]

    def call(self, what: str, function: Callable[[], Any], wanted: Any) -> Any:
        """Make a call; it must give the same bits in each process of this rank."""
        comm = self.comm
        place = f"{comm.version}.{comm.seqno}@{comm.rank}"
        got, _ = self.record.local(what, place, lambda: (function(), wanted))
        check(got, wanted, what)
        return got

    def into_out(self) -> None:
        """Results in the user's own arrays, beside the input and in its place."""
        out, both, part = np.empty_like(self.x), self.x.copy(), np.empty(ROWS)
        exchange = partial(self.comm.alltoall, log=self.log)
        reduce_scatter = partial(self.comm.reduce_scatter, log=self.log)
        assert self.call("out", lambda: exchange(self.x, out=out), self.blocks) is out
        assert self.call("in place", lambda: exchange(both, out=both), self.blocks) is both
        got = self.call("reduce_scatter", lambda: reduce_scatter(self.x, out=part), self.part)
        assert got is part

    def lent(self) -> None:
        """Inputs that the log does not copy."""
        lent = self.x.copy()
        exchange = partial(self.comm.alltoall, log=self.log)
        self.call("lent", lambda: exchange(lent, copy=False), self.blocks)
        reduce_scatter = partial(self.comm.reduce_scatter, log=self.log)
        self.call("reduce_scatter lent", lambda: reduce_scatter(lent, copy=False), self.part)

    def made_late(self) -> None:
        """Inputs from functions, and calls that are waited for later."""
        exchange = partial(self.comm.alltoall, log=self.log)
        self.call("function", lambda: exchange(lambda: self.x), self.blocks)
        begin = partial(self.comm.ialltoall, log=self.log)
        self.call("nonblocking", lambda: begin(self.x).wait(), self.blocks)
        handle = self.comm.ireduce_scatter(self.x, log=self.log)
        check(handle.wait(), self.part, "reduce_scatter begun")

    def rounded(self) -> None:
        """A reduction that travels as bfloat16: of small whole numbers, which it has exactly."""
        x = np.full(4 * ROWS * self.comm.world_size, 1.0 + self.comm.rank, np.float32)
        total = np.full_like(x, sum(range(1, self.comm.world_size + 1)))
        wanted = total if self.comm.rank == 1 else None
        reduce = partial(self.comm.reduce, log=self.log)
        self.call("wire", lambda: reduce(x, root=1, wire="bf16"), wanted)


def rank_result_forms(record: Recorder) -> Any:
    """Two versions of all forms; the second depends on the first."""
    first, state = record.load(0.0)
    for _ in range(first, 2):
        forms = Forms(record, state)
        forms.into_out()
        forms.lent()
        forms.made_late()
        forms.rounded()
        state = float(record.allreduce(forms.total[:1], "max")[0])
        record.checkpoint(state)
    return state


PROGRAMS = {"rank_result_forms": rank_result_forms}
