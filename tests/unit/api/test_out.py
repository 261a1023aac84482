"""``out=`` in a group of one: every call that returns an array fills the user's own."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.api.outputs import OutputPolicy, shares_input
from ftcomm.requests.request import CallOptions
from ftcomm.testing import local_group

X = np.arange(6.0).reshape(2, 3)
# call -> its arguments, and what it gives
CALLS: dict[str, tuple[tuple[Any, ...], np.ndarray[Any, Any]]] = {
    "allreduce": ((X,), X),
    "broadcast": ((X,), X),
    "allgather": ((X,), X[None]),
    "allgatherv": ((X,), X),
    "reduce": ((X,), X),
    "gather": ((X,), X[None]),
    "gatherv": ((X,), X),
    "scatter": ((X[None],), X),
}


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


@pytest.mark.parametrize("call", CALLS)
def test_out_is_filled_and_returned(comm: ftcomm.Communicator, call: str) -> None:
    arguments, wanted = CALLS[call]
    for _ in range(3):
        out = np.full(wanted.shape, np.nan)
        assert getattr(comm, call)(*arguments, out=out) is out
        assert out.tobytes() == wanted.tobytes()
    out = np.full(wanted.shape, np.nan)
    assert getattr(comm, f"i{call}")(*arguments, out=out).wait() is out
    assert out.tobytes() == wanted.tobytes()
    out = np.full(wanted.shape, np.nan)
    assert getattr(comm, call)(lambda: arguments[0], out=out) is out
    assert out.tobytes() == wanted.tobytes()


def test_a_broadcast_may_be_in_place(comm: ftcomm.Communicator) -> None:
    for size in (3, 100_000):
        x = np.arange(float(size))
        assert comm.broadcast(x, out=x) is x
        assert x.tolist() == list(range(size))


def spoiled(wanted: np.ndarray[Any, Any]) -> list[Any]:
    """List outputs that cannot hold such a result."""
    read_only = np.zeros(wanted.shape)
    read_only.flags.writeable = False
    return [
        np.zeros((*wanted.shape[:-1], 2 * wanted.shape[-1]))[..., ::2],
        np.asfortranarray(np.zeros(wanted.shape)),
        read_only,
        np.zeros(wanted.shape, np.float32),
        np.zeros((*wanted.shape, 1)),
        np.zeros((wanted.shape[0] + 1, *wanted.shape[1:])),
        np.ma.zeros(wanted.shape),
        wanted.tolist(),
    ]


@pytest.mark.parametrize("number", range(len(spoiled(X))))
@pytest.mark.parametrize("call", CALLS)
def test_an_out_that_does_not_fit_is_refused_and_untouched(
    comm: ftcomm.Communicator, call: str, number: int
) -> None:
    arguments, wanted = CALLS[call]
    out = spoiled(wanted)[number]
    before = np.array(out)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match="out is "):
            getattr(comm, call)(*arguments, out=out)
        with pytest.raises((TypeError, ValueError), match="out is "):
            getattr(comm, f"i{call}")(*arguments, out=out).wait()
        with pytest.raises((TypeError, ValueError), match="out is "):
            getattr(comm, call)(lambda: arguments[0], out=out)
    assert (np.array(out).tobytes(), comm.seqno) == (before.tobytes(), 0)
    assert getattr(comm, call)(*arguments).tobytes() == wanted.tobytes()


def test_rows_that_only_the_run_can_count_are_compared_in_it(comm: ftcomm.Communicator) -> None:
    with pytest.raises(ValueError, match=r"^out is float64\[3, 3\], the result is float64\[2, 3\]"):
        comm.allgatherv(X, out=np.zeros((3, 3)))
    with pytest.raises(
        ValueError, match=r"^out is float64\[2, 4\], the result is float64\[any, 3\]"
    ):
        comm.allgatherv(X, out=np.zeros((2, 4)))
    assert comm.seqno == 0


def test_an_input_that_is_left_to_the_log_is_no_place_for_the_result() -> None:
    def exchange(comm: ftcomm.Communicator) -> list[list[float]]:
        comm.load_checkpoint(None)
        x = np.arange(4.0)
        for call, out in ((comm.alltoall, x), (comm.reduce_scatter, x[1:3])):
            with pytest.raises(ValueError, match="out shares memory with x"):
                call(x, out=out, copy=False, log="contributions")
        assert (comm.seqno, x.tolist()) == (0, [0, 1, 2, 3])
        return [
            comm.alltoall(x, out=x.copy(), copy=False, log="contributions").tolist(),
            comm.alltoall(y := x.copy(), out=y, log="contributions").tolist(),
            comm.alltoall(y := x.copy(), out=y, copy=False, log="copies").tolist(),
            comm.alltoall(x, out=x, copy=False, log="whole").tolist(),
        ]

    with local_group(2) as group:
        assert group.run(exchange) == [[[0, 1, 0, 1]] * 4, [[2, 3, 2, 3]] * 4]


@pytest.mark.parametrize(
    ("begin", "is_early"), [(0, False), (1, False), (99, False), (100, True), (101, True)]
)
def test_only_an_out_apart_from_the_input_is_filled_early(
    comm: ftcomm.Communicator, begin: int, is_early: bool
) -> None:
    """A call that is not completed is made again from its input."""
    memory = np.zeros(201)
    out, form = memory[begin : begin + 100].reshape(10, 10), comm._session.builder
    policy = OutputPolicy(comm._session.engine)
    spec = form.allreduce(out, CallOptions(), "x.py:1").form
    early = policy.early(out, memory[:100], spec, copy=True)
    assert early is (out if is_early else None)


def test_a_fresh_result_is_filled_early_unless_a_view_is_wanted(comm: ftcomm.Communicator) -> None:
    policy = OutputPolicy(comm._session.engine)
    spec = comm._session.builder.allreduce(X, CallOptions(), "x.py:1").form
    fresh = policy.early(None, X, spec, copy=True)
    assert fresh is not None
    assert (fresh.shape, fresh.dtype, np.may_share_memory(fresh, X)) == (X.shape, X.dtype, False)
    assert policy.early(None, X, spec, copy=False) is None


@pytest.mark.parametrize("shape", ["gaps", "bytes"])
def test_the_memory_of_an_input_that_was_copied_is_known(shape: str) -> None:
    """A call that failed is made again from it, so no attempt may write there."""
    out = np.arange(16.0).reshape(4, 4)
    x = out.T if shape == "gaps" else out.view(out.dtype.newbyteorder())
    copy = np.ascontiguousarray(x, x.dtype.newbyteorder("=")).reshape(-1)
    assert not np.may_share_memory(out, copy)
    assert shares_input(out, x, copy)
    assert shares_input(out, [1.0], out.reshape(-1))
    assert not shares_input(out, x.copy(), copy)
    assert not shares_input(out, [1.0], copy)
