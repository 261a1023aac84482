"""The fast path of a call: what is left when it ends early, and what the user is given."""

import threading
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.collectives.schedules.allgather import ring_allgather
from ftcomm.collectives.schedules.binomial_tree import binomial_broadcast
from ftcomm.collectives.schedules.recursive_doubling import doubling_allreduce
from ftcomm.collectives.schedules.schedule import Schedule
from ftcomm.communicator import Communicator
from ftcomm.engine import persistent_request
from ftcomm.engine.persistent_request import PersistentRequest
from ftcomm.memory.pool import LoggedResult, Pool
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.recent_calls import NO_CALL
from ftcomm.recovery.unasked_calls import UNTIL_NS, UnaskedCalls
from ftcomm.requests.request import CollectiveSpec
from tests.helpers.interrupts import interrupted, places

FLOATS = np.dtype(np.float64)
SIGNATURE = Signature(Kind.ALLREDUCE, count=3).encode()
SCHEDULE = doubling_allreduce(2, 0, 3)
POOLED = Pool.MIN_BYTES // 8  # elements of a result whose memory comes from a pool


class Plane:
    """A data plane that moves nothing, and one outcome for all calls."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.moves_all = True

    def run_moves(self, *_: Any) -> bool:
        return self.moves_all

    def note_broadcast(self, *_: Any) -> None: ...

    def take(self, count: int, dtype: Any) -> np.ndarray[Any, Any]:
        return np.empty(count, dtype)

    def cut_short(self, _: BaseException) -> None:
        self.core.log.unasked.asking = NO_CALL


def one_way(
    count: int = 3, schedule: Schedule = SCHEDULE, root: int = -1
) -> tuple[Any, Plane, PersistentRequest]:
    """Its core, its data plane, and the fast path itself, of results of `count` elements."""
    core = SimpleNamespace(
        view=SimpleNamespace(epoch=1, rank=1),
        log=SimpleNamespace(unasked=UnaskedCalls()),
        progress=SimpleNamespace(),
    )
    core.log.unasked.words[UNTIL_NS] = 1

    def complete_next(*_: Any, **__: Any) -> list[Any]:
        core.log.unasked.asking = NO_CALL
        return []

    core.progress.complete_next = complete_next
    form = CollectiveSpec(
        schedule.kind, SIGNATURE, "x.py:1", SIGNATURE, schedule, FLOATS, (count,),
        recvbuf_count=count, nbytes=8 * count, root=root,
    )  # fmt: skip
    hub: Any = SimpleNamespace(core=core, lock=threading.Lock(), pool=Pool())
    plane: Any = Plane(core)
    return core, plane, PersistentRequest(hub, plane, form, (), lambda *_: False)


@pytest.mark.parametrize("count", [3, POOLED])
@pytest.mark.parametrize("moves_all", [True, False])
def test_nothing_is_in_flight_after_a_call_cut_short_anywhere(moves_all: bool, count: int) -> None:
    x = np.ones(count)
    for number in places():
        core, plane, way = one_way(count)
        plane.moves_all = moves_all
        if not interrupted(lambda w=way: w.run(x), number, persistent_request):
            break
        assert core.log.unasked.asking == NO_CALL, number
    assert number > 50


def test_a_call_over_links_fills_the_user_s_array_too() -> None:
    out: Any = np.zeros((3, 1))
    _, plane, way = one_way(3, binomial_broadcast(2, 1, 3, 1), 1)
    way._form = replace(way._form, shape=(3, 1))
    assert way.run(np.array([7.0, 8.0, 9.0]), out) is not None
    assert out.tolist() == [[7.0], [8.0], [9.0]]
    plane.moves_all = False
    assert way.run(np.ones(3), out) is None


def test_nothing_is_in_flight_when_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    core, _, way = one_way()

    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(persistent_request, "CallHeader", full)
    with pytest.raises(MemoryError):
        way.run(np.ones(3))
    assert core.log.unasked.asking == NO_CALL


@pytest.mark.parametrize("count", [1, 3])
def test_results_that_the_log_releases_leave_their_memory_to_the_next(count: int) -> None:
    """There are several behind broadcasts."""
    core, _, way = one_way(POOLED)
    pool = way._hub.pool
    dropped = [LoggedResult(pool.take(POOLED, FLOATS), (POOLED,)) for _ in range(count)]
    core.progress.complete_next = lambda *_, **__: dropped
    assert way.run(np.ones(POOLED)) is not None
    assert pool.nbytes == 8 * POOLED * count


def test_the_rank_s_own_block_is_there_before_the_first_step() -> None:
    _, plane, way = one_way(6, ring_allgather(3, 1, 2))
    seen = []

    def run_moves(*arguments: Any) -> bool:
        *_, recvbuf, _ = arguments
        seen.append(recvbuf[2:4].tolist())
        return True

    plane.run_moves = run_moves  # type: ignore[method-assign]  # of this test's own
    assert way.run(np.array([7.0, 8.0])) is not None
    assert seen == [[7.0, 8.0]]


@pytest.mark.parametrize("root", [0, 1])
def test_a_broadcast_sends_the_root_s_array_and_proves_nothing(root: int) -> None:
    """This rank is 1."""
    core, plane, way = one_way(3, binomial_broadcast(2, 1, 3, root), root)
    completed, sent = [], []

    def complete_next(entry: LogEntry, _: float, *, synchronising: bool) -> list[Any]:
        completed.append(synchronising)
        return []

    def run_moves(*arguments: Any) -> bool:
        *_, sendbuf, recvbuf, _ = arguments
        assert sendbuf is recvbuf
        sent.append(recvbuf.tolist())
        return True

    core.progress.complete_next = complete_next
    plane.run_moves = run_moves  # type: ignore[method-assign]  # of this test's own
    x = np.array([7.0, 8.0, 9.0])
    assert way.run(x) is not None
    assert completed == [False]
    assert (sent == [[7.0, 8.0, 9.0]]) == (root == 1)


# --- what the user is given -----------------------------------------------------------------------


class Way:
    """In place of an fast path: a group of one, whose results a log keeps."""

    repeats = False  # there is no core

    def __init__(self, engine: Any) -> None:
        self.progress, self.log = engine, []  # type: tuple[Any, list[np.ndarray[Any, Any]]]

    def run(
        self, sendbuf: np.ndarray[Any, Any], place: np.ndarray[Any, Any] | None = None
    ) -> LoggedResult:
        assert place is None, "results are kept"
        self.log.append(sendbuf.copy())
        self.progress.position = self.progress.position.next()
        return LoggedResult(self.log[-1], sendbuf.shape)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[Way]:
    """Those of a group of one that is opened from here on; the first call from a line is long."""
    ways: list[Way] = []

    def way(engine: Any, _: CollectiveSpec) -> Way:
        ways.append(Way(engine))
        return ways[-1]

    monkeypatch.setattr("ftcomm.engine.single_process.SingleProcessEngine.persistent", way)
    return ways


def twice(comm: Communicator, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The result of a call that has gone the fast path."""
    return [comm.allreduce(x, copy=False) for _ in range(2)][1]


@pytest.mark.parametrize("shape", [(4,), (2, 2), (POOLED,), (2, POOLED)])
def test_a_view_s_dtype_and_shape_are_not_the_log_s(ways: list[Way], shape: Any) -> None:
    with ftcomm.init("none") as comm:
        result = twice(comm, np.ones(shape))
        (logged,) = ways[0].log
        assert np.shares_memory(result, logged)
        assert not result.flags.writeable
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer ones would rather not
            result.dtype = np.int64
            result.shape = (1, result.size)
        kept = (FLOATS, (result.size,), True)
        assert (logged.dtype, logged.shape, logged.flags.writeable) == kept


@pytest.mark.parametrize("op", ["min", "MAX", "product", ftcomm.Op.SUM, max, np.maximum])
def test_every_spelling_of_a_name_takes_the_fast_path(ways: list[Way], op: Any) -> None:
    with ftcomm.init("none") as comm:
        results = [comm.allreduce(np.arange(4.0), op).tolist() for _ in range(3)]
        assert (len(ways), len(ways[0].log), results) == (1, 2, [[0, 1, 2, 3]] * 3)


@pytest.mark.parametrize("count", [4, POOLED])
@pytest.mark.parametrize("gives_out", [True, False])
def test_a_result_is_the_user_s_own(ways: list[Way], count: int, gives_out: bool) -> None:
    x, out = np.arange(float(count)), np.empty(count) if gives_out else None
    with ftcomm.init("none") as comm:
        for _ in range(2):
            result = comm.allreduce(x, out=out)
        (logged,) = ways[0].log
        assert (result is out) == gives_out
        result += 1
        assert (logged == x).all()
