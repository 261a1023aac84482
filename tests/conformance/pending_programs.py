"""Programs with many nonblocking calls in flight, each result compared with plain numpy.

Positions are counted here: where the communicator stands while calls are pending is its own affair.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ftcomm
from ftcomm.nonblocking.handle import Handle
from tests.conformance.recorder import Array, Recorder, same


class Line:
    """The calls of one version, in their order, and what each must give."""

    def __init__(self, record: Recorder, version: int) -> None:
        self.record, self.version = record, version
        self.comm = record.comm
        self.rank, self.ranks = record.comm.rank, range(record.comm.world_size)
        self.calls: list[tuple[Handle[Any] | Array, Array]] = []

    def call(self, step: int) -> None:
        """The next call, nonblocking or not: a matter of this rank alone."""
        name, arguments, wanted = self._choose(step)
        how = self.record.spec.get("how", "nonblocking")
        waits = {"nonblocking": False, "synchronous": True, "mixed": (step + self.rank) % 3 == 0}
        prefix = "" if waits[how] else "i"
        self.calls.append((getattr(self.comm, f"{prefix}{name}")(*arguments), wanted))

    def _choose(self, step: int) -> tuple[str, tuple[Any, ...], Array]:
        count = self.record.spec.get("count", 1000)
        blocks = [
            (np.arange(count * (1 + step % 3)) % 101 * (1.0 + of + step)).astype(np.float32)
            for of in self.ranks
        ]
        mine, root = blocks[self.rank], step % len(self.ranks)
        kinds: list[tuple[str, tuple[Any, ...], Array]] = [
            ("allreduce", (mine, "max"), np.maximum.reduce(blocks)),
            ("broadcast", (mine, root), blocks[root]),
            ("allgather", (mine,), np.stack(blocks)),
            ("allgatherv", (mine[: self.rank + step],), self._ragged(blocks, step)),
            ("allreduce", (mine.astype(np.int64),), np.add.reduce(blocks).astype(np.int64)),
            ("allreduce", (lambda: mine, "min"), np.minimum.reduce(blocks)),
            ("allreduce", (np.full(9, 6e4, np.float16),), np.full(9, np.inf, np.float16)),
        ]
        return kinds[step % len(kinds)]

    @staticmethod
    def _ragged(blocks: list[Array], step: int) -> Array:
        return np.concatenate([block[: of + step] for of, block in enumerate(blocks)])

    def results(self) -> Iterator[Array]:
        """All results, waited for from the last to the first, written down at their positions."""
        found = []
        for seqno, (call, wanted) in reversed(list(enumerate(self.calls))):
            got = call.wait() if isinstance(call, Handle) else call
            same(got, wanted, f"call {seqno}")
            self.record._write_result("call", f"{self.version}.{seqno}", got)
            found.append(got)
        return reversed(found)


def pending(record: Recorder) -> Any:
    """Thirty calls in flight, in the prelude too; a checkpoint while more are; then the next."""
    comm, spec = record.comm, record.spec
    steps = spec.get("steps", 30)
    prelude = Line(record, -1)
    for step in range(7):
        prelude.call(step)
    list(prelude.results())
    first, total = record.load(np.zeros(4))
    for version in range(first, spec.get("versions", 2)):
        line = Line(record, version)
        with np.errstate(all="raise"):  # no business of a collective's, on whatever thread
            for step in range(steps):
                line.call(step + version)
        for result in line.results():
            total = total + float(result.sum())
        late = [comm.iallreduce(np.full(3, comm.rank + number)) for number in range(5)]
        assert comm.checkpoint(total) == version + 1  # its turn comes after theirs
        assert all(handle.done() for handle in late)
        for number, handle in enumerate(late):
            record._write_result("late", f"{version}.{steps + number}", handle.wait())
        record._write_result("checkpoint", f"{version}.{steps + len(late)}", total)
    record.events.write(kind="replays", rank=comm.rank, count=comm.stats().replays)
    return total


def bucketed(record: Recorder) -> Any:
    """Gradients of many sizes and two dtypes in buckets, into themselves every other time."""
    comm, spec = record.comm, record.spec
    shapes = [(3, 50), (700,), (), (40, 40), (0, 3), (9,), (2500,)]

    def gradients(rank: int, step: int) -> list[Array]:
        return [
            np.full(shape, 1.0 + rank * step + number).astype(("f4", "f8")[number % 2])
            for number, shape in enumerate(shapes)
        ]

    first, total = record.load(0.0)
    for version in range(first, 3):
        buckets = 0
        for step in range(3):
            mine = gradients(comm.rank, step)
            out = mine if step % 2 else None
            got = comm.bucketed(mine, bucket_bytes=spec["bucket_bytes"], out=out)
            ranks = [gradients(rank, step) for rank in range(comm.world_size)]
            for number, parts in enumerate(zip(*ranks, strict=True)):
                same(got[number], np.add.reduce(parts, dtype=parts[0].dtype), f"part {number}")
            record._write_result("bucketed", f"{version}.{step}", tuple(got))
            total += sum(float(part.sum()) for part in got)
            buckets = comm.seqno
        assert buckets == 3 * spec["buckets"]
        comm.checkpoint(total)
        record._write_result("checkpoint", f"{version}.{buckets}", total)
    return total


def tasks(record: Recorder) -> Any:
    """Layers whose gradients are ready in another order on each rank; each is used once reduced."""
    comm, layers = record.comm, 6
    size, rank = comm.world_size, comm.rank
    busy = np.ones((120, 120))
    first, weights = record.load(np.arange(layers * 300.0).reshape(layers, 300))

    def backward(layer: int, weight: Array, gradient: Array) -> None:
        for _ in range((rank * 5 + layer * 3) % 7 * 4):
            busy @ busy
        gradient[...] = weight * (1.0 + rank) + layer

    def update(place: str, weight: Array, gradient: Array) -> None:
        record._write_result("task", place, gradient)
        weight -= gradient / (8 * size)

    for version in range(first, 3):
        ours = [weights[layer].copy() for layer in range(layers)]
        with comm.engine(workers=3) as engine:
            for seqno in range(3 * layers):
                layer = seqno % layers
                gradient, place = np.empty(300), f"{version}.{seqno}"
                here = functools.partial(backward, layer, ours[layer], gradient)
                engine.push(here, read=[ours[layer]], mutate=[gradient])
                engine.allreduce(gradient)
                there = functools.partial(update, place, ours[layer], gradient)
                engine.push(there, read=[gradient], mutate=[ours[layer]])
        weights = np.stack(ours)
        comm.checkpoint(weights)
        record._write_result("checkpoint", f"{version}.{3 * layers}", weights)
    return weights


def unlike_pending(record: Recorder) -> Any:
    """The odd rank calls another op in the middle of what is pending."""
    comm = record.comm
    record.load(None)
    handles = [comm.iallreduce(np.ones(3)) for _ in range(3)]
    handles.append(comm.iallreduce(np.ones(3), "max" if comm.rank == record.spec["odd"] else "sum"))
    handles += [comm.iallreduce(np.ones(3)) for _ in range(3)]
    before = [handle.wait().tolist() for handle in handles[:3]]
    assert before == [[comm.world_size] * 3] * 3
    words = []
    for ask in (*(handle.wait for handle in handles[3:]), comm.barrier):
        try:
            ask()
        except ftcomm.CollectiveMismatchError as error:
            words.append(str(error))
    assert (len(words), len(set(words))) == (5, 1)
    record.events.write(kind="mismatch", rank=comm.rank, text=words[0])
    handles[-1].wait()  # leaves the block, with its exit status


def timed_pending(record: Recorder) -> Any:
    """The second of three calls has a limit that passes."""
    comm, rank = record.comm, record.comm.rank
    record.load(None)
    comm.iallreduce(np.ones(3)).wait()
    record.wait_at("0.1")
    handles = [comm.iallreduce(np.ones(3), deadline=record.spec["deadline"]), comm.ibarrier()]
    record.events.write(kind="enter", rank=rank, pos="0.1")
    handles[-1].wait()


def behind_blocked(record: Recorder) -> Any:
    """Rank 0's second call has a limit, and its first one waits for rank 1 without one."""
    comm, rank = record.comm, record.comm.rank
    record.load(None)
    comm.iallreduce(np.ones(3)).wait()
    record.wait_at("0.1")
    handles = [comm.iallreduce(np.ones(3))]
    handles.append(comm.ibarrier(deadline=record.spec["deadline"] if rank == 0 else None))
    handles[-1].wait()


def late_turn(record: Recorder) -> Any:
    """Rank 0's call has its turn only when its time is over; the others wait for it there."""
    comm, limit = record.comm, record.spec["deadline"]
    record.load(None)
    submitted = threading.Event()

    def ones() -> Any:
        submitted.wait()
        threading.Event().wait(limit)
        return np.ones(3)

    if comm.rank:
        comm.allreduce(np.ones(3))
        return comm.barrier()
    comm.iallreduce(ones)
    handle = comm.ibarrier(deadline=limit)
    submitted.set()
    return handle.wait()


def left_while_pending(record: Recorder) -> Any:
    """The first incarnation of rank 1 leaves with calls in flight, in the way that `how` says."""
    comm, spec = record.comm, record.spec
    first, total = record.load(np.zeros(4))
    for version in range(first, 2):
        record.wait_at(f"{version}.0")
        handles = [comm.iallreduce(np.full(4, 1.0 + comm.rank + number)) for number in range(6)]
        if (comm.rank, version, comm.epoch) == (1, 1, 1):
            record.events.write(kind="leaving", rank=1, pos="1.0")
            if spec["how"] == "exception":
                raise ZeroDivisionError("rank 1 has had enough")
            if spec["how"] == "input":
                comm.iallreduce(lambda: np.ones(1) // np.array(["no number"]))
            if spec["how"] == "exit":
                raise SystemExit(3)
        for number, handle in enumerate(handles):
            total = total + handle.wait()
            record._write_result("call", f"{version}.{number}", handle.result())
        record.checkpoint(total)
    return total


PROGRAMS: dict[str, Callable[[Recorder], Any]] = {
    "pending": pending,
    "bucketed": bucketed,
    "tasks": tasks,
    "unlike_pending": unlike_pending,
    "timed_pending": timed_pending,
    "behind_blocked": behind_blocked,
    "late_turn": late_turn,
    "left_while_pending": left_while_pending,
}
