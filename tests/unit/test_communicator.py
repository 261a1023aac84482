"""The public API in a group of one: what it returns, and what it refuses before it sends."""

import copy
import operator
import os
import pickle
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import ftcomm
from ftcomm import join
from ftcomm.api.call_guard import CallLock
from ftcomm.config.environment import JOINED
from ftcomm.control.hub import Hub
from ftcomm.engine.engine import DistributedEngine
from ftcomm.errors import ClosedError, ConfigError, ThreadError

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
ALL = ["bool", *INTEGERS, *FLOATS, *COMPLEX]
DTYPES_OF_OP = {
    "sum": [*INTEGERS, *FLOATS, *COMPLEX],
    "prod": [*INTEGERS, *FLOATS, *COMPLEX],
    "min": ["bool", *INTEGERS, *FLOATS],
    "max": ["bool", *INTEGERS, *FLOATS],
    "mean": [*FLOATS, *COMPLEX],
    "band": ["bool", *INTEGERS],
    "bor": ["bool", *INTEGERS],
    "bxor": ["bool", *INTEGERS],
    "land": ["bool", *INTEGERS],
    "lor": ["bool", *INTEGERS],
}
ALLOWED = [(op, dtype) for op, dtypes in DTYPES_OF_OP.items() for dtype in dtypes]
REFUSED = [(op, dtype) for op in DTYPES_OF_OP for dtype in ALL if (op, dtype) not in ALLOWED]


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


def position(comm: ftcomm.Communicator) -> tuple[int, int]:
    return comm.version, comm.seqno


# --- results ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "dtype"), ALLOWED)
def test_one_operand_is_its_own_combination(comm: ftcomm.Communicator, op: str, dtype: str) -> None:
    x = np.array([[0, 1], [2, 3]]).astype(dtype)
    expected = x.astype(bool).astype(dtype) if op in ("land", "lor") else x
    result = comm.allreduce(x, op)
    assert (result.dtype, result.tolist()) == (x.dtype, expected.tolist())


@pytest.mark.parametrize(("op", "dtype"), REFUSED)
def test_an_operation_that_a_dtype_has_not_is_refused(
    comm: ftcomm.Communicator, op: str, dtype: str
) -> None:
    with pytest.raises(TypeError, match=f"op '{op}' is not defined for dtype {dtype}"):
        comm.allreduce(np.zeros(2, dtype), op)
    assert position(comm) == (-1, 0)


@pytest.mark.parametrize("call", ["allreduce", "broadcast", "allgather"])
@pytest.mark.parametrize(
    "dtype", ["longdouble", "clongdouble", "object", "U3", "S3", "datetime64[s]", "i4,f4"]
)
def test_a_dtype_that_no_collective_carries_is_refused_by_name(
    comm: ftcomm.Communicator, call: str, dtype: str
) -> None:
    x = np.zeros(2, dtype)
    with pytest.raises(TypeError, match=re.escape(f"dtype {x.dtype.name} is not carried")):
        getattr(comm, call)(x)
    assert position(comm) == (-1, 0)


def test_numbers_lists_and_odd_layouts_are_taken(comm: ftcomm.Communicator) -> None:
    swapped = np.arange(6, dtype=">f4").reshape(2, 3)[:, ::-1]
    results = [comm.allreduce(np.array(3)), comm.allreduce([1.5, 2]), comm.allreduce(swapped)]
    assert [(r.dtype.str, r.shape, r.tolist()) for r in results] == [
        ("<i8", (), 3),
        ("<f8", (2,), [1.5, 2.0]),
        ("<f4", (2, 3), swapped.tolist()),
    ]


def test_results_are_the_callers_own_and_writable(comm: ftcomm.Communicator) -> None:
    x = np.ones(3)
    for result in (comm.allreduce(x), comm.broadcast(x), comm.allgather(x)):
        result += 1
    assert x.tolist() == [1, 1, 1]


def test_without_a_copy_results_are_read_only(comm: ftcomm.Communicator) -> None:
    x = np.ones(3)
    results = [
        comm.allreduce(x, copy=False),
        comm.broadcast(x, copy=False),
        comm.allgather(x, copy=False),
    ]
    assert [result.flags.writeable for result in results] == [False, False, False]


def test_allgather_stacks(comm: ftcomm.Communicator) -> None:
    assert comm.allgather(np.zeros((2, 3))).shape == (1, 2, 3)


def test_a_function_may_be_the_operation(comm: ftcomm.Communicator) -> None:
    result = comm.allreduce(np.arange(3), op=operator.add)
    assert result.tolist() == [0, 1, 2]


# --- out --------------------------------------------------------------------------------------


def test_out_takes_the_result_and_is_returned(comm: ftcomm.Communicator) -> None:
    x = np.arange(4.0).reshape(2, 2)
    out = np.empty((2, 2))
    assert comm.allreduce(x, out=out) is out
    assert out.tolist() == x.tolist()


def test_out_may_be_the_operand(comm: ftcomm.Communicator) -> None:
    x = np.arange(4.0)
    assert comm.allreduce(x, "mean", out=x) is x


@pytest.mark.parametrize(
    ("out", "kind", "words"),
    [
        ([0.0, 0.0], TypeError, "out is a list"),
        (np.zeros(3), ValueError, r"out is float64\[3\], the result is float64\[2\]"),
        (np.zeros((2, 1)), ValueError, r"out is float64\[2, 1\]"),
        (np.zeros(2, np.float32), ValueError, "out is float32"),
        (np.zeros(2, ">f8"), ValueError, "out is float64 of the other byte order"),
        (np.zeros(4)[::2], ValueError, r"out is not C-contiguous: its strides are \(16,\)"),
        (np.ma.zeros(2), TypeError, "out is a MaskedArray, must be a numpy array"),
    ],
)
def test_an_out_that_cannot_take_the_result_is_refused(
    comm: ftcomm.Communicator, out: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        comm.allreduce(np.ones(2), out=out)
    assert position(comm) == (-1, 0)


def test_a_read_only_out_is_refused(comm: ftcomm.Communicator) -> None:
    out = np.zeros(2)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        comm.allreduce(np.ones(2), out=out)


# --- other arguments --------------------------------------------------------------------------


@pytest.mark.parametrize("root", [-1, 1, 5])
def test_a_root_outside_the_group_is_refused(comm: ftcomm.Communicator, root: int) -> None:
    with pytest.raises(ValueError, match=f"root is {root}, must be 0 to 0"):
        comm.broadcast(1, root)
    assert position(comm) == (-1, 0)


@pytest.mark.parametrize("algorithm", [None, "auto", "ring", "recursive_doubling"])
def test_every_algorithm_has_a_name(comm: ftcomm.Communicator, algorithm: str | None) -> None:
    assert comm.allreduce([1, 2], algorithm=algorithm).tolist() == [1, 2]


def test_an_unknown_algorithm_and_an_unknown_operation_are_refused(
    comm: ftcomm.Communicator,
) -> None:
    with pytest.raises(ValueError, match="no algorithm is called 'star'"):
        comm.allreduce([1], algorithm="star")
    with pytest.raises(ValueError, match="no operation is called 'median'"):
        comm.allreduce([1], "median")
    with pytest.raises(TypeError, match=r"op is a name, .* or an ftcomm\.reduction, not int"):
        comm.allreduce([1], 3)  # type: ignore[arg-type]  # what is refused here
    assert position(comm) == (-1, 0)


# --- versions ---------------------------------------------------------------------------------


def test_positions_count_calls_and_versions_count_checkpoints(comm: ftcomm.Communicator) -> None:
    seen = [position(comm)]
    comm.barrier()
    seen.append(position(comm))
    loaded = comm.load_checkpoint(default={"w": [1, 2]})
    seen.append(position(comm))
    comm.allreduce(1)
    seen.append(position(comm))
    assert (loaded, comm.checkpoint(None), position(comm)) == ((0, {"w": [1, 2]}), 1, (1, 0))
    assert seen == [(-1, 0), (-1, 1), (0, 0), (0, 1)]


def test_the_prelude_ends_once_and_before_any_checkpoint(comm: ftcomm.Communicator) -> None:
    with pytest.raises(ValueError, match=r"^call load_checkpoint\(\) before checkpoint\(\)"):
        comm.checkpoint(None)
    comm.load_checkpoint()
    with pytest.raises(ValueError, match="call it once"):
        comm.load_checkpoint()


def test_a_load_whose_state_cannot_be_returned_ends_the_communicator(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prelude has ended, so it cannot be called again; without the state nothing can go on."""
    no_room = mock.Mock(side_effect=MemoryError)
    monkeypatch.setattr("ftcomm.api.checkpoints.unpack_state", no_room)
    with pytest.raises(MemoryError):
        comm.load_checkpoint(default=1)
    assert (position(comm), comm.is_over) == ((0, 0), True)


# --- who may call -----------------------------------------------------------------------------


def test_a_closed_communicator_refuses_and_another_may_be_opened() -> None:
    with ftcomm.init("none") as first:
        pass
    with pytest.raises(ClosedError):
        first.barrier()
    first.close()  # again: nothing happens
    with ftcomm.init("none") as second:
        assert (first.is_over, second.allreduce(1)) == (True, 1)


def test_one_communicator_is_open_at_a_time(comm: ftcomm.Communicator) -> None:
    with pytest.raises(ThreadError, match="open in this process already"):
        ftcomm.init("none")
    assert comm.is_usable


@pytest.mark.parametrize("name", ["detect_within", "replicas"])
def test_a_setting_that_is_expected_is_checked(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name.upper()} is 'rubbish'"):
        ftcomm.init("none", expect={name: "rubbish"})


def test_of_a_named_job_each_thread_has_one(comm: ftcomm.Communicator) -> None:
    def open_and_close() -> int:
        with ftcomm.init("none", job="mine") as own:
            return int(own.allreduce(2))

    with ftcomm.init("none", job="mine") as own, ThreadPoolExecutor(1) as threads:
        with pytest.raises(ThreadError, match="of job 'mine' is open in this thread already"):
            ftcomm.init("none", job="mine")
        assert (own.allreduce(1), threads.submit(open_and_close).result()) == (1, 2)
        with ftcomm.init("none", job="another") as another:
            assert another.allreduce(3) == 3
    with ftcomm.init("none", job="mine") as again:
        assert (comm.is_usable, again.is_usable) == (True, True)


@pytest.mark.parametrize("job", ["", 3])
def test_a_job_is_named_by_a_text(job: Any) -> None:
    with pytest.raises(ConfigError, match=f"job must be a non-empty string, got {job!r}"):
        ftcomm.init("none", job=job)


def test_a_join_that_fails_leaves_room_for_another() -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match="is not host:port"):
            ftcomm.init("nowhere")
    with ftcomm.init("none") as comm:
        assert comm.allreduce(1) == 1


@pytest.mark.parametrize("step", ["Recorder", "DistributedEngine", "Communicator"])
def test_a_join_that_is_cut_short_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    """Neither a thread that goes on dialling, nor a note that refuses a child of this process."""
    hubs: list[Hub] = []

    def noted(*arguments: Any) -> Hub:
        hubs.append(Hub(*arguments))
        return hubs[0]

    def cut_short(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.delenv(JOINED, raising=False)
    if step == "Recorder":
        monkeypatch.setenv("FTCOMM_HISTORY", str(tmp_path))
    monkeypatch.setattr(DistributedEngine, "wait_until_member", lambda _: None)
    monkeypatch.setattr(join, "Hub", noted)
    monkeypatch.setattr(join, step, cut_short)
    with pytest.raises(KeyboardInterrupt):
        ftcomm.init("127.0.0.1:1", worker_id="w0")
    assert JOINED not in os.environ
    assert "ftcomm-control" not in [thread.name for thread in threading.enumerate()]
    assert [hub.wake.fd for hub in hubs] == [-1]


def test_a_forked_child_may_open_its_own(comm: ftcomm.Communicator) -> None:
    child = os.fork()
    if child == 0:
        with ftcomm.init("none") as own:
            os._exit(int(own.allreduce(7)) if not comm.is_usable else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_second_thread_is_refused_while_a_call_runs(comm: ftcomm.Communicator) -> None:
    errors: list[BaseException] = []

    def from_another_thread() -> None:
        try:
            comm.barrier()
        except ThreadError as error:
            errors.append(error)

    class Slow:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
            thread = threading.Thread(target=from_another_thread)
            thread.start()
            thread.join()
            return np.ones(1)

    assert (comm.allreduce(Slow()).tolist(), len(errors)) == ([1.0], 1)


def test_a_call_that_begins_while_another_thread_ends_all_is_refused(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked whether the communicator is open, and has yet to enter."""
    take = CallLock.take

    def ended_meanwhile(lock: CallLock) -> bool:
        thread = threading.Thread(target=comm.abort, args=("another thread leaves",))
        thread.start()
        thread.join()
        return take(lock)

    monkeypatch.setattr(CallLock, "take", ended_meanwhile)
    with pytest.raises(ClosedError):
        comm.allreduce(1)


def test_a_reason_may_be_an_exception_and_nothing_else_than_a_text(
    comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    leave = lambda reason, site: reasons.append(reason)  # noqa: E731 - it has none here
    monkeypatch.setattr(comm._session.engine, "leave", leave)
    with pytest.raises(TypeError, match="reason is a float, must be a text or an exception"):
        comm.abort(3.0)  # type: ignore[arg-type] # that is refused
    assert comm.is_usable
    comm.abort(ValueError("of the script's"))
    assert (reasons, comm.is_over) == (["ValueError: of the script's"], True)


@pytest.mark.parametrize("take_apart", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_communicator_is_neither_copied_nor_pickled(
    comm: ftcomm.Communicator, take_apart: Any
) -> None:
    with pytest.raises(TypeError, match="so it cannot be copied or pickled; pass on what is"):
        take_apart(comm)


@pytest.mark.parametrize("take_apart", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_belongs_to_a_process_is_neither_copied_nor_pickled(
    comm: ftcomm.Communicator, take_apart: Any
) -> None:
    tracker = ftcomm.Tracker(1)
    with comm.engine() as engine:
        for what in (comm.ibarrier(), engine, tracker):
            with pytest.raises(TypeError, match="so it cannot be copied or pickled; "):
                take_apart(what)


def test_an_exception_leaves_the_block_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), ftcomm.init("none") as comm:
        operator.truediv(1, 0)
    assert comm.is_over


def test_a_group_of_one_is_refused_where_a_scheduler_says_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.delenv("FTCOMM_TRACKER", raising=False)
    with pytest.raises(ConfigError):
        ftcomm.init()
