"""Arrays of ml_dtypes.bfloat16, which numpy itself does not know."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.collectives.bfloat16 import bfloat16_reducer
from ftcomm.collectives.dtypes import BFLOAT16, dtype_code, dtype_of
from ftcomm.config.job_settings import JobSettings
from ftcomm.engine.persistent_request import persistent
from ftcomm.errors import ProtocolError
from ftcomm.memory.pool import LoggedResult, dtype_from_wire, stored_from_wire
from ftcomm.protocol.signature import Kind, Signature, signature_text
from ftcomm.requests.request import CallOptions
from ftcomm.state.serializer import pack_state, unpack_state
from tests.helpers.group import builder

ml_dtypes = pytest.importorskip("ml_dtypes")
DTYPE = np.dtype(ml_dtypes.bfloat16)
X = np.array([[1.5, -2.0], [np.nan, 3e38]], DTYPE)


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


def same(got: np.ndarray, wanted: np.ndarray) -> bool:
    return (got.dtype, got.shape, got.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


def test_every_kind_gives_back_what_it_got(comm: ftcomm.Communicator) -> None:
    assert same(comm.allreduce(X), X)
    assert same(comm.allreduce(X.T), X.T.copy())
    assert same(comm.allreduce(lambda: X, "mean", out=np.zeros_like(X)), X)
    assert same(comm.broadcast(X), X)
    assert same(comm.allgather(X)[0], X)
    assert same(comm.allgatherv(X), X)
    assert same(comm.scatter([X]), X)
    assert same(comm.broadcast_object({"x": X})["x"], X)


def test_it_has_a_code_and_a_name() -> None:
    assert (dtype_code(DTYPE), dtype_of(BFLOAT16)) == (BFLOAT16, DTYPE)
    stored = LoggedResult(X.reshape(-1), X.shape)
    dtype = dtype_from_wire(stored.dtype, stored.shape, stored.raw().nbytes, 100)
    again = stored_from_wire(dtype, stored.shape, np.frombuffer(stored.raw(), np.uint8))
    assert (again.flat.dtype, again.shape) == (DTYPE, X.shape)
    signature = Signature(
        Kind.BROADCAST, dtype=BFLOAT16, count=4, ndim=1, dims=(4, 0, 0, 0), root=0
    )
    assert signature_text(signature.encode()) == "broadcast(bfloat16[4], root=0)"


def test_a_state_may_hold_it() -> None:
    assert same(unpack_state(pack_state({"x": X}))["x"], X)


def test_reductions_have_the_numbers_of_the_package() -> None:
    rng = np.random.default_rng(5)
    left, right = (rng.integers(0, 1 << 16, 100_000).astype(np.uint16).view(DTYPE) for _ in "12")
    with np.errstate(all="ignore"):
        for op, function in (("sum", np.add), ("prod", np.multiply), ("max", np.maximum)):
            out = np.empty_like(left)
            bfloat16_reducer(op).combine(left, right, out)
            wanted = function(left, right)
            differ = out.view(np.uint16) != wanted.view(np.uint16)
            assert np.isnan(out[differ].astype("f4")).all()
            assert np.isnan(wanted[differ].astype("f4")).all()


@pytest.mark.parametrize("op", ["band", "lor", ftcomm.reduction(np.hypot, name="hypot")])
def test_what_is_not_defined_on_it_is_refused(comm: ftcomm.Communicator, op: object) -> None:
    with pytest.raises(TypeError, match="bfloat16"):
        comm.allreduce(X, op)  # type: ignore[arg-type]  # what a user may do


def test_other_dtypes_of_the_package_are_refused_by_name(comm: ftcomm.Communicator) -> None:
    with pytest.raises(TypeError, match=r"dtype float8_e5m2 is not carried .*ml_dtypes.bfloat16"):
        comm.allreduce(np.zeros(2, ml_dtypes.float8_e5m2))
    with pytest.raises(TypeError, match="is for float32, x is bfloat16"):
        comm.allreduce(X, wire="bf16")


def test_who_lacks_the_package_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ProtocolError, match=r"pip install .*\[bf16\]'"):
        dtype_from_wire(BFLOAT16, (2,), 4, 100)


def test_small_calls_take_the_way_that_sends_them_as_bits() -> None:
    factory = builder(world_size=2)
    hub: Any = SimpleNamespace(
        faults=None,
        settings=JobSettings(),
        core=SimpleNamespace(view=None, progress=None, log=SimpleNamespace(unasked=None)),
    )
    plane: Any = SimpleNamespace(persistent_moves=lambda form: ("moves",))
    ways = [
        persistent(hub, plane, factory.allreduce(x, CallOptions(), "train.py:1").form, bool)
        for x in (X, X.astype(np.float32))
    ]
    assert [way is not None for way in ways] == [False, True]
