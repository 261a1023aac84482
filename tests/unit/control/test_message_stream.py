"""``wire=``: what the user gets, what the ranks agree on, and what is refused."""

from collections.abc import Iterator

import numpy as np
import pytest

import ftcomm
from ftcomm.protocol.signature import (
    DTYPE_NAMES,
    Kind,
    OpCode,
    Signature,
    Wire,
    is_compatible,
    signature_text,
)
from ftcomm.requests.request import CallOptions
from tests.helpers.group import builder

SITE = "train.py:1"


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


X = np.array([[1.0, -2.5], [3.1415927, 0.1]], np.float32)
ROUNDED = [[1.0, -2.5], [3.140625, 0.10009765625]]


def test_a_result_is_float32_of_the_users_shape_and_rounded(comm: ftcomm.Communicator) -> None:
    got = comm.allreduce(X, wire="bf16")
    assert (got.dtype, got.flags.writeable, got.tolist()) == (np.float32, True, ROUNDED)
    reduced = comm.reduce(X, "max", wire="bf16")
    assert reduced is not None
    assert (reduced.dtype, reduced.tolist()) == (np.float32, ROUNDED)
    assert comm.allreduce(lambda: X, wire="bf16").tolist() == ROUNDED
    assert comm.allreduce(np.float32(3.1415927), "mean", wire="bf16").tolist() == 3.140625


def test_out_is_filled(comm: ftcomm.Communicator) -> None:
    for call in (comm.allreduce, comm.reduce):
        out = np.zeros((2, 2), np.float32)
        assert call(X, out=out, wire="bf16") is out
        assert out.tolist() == ROUNDED


def test_the_input_is_not_written(comm: ftcomm.Communicator) -> None:
    x = X.copy()
    x.flags.writeable = False
    comm.allreduce(x, wire="bf16")
    assert x.tobytes() == X.tobytes()


def test_half_the_bytes_travel_and_count() -> None:
    factory = builder()
    call = factory.allreduce(X, CallOptions(wire="bf16"), SITE)
    assert (call.sendbuf.nbytes, call.form.nbytes) == (8, 8)


def test_ranks_agree_on_the_format() -> None:
    factory = builder()
    forms = [factory.allreduce(X, CallOptions(wire=wire), SITE).form for wire in (None, "bf16")]
    plain, rounded = (Signature.decode(form.signature) for form in forms)
    float32 = next(code for code, name in DTYPE_NAMES.items() if name == "float32")
    wanted = Signature(
        Kind.ALLREDUCE, OpCode.SUM, float32, count=4, ndim=2, dims=(2, 2, 0, 0), wire=Wire.BF16
    )
    assert (plain.wire, rounded) == (Wire.SAME, wanted)
    assert signature_text(forms[1].signature) == "allreduce(op=sum, float32[2,2], wire=bf16)"


def test_an_input_function_of_another_format_is_another_call() -> None:
    factory = builder()
    known = factory.known(Kind.ALLREDUCE, CallOptions(wire="bf16"))
    same = factory.allreduce(X, CallOptions(wire="bf16"), SITE).form.signature
    other = factory.allreduce(X, CallOptions(), SITE).form.signature
    assert (is_compatible(known, same), is_compatible(known, other)) == (True, False)


@pytest.mark.parametrize(
    ("x", "op", "wire", "error", "text"),
    [
        (X.astype(np.float64), "sum", "bf16", TypeError, "is for float32, x is float64; convert"),
        ([1.0], "sum", "bf16", TypeError, "x is float64"),
        (X.astype(np.float16), "sum", "bf16", TypeError, "x is float16"),
        (X, "sum", "fp8", ValueError, "no wire format is called 'fp8'; use 'bf16'"),
        (lambda: X, "sum", "fp8", ValueError, "no wire format is called 'fp8'"),
        (X, "lor", "bf16", TypeError, "op 'lor' is not defined for bfloat16"),
        (X, ftcomm.reduction(np.hypot, name="hypot"), "bf16", TypeError, "is reduced by name only"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    comm: ftcomm.Communicator, x, op, wire, error, text
) -> None:
    with pytest.raises(error, match=text):
        comm.allreduce(x, op, wire=wire)
    assert comm.seqno == 0


def test_out_must_be_float32(comm: ftcomm.Communicator) -> None:
    out = np.zeros((2, 2), np.uint16)
    for x in (X, lambda: X):
        with pytest.raises(ValueError, match=r"out is uint16\[2, 2\], the result is float32"):
            comm.allreduce(x, out=out, wire="bf16")
