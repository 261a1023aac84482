"""A training program that calls every kind of collective, each checked against plain numpy.

Results that differ per rank are written down per rank.
"""

import asyncio
import contextlib
import functools
import math
import operator
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ftcomm
from tests.conformance.recorder import Recorder

Array = np.ndarray[Any, Any]
Case = tuple[Any, Callable[[int], Any]]  # what the call returns here, and what each rank must get


def same(got: Any, wanted: Any, what: str) -> None:
    """Compare bit for bit, inside containers too.

    Raises:
        AssertionError: saying which kind gave what.
    """
    if isinstance(wanted, np.ndarray):
        assert isinstance(got, np.ndarray), what
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), what
        assert got.tobytes() == wanted.tobytes(), what
    elif isinstance(wanted, (list, tuple)):
        assert type(got) is type(wanted), what
        assert len(got) == len(wanted), what
        for one, other in zip(got, wanted, strict=True):
            same(one, other, what)
    elif isinstance(wanted, dict):
        assert list(got) == list(wanted), what
        same(list(got.values()), list(wanted.values()), what)
    else:
        assert (type(got), got) == (type(wanted), wanted), what


def rows_of(rank: int, step: int) -> Array:
    """As many rows as the rank's number and the step say, none at all among them."""
    count = (3 * rank + step) % 5
    return np.full((count, 3), 10.0 * rank + step) + np.arange(3)


def thing_of(rank: int, step: int) -> dict[str, Any]:
    """An object with something of everything in it."""
    return {"rank": rank, "w": np.arange(rank + step), "t": (1.5, None, [b"x", "ü", 1 << 70])}


class _Kinds:
    """One rank's calls at one step, each with what every rank must get."""

    def __init__(self, record: Recorder, step: int) -> None:
        self.record = record
        self.comm = record.comm
        self.rank, self.size = record.comm.rank, record.comm.world_size
        self.step = step
        self.root = step % self.size
        self.ranks = range(self.size)

    def given(self, x: Any) -> Any:
        """Return the argument for `x`: a function that records its call, if asked for."""
        if not self.record.spec.get("lazy"):
            return x
        position = f"{self.comm.version}.{self.comm.seqno}"

        def make() -> Any:
            self.record.events.write(kind="made", rank=self.rank, pos=position)
            return x

        return make

    def reduction(self) -> Case:
        """A product of matrices: neither elementwise nor commutative."""
        factors = [np.array([[1, rank + 1], [self.step, 1]]) for rank in self.ranks]
        op = ftcomm.reduction(np.matmul, name="matmul", elementwise=False, commutative=False)
        got = self.comm.allreduce(self.given(factors[self.rank]), op)
        return got, lambda _: functools.reduce(operator.matmul, factors)

    def broadcast(self) -> Case:
        """The root's array; the others' content does not count."""
        got = self.comm.broadcast(self.given(np.full((2, 2), float(self.rank))), self.root)
        return got, lambda _: np.full((2, 2), float(self.root))

    def allgather(self) -> Case:
        """A stack for all."""
        got = self.comm.allgather(self.given(np.full(2, self.rank * 1.5)))
        return got, lambda _: np.stack([np.full(2, rank * 1.5) for rank in self.ranks])

    def allgatherv(self) -> Case:
        """Rows of all."""
        rows = [rows_of(rank, self.step) for rank in self.ranks]
        got = self.comm.allgatherv(self.given(rows_of(self.rank, self.step)))
        return got, lambda _: np.concatenate(rows)

    def scatter_array(self) -> Case:
        """One element for each."""
        parts = np.arange(self.size * 6, dtype=np.int32).reshape(self.size, 2, 3) + self.step
        got = self.comm.scatter(self.given(parts), self.root)
        return got, lambda rank: parts[rank]

    def scatter_list(self) -> Case:
        """Parts of different lengths."""
        parts = np.array_split(np.arange(self.size * 2 + 1) / 3 + self.step, self.size)
        got = self.comm.scatter(self.given(parts), self.root)
        return got, lambda rank: parts[rank]

    def broadcast_object(self) -> Case:
        """The root's object."""
        own = thing_of(self.rank, self.step)
        got = self.comm.broadcast_object(own, self.root)
        return got, lambda _: thing_of(self.root, self.step)

    def allgather_object(self) -> Case:
        """Objects of all, of different sizes."""
        got = self.comm.allgather_object(thing_of(self.rank, self.step))
        return got, lambda _: [thing_of(rank, self.step) for rank in self.ranks]

    def reduce(self) -> Case:
        """The sum for the root."""
        got = self.comm.reduce(self.given(np.full(5, 1 + self.rank + self.step)), "sum", self.root)
        total = np.full(5, sum(1 + rank + self.step for rank in self.ranks))
        return got, lambda rank: total if rank == self.root else None

    def gather(self) -> Case:
        """A stack for the root."""
        got = self.comm.gather(self.given(np.full(2, self.rank * 1.5)), self.root)
        stack = np.stack([np.full(2, rank * 1.5) for rank in self.ranks])
        return got, lambda rank: stack if rank == self.root else None

    def gatherv(self) -> Case:
        """Rows for the root."""
        rows = [rows_of(rank, self.step) for rank in self.ranks]
        got = self.comm.gatherv(self.given(rows_of(self.rank, self.step)), self.root)
        return got, lambda rank: np.concatenate(rows) if rank == self.root else None


KINDS = (
    "allgatherv",
    "scatter_array",
    "scatter_list",
    "broadcast_object",
    "allgather_object",
    "reduce",
    "gather",
    "gatherv",
    "reduction",
    "broadcast",
    "allgather",
)


def every_kind(record: Recorder) -> Any:
    """Each version calls each kind once; version 1 is where tests kill."""
    comm = record.comm
    first, total = record.load(0.0)
    for version in range(first, 2):
        for number, name in enumerate(KINDS):
            kinds = _Kinds(record, 8 * version + number)
            place = f"{comm.version}.{comm.seqno}@{comm.rank}"
            got, wanted = record.local(name, place, getattr(kinds, name))
            same(got, wanted(comm.rank), f"{name} on rank {comm.rank}")
            total += math.fsum(np.ravel(wanted(kinds.root)).tolist()) if number < 3 else 1.0
        total = float(comm.allreduce(total, "max"))
        assert record.checkpoint(total) == version + 1
    return total


def lazy_broadcasts(record: Recorder) -> Any:
    """More broadcasts in a row than pass without a barrier, of functions."""
    comm = record.comm
    _, total = record.load(0.0)
    for step in range(record.spec["steps"]):
        root = step % comm.world_size
        total += float(record.broadcast(functools.partial(np.float64, comm.rank + step), root))
    record.checkpoint(total)
    return total


def lazy_unlike(record: Recorder) -> Any:
    """A restarted script calls another reduction, of a function that must not be called."""
    record.load(None)
    changed = record.comm.epoch > 1

    def make() -> Array:
        assert not changed
        return np.ones(3)

    record.allreduce(record.allreduce(make, "max" if changed else "sum"))
    return record.checkpoint(None)


def half_wire(record: Recorder) -> Any:
    """Float32 that travels as bfloat16, small and large, as arrays and from functions."""
    comm = record.comm
    first, total = record.load(np.zeros(5, np.float32))
    for version in range(first, 2):
        rng = np.random.default_rng((version, comm.rank))
        for op, count in (("sum", 5), ("mean", 300_000), ("max", 5)):
            x = rng.standard_normal(count).astype(np.float32)
            got = record.allreduce(x, op, wire="bf16")
            again = record.allreduce(functools.partial(np.copy, x), op, wire="bf16")
            assert got.dtype == np.float32
            assert got.tobytes() == again.tobytes()
            total = total + got[:5]
        wanted = record.allreduce(x, wire="bf16")
        reduced = comm.reduce(x, root=1, wire="bf16")
        assert reduced is None if comm.rank != 1 else reduced.tobytes() == wanted.tobytes()
        record.checkpoint(total)
    return total


def half_means(record: Recorder) -> Any:
    """Means of float16 whose sums are too large for float16, small and large."""
    comm = record.comm
    first, total = record.load(np.zeros(3, np.float16))
    for version in range(first, 2):
        for count in (3, 300_000):
            x = np.full(count, 60000 + 32 * (comm.rank + version), np.float16)
            wanted = np.full(count, 60000 + 32 * (1 + version), np.float16)
            for given in (x, functools.partial(np.copy, x)):
                same(record.allreduce(given, "mean"), wanted, "mean")
            reduced = comm.reduce(x, "mean", root=1)
            same(reduced, wanted if comm.rank == 1 else None, "mean at the root")
            part = comm.reduce_scatter(x, "mean", log="contributions")
            same(part, wanted[: count // 3], "a part of the mean")
        total = total + wanted[:3] / 100
        record.checkpoint(total)
    return total


def tied_weights(record: Recorder) -> Any:
    """One array under two names, and a list: trained by one name, read by the other."""
    w, names = np.zeros(3), ["w"]
    first, state = record.load({"encoder": w, "decoder": w, "names": names, "more": [names]})
    for version in range(first, 4):
        state["encoder"] += record.allreduce(np.full(3, version + record.comm.rank))
        state["names"].append(str(version))
        assert state["decoder"] is state["encoder"]
        assert state["more"][0] is state["names"]
        record.allreduce(state["decoder"])
        record.checkpoint(state)
    return state["decoder"]


def of_bfloat16(record: Recorder) -> Any:
    """Arrays of ml_dtypes.bfloat16, in every kind that carries arrays."""
    from ml_dtypes import bfloat16  # noqa: PLC0415 - optional; the other programs need it not

    comm = record.comm
    first, total = record.load(np.zeros(5, bfloat16))
    for version in range(first, 2):
        x = np.random.default_rng((version, comm.rank)).standard_normal(200_000).astype(bfloat16)
        mean = record.allreduce(x, "mean")
        small = record.allreduce(functools.partial(np.copy, x[:5]))
        wide = comm.allreduce(x[:5].astype(np.float32), wire="bf16")
        assert (mean.dtype, small.dtype) == (bfloat16, bfloat16)
        assert wide.astype(bfloat16).tobytes() == small.tobytes()
        for _ in range(3):  # the second one is a call like one before it
            assert record.allreduce(x[:5]).tobytes() == small.tobytes()
        rows = record.allgather(x[:7])
        assert rows[comm.rank].tobytes() == x[:7].tobytes()
        joined = record.call("allgatherv", functools.partial(comm.allgatherv, x[:9]))
        assert joined.shape == (9 * comm.world_size,)
        shared = record.broadcast(x[:5], 1)
        total = total + small + shared
        record.checkpoint(total)
    return total


def unlike_wires(record: Recorder) -> Any:
    """One rank asks for another format than the others."""
    record.load(None)
    record.allreduce(np.ones(3, np.float32))
    return record.allreduce(np.ones(3, np.float32), wire="bf16" if record.comm.rank else None)


def into_out(record: Recorder) -> Any:
    """Every kind that returns an array fills one of the user's, in replay too.

    One rank gives an array with a row too few where only the run can tell; the call is made again.
    """
    comm = record.comm
    rank, size = comm.rank, comm.world_size
    _, place = record.load(None)
    if place is not None:
        return place
    x = np.arange(4.0) + rank
    total, stack = (
        np.arange(4.0) * size + sum(range(size)),
        np.arange(4.0) + np.arange(size)[:, None],
    )
    rows = np.concatenate([rows_of(other, 1) for other in range(size)])

    def filled(what: str, shape: tuple[int, ...], call: Callable[..., Any], wanted: Any) -> None:
        out = np.full(shape, np.nan)
        place = f"{comm.version}.{comm.seqno}.{rank}"
        got, _ = record.local(what, place, lambda: (call(out=out), wanted))
        same(out if got is out else got, wanted, what)

    def first(wanted: Any) -> Any:
        return wanted if rank == 0 else None

    filled("allreduce", (4,), functools.partial(comm.allreduce, x), total)
    filled("reduce", (4,), functools.partial(comm.reduce, x), first(total))
    filled("allgather", (size, 4), functools.partial(comm.allgather, x), stack)
    filled("gather", (size, 4), functools.partial(comm.gather, x), first(stack))
    with (
        pytest.raises(ValueError, match="the result is") if rank == 1 else contextlib.nullcontext()
    ):
        comm.allgatherv(rows_of(rank, 1), out=np.empty((len(rows) - (rank == 1), 3)))
    if rank == 1:
        got = comm.allgatherv(rows_of(rank, 1), out=np.empty(rows.shape))
        same(got, rows, "allgatherv")
    filled("gatherv", rows.shape, functools.partial(comm.gatherv, rows_of(rank, 1)), first(rows))
    parts = list(stack) if rank == 0 else None
    filled("scatter", (4,), functools.partial(comm.scatter, parts), stack[rank])
    place = np.array(x)
    assert record.call("broadcast", lambda: comm.broadcast(place, 1, out=place)) is place
    same(place, stack[1], "broadcast")
    record.checkpoint(place)
    return place


def from_the_root(record: Recorder) -> Any:
    """Broadcasts of which the root alone has the array, or some others too, in every way."""
    comm = record.comm
    rank, size = comm.rank, comm.world_size
    step, _ = record.load(None)
    if step:
        return step
    large = np.arange(5 << 17) * 1.5  # 5 MiB: from 3 ranks on it goes along a chain
    cases: list[tuple[Any, dict[str, Any]]] = [
        (np.arange(6, dtype=np.int16).reshape(1, 2, 3), {}),
        (np.array(2.5, np.float32), {}),
        (np.zeros((0, 3)), {}),
        (large, {}),
        (np.arange(5), {"algorithm": "chain"}),
        (large, {"algorithm": "tree"}),
        (np.array([True, False]), {"algorithm": "tree"}),
        (2.5, {}),
        (7, {}),
        (True, {"algorithm": "chain"}),
        (1.5 + 2j, {}),
        (np.float64(0.5), {}),
    ]
    for number, (wanted, options) in enumerate(cases):
        root = number % size
        zero = np.zeros_like(wanted) if isinstance(wanted, np.ndarray) else type(wanted)(0)
        others = None if (rank + number) % 4 else zero  # mixed: each may choose
        x = wanted if rank == root else others
        got = record.call(
            "broadcast", lambda x=x, root=root, o=options: comm.broadcast(x, root, **o)
        )
        same(got, wanted, f"broadcast {number}")
        # Submitted inside: the queue may have passed the position before it is written down.
        got = record.call(
            "ibroadcast", lambda x=x, root=root, o=options: comm.ibroadcast(x, root, **o).wait()
        )
        same(got, wanted, f"ibroadcast {number}")
        x, out = wanted if rank == root else None, np.empty_like(np.asarray(wanted))
        got = record.call(
            "ibroadcast",
            lambda x=x, root=root, out=out, o=options: comm.ibroadcast(
                x, root, out=out, **o
            ).wait(),
        )
        assert got is out
        same(out, np.asarray(wanted), f"ibroadcast {number}")
    for number in range(70):  # past the one that ends with a barrier
        record.broadcast(np.full(3, number) if rank == number % size else None, number % size)
    return record.checkpoint(None)


def unnamed_shape(record: Recorder) -> Any:
    """The root's array has more dimensions than come with it, or it calls something else."""
    record.load(None)
    x = None if record.comm.rank else np.zeros((1, 1, 2, 1, 3))
    if record.spec["call"] == "broadcast":
        return record.broadcast(x)
    return record.allgather(x) if x is not None else record.broadcast(None)


def timed(record: Recorder) -> Any:
    """A collective with a deadline that somebody does not enter in time."""
    record.load(None)
    record.allreduce(np.ones(3))
    return record.allreduce(np.ones(3), deadline=record.spec["deadline"])


def timed_call(record: Recorder) -> Any:
    """The call that the spec names; somebody does not enter it in time, or dies in it."""
    comm, what, deadline = record.comm, record.spec["call"], record.spec.get("deadline")
    if what == "load_checkpoint":
        return record.call(what, lambda: comm.load_checkpoint(None, deadline=deadline))
    record.load(None)
    if what == "checkpoint":
        return record.call(what, lambda: comm.checkpoint(None, deadline=deadline))
    if what == "barrier":
        return record.call(what, lambda: comm.barrier())  # noqa: PLW0108 - the line that errors name
    return record.call(what, lambda: comm.close(deadline=deadline))


def too_much(record: Recorder) -> Any:
    """Results whose size only all ranks together know, until the log is full."""
    comm = record.comm
    record.load(None)
    for step in range(100):
        call = (comm.allgatherv, comm.broadcast_object, comm.allgather_object)[step % 3]
        call(np.zeros(1000 * (1 + comm.rank), np.uint8))


def unsteady(record: Recorder) -> Any:
    """Rank 1's second incarnation computes something else in the collective that `at` names."""
    comm, spec = record.comm, record.spec
    record.load(None)
    for step in range(4):
        changed = comm.rank == 1 and comm.epoch > 1 and step == spec["at"]
        got = comm.allreduce(np.full(3, 7.0 if changed else 1.0))
        comm.broadcast(np.full(2, comm.epoch), 0)  # what does not count may change
    record.checkpoint(got)
    return got


def surroundings(record: Recorder) -> Any:
    """A notebook's event loop, a forked child, a second init, leaving and joining again."""
    return asyncio.run(_surroundings(record))


async def _surroundings(record: Recorder) -> Any:
    comm = record.comm
    record.load(None)
    record.allreduce(np.ones(3))
    for _ in range(2):  # a notebook's cell that is run again
        with pytest.raises(ftcomm.ThreadError, match="close it, or use it"):
            ftcomm.init()
    _fork(comm)
    got = record.allreduce(np.full(3, 2.0))
    if comm.rank == 1:
        record.comm = comm = _joined_again(comm)
        record.load(None)
        record.allreduce(np.ones(3))
        record.allreduce(np.full(3, 2.0))
        stats = comm.stats()
        assert (stats.replays, stats.kinds["allreduce"].count) == (3, 2), stats
    record.allreduce(got)
    record.checkpoint(got)
    comm.close()
    return got


def _fork(comm: ftcomm.Communicator) -> None:
    """A child comes and goes."""
    child = os.fork()
    if child == 0:
        os._exit(_in_a_child(comm))
    assert os.waitpid(child, 0)[1] == 0


def _in_a_child(comm: ftcomm.Communicator) -> int:
    """0 if the parent's communicator refuses, and leaving its block says nothing to anyone."""
    try:
        with comm:
            comm.barrier()
    except ftcomm.ForkError as error:
        return 0 if "belongs to the parent" in str(error) else 1
    return 2


def _joined_again(comm: ftcomm.Communicator) -> ftcomm.Communicator:
    """An error leaves the block; the same process joins as a new incarnation."""
    with pytest.raises(ZeroDivisionError), comm:
        operator.truediv(1, 0)
    return ftcomm.init()


PROGRAMS: dict[str, Callable[[Recorder], Any]] = {
    function.__name__: function
    for function in (
        every_kind,
        from_the_root,
        half_means,
        half_wire,
        into_out,
        lazy_broadcasts,
        lazy_unlike,
        of_bfloat16,
        timed,
        timed_call,
        too_much,
        unlike_wires,
        unnamed_shape,
        unsteady,
        surroundings,
        tied_weights,
    )
}
