"""Hashes of functions: other code, other constants or other values are another operation."""

import enum
import functools
import itertools
import math
import operator
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.collectives.op_argument import Reduction, function_hash
from ftcomm.protocol.signature import Kind
from ftcomm.requests.request import CallOptions
from tests.helpers.group import builder
from tests.unit.requests.test_builder import SITE

Array = np.ndarray[Any, Any]
Function = Callable[[Array, Array], Any]

SCALE, TABLE = 2.0, [1, 2]
CHOSEN: Any = None


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


class Model:
    weight = 2

    def op(self, a: Array, b: Array) -> Array:
        return (a + b) * self.weight


def hash_of(function: Function, **needs: Any) -> int:
    return function_hash(Reduction(function, **needs))


def helper(x: Array) -> Array:
    return x


def scaled(factor: Any) -> Function:
    return lambda a, b: (a + b) * factor


def with_default(factor: Any) -> Function:
    def op(a: Array, b: Array, factor: Any = factor) -> Array:
        return (a + b) * factor

    return op


def with_keyword(factor: Any) -> Function:
    def op(a: Array, b: Array, *, factor: Any = factor) -> Array:
        return (a + b) * factor

    return op


def of_helper(function: Callable[[Array], Array]) -> Function:
    return lambda a, b: function(a + b)


DIFFERENT: dict[str, Function] = {
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "another constant": lambda a, b: a * b * 2,
    "the constant as a float": lambda a, b: a * b * 2.0,
    "a negative zero": lambda a, b: a * b * -0.0,
    "zero": lambda a, b: a * b * 0.0,
    "another name": lambda a, b: a.dot(b),
    "a method": lambda a, b: a.cross(b),
    "nested": lambda a, b: [x + y for x, y in zip(a, b, strict=True)],
    "another nested": lambda a, b: [x - y for x, y in zip(a, b, strict=True)],
    "closure": scaled(2),
    "closure of a float": scaled(2.0),
    "closure of True": scaled(True),
    "closure of text": scaled("2"),
    "closure of bytes": scaled(b"2"),
    "closure of a list": scaled([2, 3]),
    "closure of a tuple": scaled((2, 3)),
    "closure of a dict": scaled({2: 3}),
    "closure of a set": scaled({2, 3}),
    "closure of an array": scaled(np.array([2, 3])),
    "closure of floats": scaled(np.array([2.0, 3.0])),
    "closure of a column": scaled(np.array([[2], [3]])),
    "closure of a number": scaled(np.float32(2)),
    "closure of a dtype": scaled(np.dtype("f4")),
    "closure of a struct": scaled(np.dtype([("a", "i4")])),
    "closure of another struct": scaled(np.dtype([("b", "i4")])),
    "closure of structs": scaled(np.zeros(1, [("a", "i4")])),
    "closure of other structs": scaled(np.zeros(1, [("b", "i4")])),
    "closure of a huge number": scaled(10**5000),
    "closure of a class": scaled(np.float32),
    "closure of a module": scaled(np),
    "closure of C code": scaled(math.exp),
    "closure of a ufunc": scaled(np.exp),
    "closure of numpy's code": scaled(np.sort),
    "closure of None": scaled(None),
    "default": with_default(2),
    "another default": with_default(3),
    "keyword": with_keyword(2),
    "another keyword": with_keyword(3),
    "helper": of_helper(lambda x: x),
    "another helper": of_helper(lambda x: -x),
    "partial": functools.partial(lambda scale, a, b: (a + b) * scale, 2),
    "another partial": functools.partial(lambda scale, a, b: (a + b) * scale, 3),
    "global helper": lambda a, b: helper(a + b),
    "global constant": lambda a, b: (a + b) * SCALE,
}


def test_different_functions_have_different_hashes() -> None:
    hashes = {name: hash_of(function) for name, function in DIFFERENT.items()}
    pairs = itertools.combinations(hashes, 2)
    assert [(a, b) for a, b in pairs if hashes[a] == hashes[b]] == []


def test_the_same_function_made_again_has_the_same_hash() -> None:
    for make in (scaled, with_default, with_keyword):
        for factor in (2, "x", np.arange(3.0), {"a": [1, None]}, {"b", "a", "c"}):
            assert hash_of(make(factor)) == hash_of(make(factor))
    assert hash_of(lambda a, b: a + b) == hash_of(lambda a, b: a + b)
    keywords = {"axis": 0, "out": None}
    backwards = dict(reversed(keywords.items()))
    partials = [functools.partial(np.sum, **each) for each in (keywords, backwards)]
    assert hash_of(partials[0]) == hash_of(partials[1])


def test_what_it_needs_and_its_name_are_part_of_it() -> None:
    op = DIFFERENT["sum"]
    needs = [{}, {"elementwise": False}, {"commutative": False}, {"name": "a"}, {"name": "b"}]
    assert len({hash_of(op, **need) for need in needs}) == len(needs)
    assert hash_of(op, name="a") == hash_of(DIFFERENT["product"], name="a")
    assert hash_of(np.hypot) == hash_of(np.hypot) != hash_of(np.logaddexp)


def test_globals_count_by_value_only_where_nothing_can_change_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def op(a: Array, b: Array) -> Array:
        return helper(a + b) * SCALE + TABLE

    before = hash_of(op)
    TABLE.append(3)  # a buffer or a counter is no other function
    assert hash_of(op) == before
    TABLE.pop()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    other_constant = hash_of(op)
    monkeypatch.setitem(globals(), "helper", lambda x: -x)
    assert len({before, other_constant, hash_of(op)}) == 3


FIXED: dict[str, tuple[Any, Any]] = {
    "a ufunc": (np.maximum, np.minimum),
    "C code": (operator.add, operator.mul),
    "numpy's code": (np.sort, np.argsort),
    "a class": (np.float32, np.float64),
    "a module": (np, operator),
    "a dtype": (np.dtype("f4"), np.dtype("f8")),
    "a number": (np.float32(2), np.float32(3)),
    "an enum": (Side.LEFT, Side.RIGHT),
    "a partial": (functools.partial(operator.mul, 2), functools.partial(operator.mul, 3)),
    "a tuple of functions": ((helper, np.sort), (helper, np.argsort)),
}


@pytest.mark.parametrize("what", FIXED)
def test_what_a_global_name_stands_for_is_compared(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks chose another function at the same name, and combined with different ones."""

    def op(a: Array, b: Array) -> Any:
        return CHOSEN(a, b)

    hashes = set()
    for value in FIXED[what]:
        monkeypatch.setitem(globals(), "CHOSEN", value)
        hashes.add(hash_of(op))
    assert len(hashes) == 2


def test_an_object_at_a_global_name_counts_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def op(a: Array, b: Array) -> Any:
        return CHOSEN(a, b)

    hashes = set()
    for value in (Model().op, functools.partial(Model().op), np.random.default_rng(1).normal):
        monkeypatch.setitem(globals(), "CHOSEN", value)
        hashes.add(hash_of(op))
    assert len(hashes) == 1


def test_a_variable_that_it_assigns_itself_counts_by_name() -> None:
    calls = 0

    def counted(a: Array, b: Array) -> Array:
        nonlocal calls
        calls += 1
        return a + b

    before = hash_of(counted)
    counted(np.ones(1), np.ones(1))
    assert (calls, hash_of(counted)) == (1, before)


def test_functions_that_call_each_other_have_an_end() -> None:
    def itself(a: Array, b: Array) -> Array:
        return itself(b, a) if len(a) > 9 else a + b

    def ping(a: Array, b: Array) -> Array:
        return pong(a, b)

    def pong(a: Array, b: Array) -> Array:
        return ping(a, b)

    assert len({hash_of(f) for f in (itself, ping, factorial)}) == 3


def factorial(a: Any, b: Any) -> Any:
    return factorial(a, b - 1) if b > 1 else a


LOOP: list[Any] = []
LOOP.append(LOOP)
RING: set[Any] = set()
RING.add(scaled(RING))
UNHASHABLE: dict[str, tuple[Function, str]] = {
    "an object": (scaled(Model()), r"factor is an object of type .*test_function_hash.Model"),
    "a method": (Model().op, r"it is an object of type .*test_function_hash.Model"),
    "an object in a list": (scaled([1, Model()]), "factor is an object of type"),
    "a default": (with_default(Model()), "a default is an object of type"),
    "in a helper": (of_helper(with_default(Model())), "a default of function is an object"),
    "a bound C method": (scaled([].append), "factor is an object of type builtins.builtin_func"),
    "objects": (scaled(np.array([None])), "factor is an array of Python objects"),
    "too much": (scaled(np.zeros((1 << 20) + 1, np.int8)), "more than 1048576 bytes"),
    "a cycle": (scaled(LOOP), "factor is nested more than 32 deep"),
    "a cycle by a set": (scaled(RING), "nested more than 32 deep"),
}


@pytest.mark.parametrize("what", UNHASHABLE)
def test_what_cannot_be_hashed_is_refused_with_the_remedy(what: str) -> None:
    function, words = UNHASHABLE[what]
    remedy = r"which cannot be hashed; give it a name: ftcomm.reduction\(f, name="
    with ftcomm.init("none") as comm:
        with pytest.raises(TypeError, match=words + ".*" + remedy):
            comm.allreduce(np.ones(3), function)
        comm.allreduce(np.ones(3), ftcomm.reduction(function, name="mine"))
        assert comm.seqno == 1


PROGRAM = """
import sys
sys.path[:0] = {path!r}
import tests.unit.collectives.test_function_hash as t
print([t.hash_of(function) for function in t.DIFFERENT.values()])
"""


def test_another_process_computes_the_same_whatever_the_order_of_its_sets() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(path=sys.path)],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert told == {f"{[hash_of(function) for function in DIFFERENT.values()]}\n"}


# --- in a group whose ranks run different versions ------------------------------------------------

MIXED = ("CPython 3.11", "CPython 3.12", "", "CPython 3.11")


def test_an_unnamed_function_is_refused_where_versions_differ() -> None:
    factory, x = builder(pythons=MIXED), np.ones(3)
    words = (
        "op .*<lambda> cannot be compared between ranks: they run CPython 3.11 on rank 0 and 1 "
        "more, CPython 3.12 on rank 1, and each version has its own bytecode; give it a name: "
        r"ftcomm.reduction\(f, name='mine'\)"
    )
    with pytest.raises(TypeError, match=words):
        factory.allreduce(x, CallOptions(DIFFERENT["sum"]), SITE)
    with pytest.raises(TypeError, match=words):
        factory.known(Kind.ALLREDUCE, CallOptions(DIFFERENT["sum"]))
    named = ftcomm.reduction(DIFFERENT["sum"], name="sum")
    for op in ("sum", sum, operator.add, np.hypot, named):
        factory.allreduce(x, CallOptions(op), SITE)


@pytest.mark.parametrize("pythons", [("CPython 3.11",) * 3, ("CPython 3.11", "", ""), ("",)])
def test_one_version_is_no_difference(pythons: tuple[str, ...]) -> None:
    builder(pythons=pythons).allreduce(np.ones(3), CallOptions(DIFFERENT["sum"]), SITE)
