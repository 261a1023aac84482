"""Values of ``op``: builtins that mean a name, the user's functions, refusals."""

import functools
import operator
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.collectives.op_argument import MAX_NAME, NAME_OF_ID, resolve_op
from ftcomm.protocol.field_types import MAX_ADDRESS
from ftcomm.protocol.signature import Kind, function_of_site, site_with_function
from ftcomm.requests.request import CallOptions

Array = np.ndarray[Any, Any]


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


STAND_INS: dict[Any, str] = {
    sum: "sum",
    min: "min",
    max: "max",
    any: "lor",
    all: "land",
    operator.add: "sum",
    operator.mul: "prod",
    operator.and_: "band",
    operator.or_: "bor",
    operator.xor: "bxor",
    np.add: "sum",
    np.multiply: "prod",
    np.minimum: "min",
    np.maximum: "max",
    np.bitwise_and: "band",
    np.bitwise_or: "bor",
    np.bitwise_xor: "bxor",
    np.logical_and: "land",
    np.logical_or: "lor",
    np.sum: "sum",
    np.prod: "prod",
    np.min: "min",
    np.max: "max",
    np.mean: "mean",
    np.any: "lor",
    np.all: "land",
}


def test_a_builtin_stands_for_the_operation_of_its_name() -> None:
    assert {f: resolve_op(f) for f in STAND_INS} == STAND_INS
    assert {id(f) for f in STAND_INS} == set(NAME_OF_ID)


def test_what_it_stands_for_has_the_same_signature(comm: ftcomm.Communicator) -> None:
    def signature(op: Any) -> bytes:
        dtype = np.float64 if op in ("mean", np.mean) else np.int64
        return comm._session.builder.allreduce(
            np.ones(3, dtype), CallOptions(op), "a.py:1"
        ).form.signature

    for function, name in STAND_INS.items():
        assert signature(function) == signature(name), name
        assert comm._session.builder.known(Kind.ALLREDUCE, CallOptions(function)) == (
            comm._session.builder.known(Kind.ALLREDUCE, CallOptions(name))
        )


def test_the_lectures_line_in_a_group_of_one(comm: ftcomm.Communicator) -> None:
    results = [comm.allreduce([1, 2, 3], op=f).tolist() for f in (sum, max, operator.mul)]
    assert results == [[1, 2, 3]] * 3
    assert comm.reduce([1, 0], op=all).tolist() == [1, 0]  # type: ignore[union-attr]  # the root
    assert comm.bucketed([[1.0], [2.0]], op=np.mean)[1].tolist() == [2.0]


class Adder:
    """No function, though it can be called."""

    def __call__(self, a: Array, b: Array) -> Array:
        return a + b


def first(a: Array, _: Array) -> Array:
    return a


HERE = "tests.unit.collectives.test_op_argument"
UNDECLARED: dict[str, tuple[Any, str]] = {
    "a function": (first, f"reduction(first, name='{HERE}.first')"),
    "a lambda": (lambda a, b: a + b, "reduction(f, name=...)"),
    "a partial": (functools.partial(first), "reduction(f, name=...)"),
    "an object": (Adder(), "reduction(f, name=...)"),
    "a builtin of one array": (pow, "reduction(pow, name='pow')"),
    "a ufunc": (np.hypot, "reduction(hypot, name='numpy.hypot')"),
}


@pytest.mark.parametrize("what", UNDECLARED)
@pytest.mark.parametrize("call", ["allreduce", "reduce", "iallreduce", "reduce_scatter"])
def test_an_undeclared_function_is_refused_with_its_declaration(
    comm: ftcomm.Communicator, what: str, call: str
) -> None:
    function, declaration = UNDECLARED[what]
    words = rf"is not declared as a reduction; .*:\n    op = ftcomm.{re.escape(declaration)}$"
    with pytest.raises(TypeError, match=words):
        getattr(comm, call)(np.ones((1, 3)), function)
    assert comm.seqno == 0


def test_the_line_of_the_error_can_be_pasted(comm: ftcomm.Communicator) -> None:
    def average(a: Array, b: Array) -> Array:
        return (a + b) / 2

    with pytest.raises(TypeError) as caught:
        comm.allreduce(np.ones(3), average)
    known: dict[str, Any] = {"ftcomm": ftcomm, "average": average}
    exec(str(caught.value).splitlines()[-1].strip(), known)
    assert comm.allreduce(np.ones(3), known["op"]).tolist() == [1.0] * 3


def test_a_function_without_a_name_of_its_own_is_to_be_given_one(comm: ftcomm.Communicator) -> None:
    with pytest.raises(TypeError, match="with a name of your own for the") as caught:
        comm.allreduce(np.ones(3), lambda a, _: a)
    with pytest.raises(TypeError, match="name is an ellipsis, must be a str"):
        exec(str(caught.value).splitlines()[-1].strip(), {"ftcomm": ftcomm, "f": first})


@pytest.mark.parametrize("op", [3, None])
def test_what_cannot_be_called_is_no_op(comm: ftcomm.Communicator, op: Any) -> None:
    words = rf"op is a name, an ftcomm.Op or an ftcomm.reduction, not {type(op).__name__}"
    for call in (comm.allreduce, comm.reduce, comm.iallreduce):
        with pytest.raises(TypeError, match=words):
            call(np.ones(3), op)
    assert comm.seqno == 0


def test_a_name_admits_it(comm: ftcomm.Communicator) -> None:
    for function in (pow, Adder(), np.frompyfunc(first, 2, 1)):
        comm.allreduce(np.ones(3), ftcomm.reduction(function, name="torch.add"))
    assert comm.seqno == 3


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((sum, "x"), TypeError, "sum combines the elements of one array.*pass op='sum'"),
        ((np.max, "x"), TypeError, "numpy.max combines the elements of one.*pass op='max'"),
        (("sum", "x"), TypeError, "made of a function, not of a str"),
        ((first, None), TypeError, "name is None, must be a str"),
        ((first, ""), ValueError, "name has 0 characters"),
        ((first, "x" * 81), ValueError, "name has 81 characters, must have 1 to 80"),
        ((first, 3), TypeError, "name is an int, must be a str"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(
    arguments: Any, error: type[Exception], words: str
) -> None:
    function, name = arguments
    with pytest.raises(error, match=words):
        ftcomm.reduction(function, name=name)


def test_what_ranks_compare_is_the_name_and_what_the_function_needs() -> None:
    needs: list[dict[str, Any]] = [
        {},
        {"elementwise": False},
        {"commutative": False},
        {"in_place": True},
        {"itemsize": 8},
        {"itemsize": 16},
        {"in_place": True, "itemsize": 8},
    ]
    hashes = {
        ftcomm.reduction(first, name=name, **need).hash for name in ("a", "b") for need in needs
    }
    assert len(hashes) == 14
    assert ftcomm.reduction(first, name="a").hash == ftcomm.reduction(pow, name="a").hash


def test_needs_that_mean_the_same_have_one_hash() -> None:
    """The needs of another rank may be numbers, or NumPy's truth values."""
    truths: list[tuple[Any, Any]] = [(False, True), (0, 1), (np.False_, np.True_)]
    hashes = {
        ftcomm.reduction(first, name="a", elementwise=no, commutative=yes).hash
        for no, yes in truths
    }
    assert len(hashes) == 1


def test_a_name_on_the_wire_does_not_change() -> None:
    """Ranks with different versions of Python have the same hash."""
    assert ftcomm.reduction(pow, name="é\ud800").hash == 0xD6DE81BD7D99A51B


def test_the_label_of_a_name_is_printable() -> None:
    label = ftcomm.reduction(first, name="a\nb\x1bé").label
    assert label == "a?b??"
    assert function_of_site(site_with_function("job.py:7", label)) == label


def test_a_label_and_a_call_site_fit_into_what_a_worker_tells() -> None:
    site = site_with_function("f" * 60 + ":1000000", "x" * MAX_NAME)
    assert len(site) <= MAX_ADDRESS
