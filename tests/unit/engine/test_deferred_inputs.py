"""Inputs made by functions: when they are called, and what happens when they fail."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.config.environment import WorkerOptions
from ftcomm.control.hub import Hub
from ftcomm.engine.engine import DistributedEngine
from ftcomm.errors import CollectiveMismatchError, ThreadError
from ftcomm.protocol.messages import FatalDecision, Mismatch
from ftcomm.protocol.signature import Algorithm, Kind, LogMode, OpCode, Signature, is_compatible
from ftcomm.recovery.events import Event
from ftcomm.requests.request import DeferredInput, Request, anything
from tests.unit.recovery.worker_scenario import LOAD, a_member, at, hear

CALLS = [
    "allreduce",
    "broadcast",
    "allgather",
    "allgatherv",
    "reduce",
    "gather",
    "gatherv",
    "scatter",
]


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


@pytest.mark.parametrize("call", CALLS)
def test_a_function_is_called_once_for_the_input(comm: ftcomm.Communicator, call: str) -> None:
    made: list[int] = []

    def make() -> list[float]:
        made.append(1)
        return [2.5]

    result = getattr(comm, call)(make)
    assert (np.ravel(result).tolist(), len(made), comm.seqno) == ([2.5], 1, 1)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_a_function_raises_leaves_the_position(
    comm: ftcomm.Communicator, call: str, error: type[BaseException]
) -> None:
    def fails() -> Any:
        raise error

    with pytest.raises(error):
        getattr(comm, call)(fails)
    assert (comm.seqno, comm.is_usable) == (0, True)


def test_a_collective_inside_a_function_is_refused(comm: ftcomm.Communicator) -> None:
    with pytest.raises(ThreadError, match="used in a callback"):
        comm.allreduce(lambda: comm.allreduce(1))
    assert comm.seqno == 0


def test_out_takes_the_result_of_a_function_and_is_checked_first(comm: ftcomm.Communicator) -> None:
    out = np.zeros(2)
    assert comm.allreduce(lambda: [1.0, 2.0], out=out) is out
    with pytest.raises(ValueError, match="out is float64"):
        comm.allreduce(lambda: [1.0], out=out)
    assert (out.tolist(), comm.seqno) == ([1.0, 2.0], 1)


def test_what_has_an_array_is_no_function(comm: ftcomm.Communicator) -> None:
    class Tensor:
        def __call__(self) -> None:
            raise AssertionError

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
            return np.ones(1)

    assert comm.allreduce(Tensor()).tolist() == [1.0]


def test_only_what_follows_from_the_input_may_differ_from_what_is_known() -> None:
    known = Signature(Kind.REDUCE, OpCode.FUNCTION, 0, Algorithm.RING, 2, op_hash=7)
    whole = replace(known, dtype=12, count=6, ndim=2, dims=(2, 3, 0, 0))
    assert is_compatible(known.encode(), whole.encode())
    for other in (
        replace(whole, kind=Kind.ALLREDUCE),
        replace(whole, op=OpCode.SUM),
        replace(whole, algorithm=Algorithm.AUTO),
        replace(whole, root=1),
        replace(whole, op_hash=8),
    ):
        assert not is_compatible(known.encode(), other.encode())


@pytest.mark.parametrize(
    ("known", "whole", "may_be"),
    [
        (LogMode.BY_SIZE, LogMode.WHOLE, True),
        (LogMode.BY_SIZE, LogMode.CONTRIBUTIONS, True),
        (LogMode.BY_SIZE, LogMode.COPIES, False),
        (LogMode.COPIES, LogMode.COPIES, True),
        (LogMode.COPIES, LogMode.CONTRIBUTIONS, False),
        (LogMode.CONTRIBUTIONS, LogMode.WHOLE, False),
    ],
)
def test_a_log_that_is_known_stays_and_copies_are_never_the_choice_of_the_size(
    known: LogMode, whole: LogMode, *, may_be: bool
) -> None:
    first, second = (Signature(Kind.ALLTOALL, count=4, log=log).encode() for log in (known, whole))
    assert is_compatible(first, second) is may_be


@pytest.mark.parametrize(
    ("deadline", "error"),
    [(0, ValueError), (-1.0, ValueError), (float("nan"), ValueError), (float("inf"), ValueError),
     (True, TypeError), ("5", TypeError), ([], TypeError), (np.True_, TypeError),
     (dt.timedelta(0), ValueError), (dt.timedelta(seconds=-1), ValueError),
     (dt.datetime(2030, 1, 1, tzinfo=dt.UTC), TypeError), (dt.time(12), TypeError),
     (np.datetime64("2030"), TypeError), (np.timedelta64(5, "m"), TypeError)],
)  # fmt: skip
def test_a_deadline_that_is_no_time_from_now_is_refused(
    comm: ftcomm.Communicator, deadline: Any, error: type[Exception]
) -> None:
    for call in CALLS:
        with pytest.raises(error, match="deadline is"):
            getattr(comm, call)([1.0], deadline=deadline)
    with pytest.raises(error, match="deadline is"):
        comm.barrier(deadline=deadline)
    for end in (comm.load_checkpoint, comm.close):
        with pytest.raises(error, match="deadline is"):
            end(deadline=deadline)
    assert comm.seqno == 0


@pytest.mark.parametrize("call", CALLS)
def test_a_deadline_changes_nothing_where_nobody_is_waited_for(
    comm: ftcomm.Communicator, call: str
) -> None:
    assert np.ravel(getattr(comm, call)([2.5], deadline=np.float32(3))).tolist() == [2.5]


def test_a_deadline_beyond_all_floats_is_refused_as_infinite(comm: ftcomm.Communicator) -> None:
    with pytest.raises(ValueError, match="deadline is inf, must be above 0 and finite"):
        comm.barrier(deadline=10**400)


def test_a_deadline_that_is_a_time_of_the_clock_is_refused_with_the_remedy(
    comm: ftcomm.Communicator,
) -> None:
    noon = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)
    with pytest.raises(TypeError) as refused:
        comm.barrier(deadline=noon)  # type: ignore[arg-type]  # the mistake itself
    assert str(refused.value) == (
        "deadline is a datetime, a time of the clock, which each host has its own of; pass seconds "
        "or a datetime.timedelta, counted from the call"
    )


def test_every_call_takes_a_deadline_as_seconds_or_as_a_timedelta() -> None:
    with ftcomm.init("none") as comm:
        version, _ = comm.load_checkpoint(None, deadline=dt.timedelta(minutes=1))
        comm.barrier(deadline=1)
        assert comm.iallreduce(2, deadline=dt.timedelta(seconds=1)).wait() == 2
        assert comm.checkpoint(None, deadline=2.5) == version + 1
        comm.close(deadline=dt.timedelta(hours=1))


def test_a_function_where_all_others_have_loaded_is_a_mismatch() -> None:
    """The prelude of a restarted worker is longer than the job's: nobody has a result for it."""
    core = a_member(at(0, 1), prelude_length=0)
    hub = Hub(core, WorkerOptions(), b"")
    accusations: list[Mismatch] = []

    def act(event: Event) -> None:
        effects: list[Any] = core.handle(event, now=0.0)
        accusations.extend(effect.message for effect in effects)
        cause = "ranks disagree"
        hear(core, FatalDecision("CollectiveMismatchError", cause, 1, core.progress.position, -1))

    asked: list[str] = []
    begin = core.progress.begin

    def counted(signature: bytes, site: str) -> Any:
        asked.append(site)
        assert len(asked) < 10, "it asks for ever"
        return begin(signature, site)

    def make() -> Request:
        raise AssertionError("it is not executed")

    core.progress.begin = counted  # type: ignore[method-assign]  # counted
    engine = DistributedEngine(hub, SimpleNamespace(driver=SimpleNamespace(act=act)))  # type: ignore[arg-type]  # acts at once
    known = Signature(Kind.ALLREDUCE, OpCode.SUM).encode()
    with pytest.raises(CollectiveMismatchError, match="ranks disagree"):
        engine.run(DeferredInput(Kind.ALLREDUCE, known, "job.py:3", make, anything))
    hub.close()
    [said] = accusations
    assert (said.signature, said.site, said.peer_signature) == (known, "job.py:3", LOAD)
