"""One number in, one number of the same type out; arrays without dimensions stay arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ftcomm


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


class Celsius(float):
    """A float of the user's own: not exactly float."""


NUMBERS: dict[str, Any] = {
    "int": 3,
    "large int": 1 << 63,
    "float": 2.5,
    "bool": True,
    "complex": 1 + 2j,
    "float32": np.float32(1.5),
    "float64": np.float64(1.5),
    "int8": np.int8(3),
    "numpy bool": np.True_,
    "complex64": np.complex64(1j),
}
CALLS = ["allreduce", "reduce", "broadcast", "iallreduce", "ireduce", "ibroadcast", "bucketed"]


def called(comm: ftcomm.Communicator, call: str, x: Any, **options: Any) -> Any:
    """The result of any call, of a reduction by an op that takes the dtype."""
    kind = np.asarray(x() if callable(x) else x).dtype.kind
    if not call.endswith("broadcast"):
        options["op"] = {"b": "lor", "c": "sum"}.get(kind, "max")
    if call == "bucketed":
        return comm.bucketed([np.ones(2), x, x], **options)[1]
    result = getattr(comm, call)(x, **options)
    return result.wait() if call.startswith("i") else result


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_gives_a_number_of_its_type(
    comm: ftcomm.Communicator, call: str, number: str
) -> None:
    x = NUMBERS[number]
    if call == "bucketed" and isinstance(x, (bool, complex, np.bool_, np.complexfloating)):
        return  # one op for all arrays
    for _ in range(3):  # the first, and those that may be like one before
        result = called(comm, call, x)
        assert (type(result), result) == (type(x), x)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "x",
    [np.array(3), np.array(2.5, np.float32), Celsius(1.5), lambda: 3, lambda: np.float32(3)],
    ids=["int array", "float array", "subclass", "function", "function of numpy's"],
)
def test_what_is_not_exactly_a_number_gives_an_array(
    comm: ftcomm.Communicator, call: str, x: Any
) -> None:
    if callable(x) and (call == "bucketed" or call.endswith("broadcast")):
        return
    result = called(comm, call, x)
    assert (type(result), result.shape) == (np.ndarray, ())


@pytest.mark.parametrize("call", ["broadcast", "ibroadcast"])
@pytest.mark.parametrize("x", [3, np.float32(3)], ids=["of Python", "of numpy"])
def test_a_broadcast_function_gives_a_number_of_the_type_that_it_returned(
    comm: ftcomm.Communicator, call: str, x: Any
) -> None:
    result = called(comm, call, lambda: x)
    assert (type(result), result) == (type(x), x)


@pytest.mark.parametrize("call", ["allgather", "gather", "iallgather", "igather"])
def test_a_stack_of_numbers_is_an_array(comm: ftcomm.Communicator, call: str) -> None:
    result = getattr(comm, call)(3)
    stack = result.wait() if call.startswith("i") else result
    assert (type(stack), stack.tolist()) == (np.ndarray, [3])


def test_a_place_for_the_result_is_what_is_returned(comm: ftcomm.Communicator) -> None:
    out = np.empty((), np.int64)
    for result in (comm.allreduce(3, out=out), comm.iallreduce(3, out=out).wait()):
        assert (result is out, out.tolist()) == (True, 3)
    assert type(comm.bucketed([3], out=[out])[0]) is np.ndarray


def test_a_view_of_a_number_is_the_number(comm: ftcomm.Communicator) -> None:
    kinds = [type(call(3, copy=False)) for call in (comm.allreduce, comm.broadcast)]
    assert kinds == [int, int]


def test_a_number_that_travels_rounded_keeps_its_type(comm: ftcomm.Communicator) -> None:
    result = comm.allreduce(np.float32(3.1415927), wire="bf16")
    assert (type(result), float(result)) == (np.float32, 3.140625)
