"""The training programs of the scenarios; each computes every element of a result again."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np

import ftcomm
from ftcomm.collectives.reductions import make_reducer
from ftcomm.collectives.selection import choose_algorithm
from ftcomm.protocol.host_groups import grouping_of, members_of
from ftcomm.protocol.signature import Algorithm, Kind
from ftcomm.recovery.call_progress import CallProgress
from tests.conformance.recorder import Array, Recorder, same
from tests.helpers.reference import expected_doubling, expected_fold, expected_ring

STRING_BYTES = 10_000  # of each broadcast in model_recover
_FORCED = {
    "auto": Algorithm.AUTO,
    "ring": Algorithm.RING,
    "recursive_doubling": Algorithm.RECURSIVE_DOUBLING,
}
_DEFINITIONS = {
    Algorithm.RING: expected_ring,
    Algorithm.RECURSIVE_DOUBLING: expected_doubling,
}


def expected_allreduce(inputs: list[Array], op: str, spec: Mapping[str, Any]) -> Array:
    """The canonical bits, from the written definition and not from the library's schedules."""
    first = inputs[0]
    reducer = make_reducer(op, first.dtype, shape=first.shape)
    size = len(inputs)
    grouping = grouping_of(spec.get("hosts") or "a" * size)
    algorithm = choose_algorithm(
        Kind.ALLREDUCE,
        size,
        first.nbytes,
        _FORCED[spec.get("algorithm", "auto")],
        whole=reducer.whole,
        grouping=grouping,
    )
    if algorithm is Algorithm.DIRECT:
        return expected_fold(inputs, reducer, members_of(grouping))
    return _DEFINITIONS[algorithm](inputs, reducer)


# --- the programs of the list ---------------------------------------------------------------------


def model_recover(record: Recorder) -> Any:
    """Every kind of collective, three versions, ten times the elements in each."""
    comm, spec = record.comm, record.spec
    rank, size = comm.rank, comm.world_size
    largest = record.allreduce(np.int64(rank), "max")
    assert int(largest) == size - 1
    first, model = record.load(np.linspace(0, 1, spec["count"], dtype=np.float32))
    for version in range(first, spec.get("versions", 3)):
        count = spec["count"] * 10**version
        model = _train(record, version, count, model)
        assert record.checkpoint(model) == version + 1
    return model


def _train(record: Recorder, version: int, count: int, model: Array) -> Array:
    rank, size = record.comm.rank, record.comm.world_size
    inputs = _inputs(size, version, count, model)
    _maximum(record, inputs)
    total = _strings_and_sum(record, version, inputs)
    part = max(10 * count // size, 1)
    gathered = record.allgather(np.resize(total, part) * np.float32(rank + 1))
    rows = [np.resize(total, part) * np.float32(of + 1) for of in range(size)]
    same(gathered, np.stack(rows), "gathered")
    return gathered.reshape(-1)


def _inputs(size: int, version: int, count: int, model: Array) -> list[Array]:
    """List the arrays that each rank passes to the reductions of a version."""
    steps = np.arange(count, dtype=np.float32)
    return [
        np.float32(0.1) * (steps % (97 + of)) + np.resize(model, count) / (of + version + 1)
        for of in range(size)
    ]


def _maximum(record: Recorder, inputs: list[Array]) -> Array:
    got = record.allreduce(inputs[record.comm.rank], "max")
    same(got, np.maximum.reduce(inputs), "max")
    return got


def _strings_and_sum(record: Recorder, version: int, inputs: list[Array]) -> Array:
    size = record.comm.world_size
    for root in (0, size // 3, 2 * size // 3, size - 1):
        _broadcast_string(record, root, version)
    total = record.allreduce(inputs[record.comm.rank], "sum")
    same(total, expected_allreduce(inputs, "sum", record.spec), "sum")
    return total


def _broadcast_string(record: Recorder, root: int, version: int) -> None:
    """As rabit sent strings: a length, then the bytes."""
    text = (f"version {version} from {root}; " * STRING_BYTES)[:STRING_BYTES].encode()
    mine = record.comm.rank == root
    length = record.broadcast(np.int64(len(text) if mine else 0), root)
    blank = np.zeros(int(length), np.uint8)
    got = record.broadcast(np.frombuffer(text, np.uint8) if mine else blank, root)
    assert got.tobytes() == text


def lazy_recover(record: Recorder) -> Any:
    """As `model_recover` without the gathering; checkpoints are lazy.

    It does what their promise leaves it: other things are put into the state's dict at once, and an
    array is overwritten as soon as the next checkpoint has returned.
    """
    comm, spec = record.comm, record.spec
    largest = record.allreduce(np.int64(comm.rank), "max")
    assert int(largest) == comm.world_size - 1
    first, state = record.load({"model": np.linspace(0, 1, spec["count"], dtype=np.float32)})
    for version in range(first, spec.get("versions", 3)):
        model = state["model"]
        inputs = _inputs(comm.world_size, version, spec["count"] * 10**version, model)
        state["most"] = _maximum(record, inputs)
        state["model"] = _strings_and_sum(record, version, inputs)
        assert record.checkpoint(state, lazy=True) == version + 1
        model[...] = -1
    return state["model"]


def one_op(record: Recorder) -> Any:
    """A single allreduce per version."""
    comm, spec = record.comm, record.spec
    first, state = record.load(np.zeros(spec["count"]))
    for version in range(first, spec.get("versions", 3)):
        inputs = [state / 3 + 0.1 * of + 1 / (version + 1) for of in range(comm.world_size)]
        state = record.allreduce(inputs[comm.rank])
        same(state, expected_allreduce(inputs, "sum", spec), "sum")
        assert record.checkpoint(state) == version + 1
    return state


def many(record: Recorder) -> Any:
    """Twenty collectives a version: allreduces, or broadcasts only where `kinds` says so."""
    comm, spec = record.comm, record.spec
    size, count = comm.world_size, spec.get("count", 64)
    for step in range(spec.get("prelude", 0)):
        got = record.allreduce(np.full(count, step + comm.rank, np.float64))
        same(got, np.full(count, step * size + size * (size - 1) / 2), "prelude")
    first, total = record.load(np.zeros(count))
    for _ in range(first, spec.get("versions", 2)):
        for step in range(spec.get("steps", 20)):
            if spec.get("kinds") == "broadcast":
                value = np.arange(count) + step
                got = record.broadcast(
                    value if comm.rank == step % size else value * 0, step % size
                )
                same(got, value, "broadcast")
            else:
                got = record.allreduce(np.full(count, 1.0 + step + comm.rank))
                same(got, np.full(count, size * (1.0 + step) + size * (size - 1) / 2), "sum")
            total = total + got
        record.checkpoint(total)
    return total


def mismatch(record: Recorder) -> Any:
    """At 0.2 one rank calls something else; nobody's buffers may change."""
    comm, spec = record.comm, record.spec
    record.load(None)
    odd = comm.rank == spec["odd"]
    how = spec["how"]
    out = np.full(8, -1.0)
    x = np.arange(8.0) + comm.rank
    before = x.copy()
    try:
        for _ in range(2):  # a rank that lags in these hears the verdict in its current call
            record.allreduce(np.ones(8))
        if not odd:
            if how == "root":
                record.broadcast(x, 0)
            else:
                record.allreduce(x, out=out)
        elif how == "fewer":
            pass
        else:
            ODD[how](record, x)
        record.checkpoint(None)
    except ftcomm.CollectiveMismatchError as error:
        assert x.tobytes() == before.tobytes(), "the input was written to"
        assert (out == -1).all(), "out was written to"
        record.events.write(kind="mismatch", rank=comm.rank, text=error.cause)
        raise
    raise AssertionError("nobody noticed")


ODD: dict[str, Callable[[Recorder, Array], Any]] = {
    "op": lambda record, x: record.allreduce(x, "max"),
    "dtype": lambda record, x: record.allreduce(x.astype(np.float32)),
    "count": lambda record, x: record.allreduce(x[:7]),
    "root": lambda record, x: record.broadcast(x, 1),
    "kind": lambda record, x: record.allgather(x),
}


def busy(record: Recorder) -> Any:
    """One rank computes for long between two collectives, in the way that `how` names."""
    comm, spec = record.comm, record.spec
    record.load(None)
    record.allreduce(np.ones(4))
    if comm.rank == spec["busy"]:
        BUSY[spec["how"]](spec["seconds"])
    got = record.allreduce(np.ones(4))
    record.checkpoint(None)
    return got


def _python(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def _numpy(seconds: float) -> None:
    end = time.monotonic() + seconds
    matrix = np.ones((600, 600))
    while time.monotonic() < end:
        matrix @ matrix


def _holding_the_gil(seconds: float) -> None:
    """One call into C that never lets another thread run."""
    trial = 1_000_000
    began = time.perf_counter()
    sum(range(trial))
    sum(range(int(trial * seconds / (time.perf_counter() - began))))


BUSY: dict[str, Callable[[float], None]] = {
    "python": _python,
    "numpy": _numpy,
    "gil": _holding_the_gil,
}


def unlogged(record: Recorder) -> Any:
    """No memory between the last byte and the log: the others are further than rank 1."""
    comm = record.comm
    record.load(None)
    x = record.allreduce(np.arange(6.0) + comm.rank)
    if comm.rank == 1:
        late = mock.Mock(side_effect=MemoryError)
        full = mock.patch.multiple(CallProgress, complete=late, complete_next=late)
        with full, contextlib.suppress(MemoryError):
            record.allreduce(x)
    got = record.allreduce(record.allreduce(x))
    record.checkpoint(got)
    return got


def interrupted(record: Recorder) -> Any:
    """Ctrl-C in a collective, or in a wait for one: this rank's part is over."""
    comm = record.comm
    record.load(None)
    record.allreduce(np.ones(6))
    record.wait_at("0.1")
    x, how = np.arange(6.0) + comm.rank, record.spec["how"]
    if comm.rank:
        threading.Thread(target=_press_ctrl_c, args=(comm, how), daemon=True).start()
    try:
        if how == "wait":
            comm.iallreduce(x).wait()
        elif how == "message":
            comm.recv(1 - comm.rank)
        else:
            comm.allreduce(x)
    except KeyboardInterrupt:
        names = [thread.name for thread in threading.enumerate()]
        left = [name for name in names if name.startswith("ftcomm")]
        record.events.write(kind="interrupted", rank=comm.rank, is_over=comm.is_over, left=left)
        raise


def _press_ctrl_c(comm: Any, how: str) -> None:
    """Interrupt the main thread as soon as it is in the call."""
    session, queue = comm._session, comm._nonblocking.queue
    is_inside: dict[str, Callable[[], object]] = {
        "call": lambda: session.guard.lock.holder,
        "wait": lambda: queue._changed.is_awaited,
        "message": session.engine._hub.receives.longest_awaited,
    }
    while not is_inside[how]():
        os.sched_yield()
    os.kill(os.getpid(), signal.SIGINT)


def again(record: Recorder) -> Any:
    """A job-wide error ends this communicator only: it says the same again, the process goes on."""
    comm = record.comm
    try:
        mismatch(record)
    except ftcomm.CollectiveMismatchError as first:
        try:
            comm.barrier()
        except ftcomm.CollectiveMismatchError as second:
            record.events.write(kind="again", rank=comm.rank, same=str(first) == str(second))
        comm.abort("nobody hears this: the job is over")
        with ftcomm.init(tracker="none") as alone:
            record.events.write(kind="alone", rank=comm.rank, sum=float(alone.allreduce(3.0)))
        raise


def unlike(record: Recorder) -> Any:
    """Rank 1 is of another mind, in the way that `how` names."""
    comm, how = record.comm, record.spec["how"]
    odd = comm.rank == 1
    if how == "prelude":
        record.allreduce(np.ones(3 + odd))
    if how == "load" and odd:
        record.allreduce(np.ones(3))
    record.load(None)
    # the script has no memory of its first incarnation
    changed = how == "replay" and comm.epoch > 1
    got = record.allreduce(np.ones(3), "max" if changed else "sum")
    record.allreduce(got)
    if how == "close" and odd:
        return got
    record.checkpoint({"odd": odd and how == "state"})
    return got


PROGRAMS: dict[str, Callable[[Recorder], Any]] = {
    function.__name__: function
    for function in (
        *(lazy_recover, model_recover, one_op, many, mismatch, busy),
        *(unlogged, interrupted, again, unlike),
    )
}
