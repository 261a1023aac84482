"""Values of ``op``: builtins that mean a name, the user's functions, refusals."""

import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.collectives.op_argument import NAME_OF_ID, resolve_op
from ftcomm.protocol.signature import Kind
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


ELEMENTWISE: dict[str, Callable[[Array, Array], Any]] = {
    "sum": lambda a, b: a + b,
    "larger": lambda a, b: np.where(a > b, a, b),
    "softly larger": lambda a, b: np.maximum(a, b) + np.log1p(np.exp(-abs(a - b))),
    "partial": functools.partial(lambda scale, a, b: (a * b * scale).astype(a.dtype), 2.0),
    "hypot": np.hypot,
    "logaddexp": np.logaddexp,
    "fmax": np.fmax,
}


@pytest.mark.parametrize("op", ELEMENTWISE)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_an_elementwise_function_passes(comm: ftcomm.Communicator, op: str, dtype: str) -> None:
    assert comm.allreduce(np.ones(3, dtype), ELEMENTWISE[op]).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int64", "uint64", "complex64", "complex128"]
)
def test_a_function_is_tried_on_its_own_dtype(comm: ftcomm.Communicator, dtype: str) -> None:
    seen: set[str] = set()

    def noted(a: Array, b: Array) -> Array:
        seen.add(a.dtype.name)
        return a * b

    comm.allreduce(np.ones(3, dtype), noted)
    assert seen == {dtype}


REFUSED: dict[str, tuple[Any, str]] = {
    "concatenates": (lambda a, b: np.concatenate([a, b]), r"returned float64\[10\], expected"),
    "another dtype": (lambda a, b: (a + b).astype("f4"), r"returned float32\[5\], expected"),
    "one number": (lambda a, b: (a + b).sum(), r"returned float64\[\], expected float64\[5\]"),
    "nothing": (lambda _a, _b: None, "returned object"),
    "sorts": (lambda a, b: np.sort(a + b), "is not elementwise.*elementwise=False"),
    "normalises": (lambda a, b: (a + b) / (a + b).max(), "is not elementwise"),
    "Python's sum after all": (lambda a, b: sum(a, start=b), "is not elementwise"),
    "accumulates": (lambda a, b: np.cumsum(a * b), "is not elementwise"),
    "first": (
        first,
        r"op tests.unit.collectives.test_op_argument.first is not commutative.*commutative=False",
    ),
    "subtract": (np.subtract, "op numpy.subtract is not commutative"),
    "weighted": (lambda a, b: 0.9 * a + 0.1 * b, "is not commutative"),
    "in place": (lambda a, b: np.add(a, b, out=a), "raised ValueError: .*read-only.*untried"),
    "fails": (lambda a, _: a / None, "raised TypeError"),
}


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("call", ["allreduce", "reduce", "iallreduce"])
def test_a_function_that_is_not_elementwise_is_refused_in_a_group_of_one(
    comm: ftcomm.Communicator, why: str, call: str
) -> None:
    function, words = REFUSED[why]
    with pytest.raises(TypeError, match=words):
        getattr(comm, call)(np.ones(3), function)
    assert comm.seqno == 0


def test_a_function_is_tried_once_and_a_declared_one_never(comm: ftcomm.Communicator) -> None:
    calls: list[int] = []

    def noted(a: Array, b: Array) -> Array:
        np.add(a, b, out=TOTAL)
        calls.append(len(a))
        return a + b

    for _ in range(3):
        comm.allreduce(np.ones(3), ftcomm.reduction(noted))
    assert calls == []
    comm.allreduce(np.ones(3), first_tried)
    tried = list(TRIED)
    comm.allreduce(np.ones(3), first_tried)
    assert (tried, TRIED) == ([5, 3, 2, 5], tried)


TOTAL, TRIED = np.empty(5), []  # type: tuple[Array, list[int]]


def first_tried(a: Array, b: Array) -> Array:
    TRIED.append(len(a))
    return a + b


WITHOUT_CODE: dict[str, tuple[Any, str]] = {
    "pow": (pow, r"op is pow, which has no Python code .* ftcomm.reduction\(f, name='pow'\)"),
    "gcd": (math.gcd, "op is math.gcd, which has no Python code"),
    "sub": (operator.sub, "op is _operator.sub, which has no Python code"),
    "a class": (float, "op is float, which has no Python code"),
    "an object": (Adder(), "op is an object of type Adder, which has no Python code"),
    "partial of C": (functools.partial(pow, mod=3), "op is pow, which has no Python code"),
    "another's ufunc": (np.frompyfunc(first, 2, 1), "is no ufunc of numpy's own"),
    "one input": (np.exp, "op is numpy.exp, which takes 1 arrays and gives 1"),
    "two outputs": (np.divmod, "op is numpy.divmod, which takes 2 arrays and gives 2"),
    "a number": (3, "op is a name, an ftcomm.Op or a function, not int"),
    "none": (None, "op is a name, an ftcomm.Op or a function, not NoneType"),
}


@pytest.mark.parametrize("what", WITHOUT_CODE)
def test_what_has_no_code_to_compare_is_refused_by_name(
    comm: ftcomm.Communicator, what: str
) -> None:
    op, words = WITHOUT_CODE[what]
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
        ((np.max, None), TypeError, "numpy.max combines the elements of one.*pass op='max'"),
        ((pow, None), TypeError, "op is pow"),
        ((first, ""), ValueError, "name has 0 characters"),
        ((first, "x" * 201), ValueError, "name has 201 characters, must have 1 to 200"),
        ((first, 3), TypeError, "name is a int, must be a str"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(
    arguments: Any, error: type[Exception], words: str
) -> None:
    function, name = arguments
    with pytest.raises(error, match=words):
        ftcomm.reduction(function, name=name)
