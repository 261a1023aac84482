"""Nobody can write to a result that was handed out without a copy, by whatever way it came."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ftcomm
from ftcomm.collectives.dtypes import is_bfloat16
from ftcomm.communicator import Communicator
from ftcomm.memory.pool import LoggedResult, Pool
from ftcomm.protocol.signature import DTYPE_NAMES
from tests.helpers.writing import ways_to_write
from tests.unit.engine.test_persistent_request import Way

Array = np.ndarray[Any, Any]

NAMES = [name for name in DTYPE_NAMES.values() if name not in ("none", "bfloat16")]
SHAPES = [
    (),
    (0,),
    (3,),
    (2, 0, 4),
    (2, 3),
    (Pool.MIN_LENT_BYTES // 2,),
    (2, Pool.MIN_LENT_BYTES // 4),
]
# Results of one rank are its input: they have no more dimensions than rows.
CALLS: dict[str, Callable[[Communicator, Array], Array]] = {
    "allreduce": lambda comm, x: comm.allreduce(x, "max", copy=False),
    "iallreduce": lambda comm, x: comm.iallreduce(x, "max", copy=False).wait(),
    "of a function": lambda comm, x: comm.allreduce(lambda: x, "max", copy=False),
    "broadcast": lambda comm, x: comm.broadcast(x, copy=False),
    "ibroadcast": lambda comm, x: comm.ibroadcast(x, copy=False).wait(),
    "allgather": lambda comm, x: comm.allgather(x, copy=False),
    "iallgather": lambda comm, x: comm.iallgather(x, copy=False).wait(),
    "allgatherv": lambda comm, x: comm.allgatherv(np.atleast_1d(x), copy=False),
    "iallgatherv": lambda comm, x: comm.iallgatherv(np.atleast_1d(x), copy=False).wait(),
}


@pytest.fixture
def comm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Communicator]:
    """A group of one that repeats calls the fast path."""
    monkeypatch.setattr(
        "ftcomm.engine.single_process.SingleProcessEngine.persistent", lambda engine, _: Way(engine)
    )
    with ftcomm.init("none") as communicator:
        yield communicator


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bool", "int64"])
def test_the_first_call_and_those_like_it_hand_out_what_cannot_be_written(
    comm: Communicator, kind: str, shape: tuple[int, ...], dtype: str
) -> None:
    x = np.ones(shape, dtype)
    results = [CALLS[kind](comm, x) for _ in range(3)]
    assert [ways_to_write(result) for result in results] == [[], [], []]
    assert all(result.size == x.size and (result == 1).all() for result in results)


@given(name=st.sampled_from(NAMES), shape=st.lists(st.integers(0, 5), max_size=4))
@settings(max_examples=100)
def test_a_result_s_view_has_its_content_and_cannot_be_written(name: str, shape: list[int]) -> None:
    flat: Array = np.arange(np.prod(shape, dtype=int)).astype(name)
    stored = LoggedResult(flat, tuple(shape))
    view = stored.read_only()
    assert (view.dtype, view.shape) == (flat.dtype, tuple(shape))
    assert view.tobytes() == flat.tobytes()
    assert ways_to_write(view) == []
    assert flat.flags.writeable, "the log's own array is what it was"
    assert not flat.size or np.shares_memory(view, flat)


def test_a_bfloat16_result_s_view_cannot_be_written() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    flat: Array = np.arange(6).astype(ml_dtypes.bfloat16)
    view = LoggedResult(flat, (2, 3)).read_only()
    assert is_bfloat16(view.dtype)
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert ways_to_write(view) == []


def test_what_a_script_writes_to_a_loaded_state_is_not_in_the_checkpoint() -> None:
    with ftcomm.init("none") as comm:
        default = {"w": np.ones(3)}
        _, state = comm.load_checkpoint(default)
        state["w"][:] = 7
        assert default["w"].tolist() == [1, 1, 1]


def test_memory_under_a_view_is_not_taken_again() -> None:
    pool = Pool()
    stored = LoggedResult(
        pool.take(Pool.MIN_LENT_BYTES, np.dtype(np.uint8)), (Pool.MIN_LENT_BYTES,)
    )
    view = stored.read_only()
    held = [stored]
    del stored
    pool.give(held.pop())
    assert pool.nbytes == 0
    assert view.size == Pool.MIN_LENT_BYTES
