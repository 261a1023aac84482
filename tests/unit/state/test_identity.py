"""Parts of a state that are one object come back as one object, and are written once."""

import enum
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ftcomm
from ftcomm.errors import ProtocolError
from ftcomm.state.identity import MAX_DEPTH
from ftcomm.state.layout import with_bodies
from ftcomm.state.lazy import LazyState
from ftcomm.state.serializer import pack_state, unpack_state


class Box:
    """A mutable type of a user."""

    def __init__(self, content: Any) -> None:
        self.content = content


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Shape:
    rows: int


@dataclass(frozen=True)
class Rate:
    value: float


class Phase(enum.Enum):
    TRAIN = 1


ftcomm.register(Box, lambda box: box.content, Box)
ftcomm.register(Pair, tuple, Pair._make)
ftcomm.register(Shape, lambda shape: [shape.rows], lambda content: Shape(*content))
ftcomm.register(Rate, vars, lambda content: Rate(**content))
ftcomm.register(Phase, lambda phase: phase.value, Phase)


@st.composite
def states(draw: st.DrawFn) -> Any:
    """A state whose parts occur in several places."""
    parts: list[Any] = []
    for _ in range(draw(st.integers(1, 8))):
        known = st.sampled_from(parts) if parts else st.nothing()
        items = draw(st.lists(known | st.integers(0, 9), max_size=3))
        named = dict(zip("abc", items, strict=False))
        kinds = [
            lambda items=items: list(items),
            lambda items=items: tuple(items),
            lambda named=named: dict(named),
            lambda named=named: OrderedDict(named),
            lambda named=named: defaultdict(int, named),
            lambda items=items: Box(items[0] if items else None),
            lambda items=items: Pair((*items, 1)[0], 2),
            lambda items=items: np.arange(len(items)),
            lambda items=items: np.ones((len(items), 2), "f4", "F"),
            lambda: Shape(3),
            lambda: Phase.TRAIN,
        ]
        parts.append(draw(st.sampled_from(kinds))())
    return draw(st.lists(st.sampled_from(parts), max_size=4))


def graph(state: Any) -> Any:
    """A form of `state` that compares types, content, and which parts are one object."""
    numbers: dict[int, int] = {}

    def form(value: Any) -> Any:
        mutable = isinstance(value, (list, dict, np.ndarray, Box))
        if mutable and id(value) in numbers:
            return "part", numbers[id(value)]
        if mutable:
            numbers[id(value)] = len(numbers)
        if isinstance(value, dict):
            return type(value), [(key, form(item)) for key, item in value.items()]
        if isinstance(value, (list, tuple)):
            return type(value), [form(item) for item in value]
        if isinstance(value, Box):
            return Box, form(value.content)
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.shape, value.flags.fnc, value.tolist()
        return value

    return form(state)


@given(states())
def test_what_was_one_object_is_one_again(state: Any) -> None:
    raw = pack_state(state)
    again = unpack_state(raw)
    assert graph(again) == graph(state)
    assert pack_state(again) == raw
    assert graph(unpack_state(raw, copy=False)) == graph(state)


@given(states())
def test_a_lazy_state_gives_the_same_bytes(state: Any) -> None:
    lazy = LazyState(state)
    assert lazy.packed_now() == lazy.raw() == pack_state(state)


@given(states(), states())
def test_the_bytes_differ_as_the_states_do(one: Any, other: Any) -> None:
    assert (pack_state(one) == pack_state(other)) == (graph(one) == graph(other))


def test_a_shared_array_is_written_once() -> None:
    w = np.ones(100_000)
    assert len(pack_state({"encoder": w, "decoder": [w, w[:]]})) < 1.01 * w.nbytes
    assert len(pack_state([w, w.copy()])) > 2 * w.nbytes


def test_a_part_of_an_array_is_an_array_of_its_own() -> None:
    w = np.arange(6.0).reshape(2, 3)
    again = unpack_state(pack_state([w, w[0], w.T, w.reshape(-1), w.view("i8"), w[:]]))
    assert [part is again[0] for part in again] == [True, False, False, False, False, True]
    again[0][:] = -1
    assert [np.asarray(part).reshape(-1)[1] for part in again[1:4]] == [1, 3, 1]


def test_equal_constants_are_no_objects() -> None:
    """A restarted rank has other objects for them than one that went on."""
    for make in (
        lambda: (1, 2),
        lambda: "ab",
        lambda: Shape(1),
        lambda: Pair(1, 2),
        lambda: Rate(1),
    ):
        once = make()
        assert pack_state([once, once]) == pack_state([make(), make()])


def test_what_to_state_gives_is_taken_once_for_an_object() -> None:
    class Counting:
        calls = 0

    def to_state(value: Counting) -> Any:
        value.calls += 1
        return {"calls": value.calls}

    ftcomm.register(Counting, to_state, lambda content: Counting())
    value = Counting()
    pack_state([value, {"again": value}])
    assert value.calls == 1


class TestCycles:
    """A part that contains itself is refused by its path."""

    @pytest.mark.parametrize("make", [pack_state, LazyState])
    def test_they_are_refused(self, make: Any) -> None:
        in_list: list[Any] = []
        in_list.append((1, in_list))
        in_dict: dict[str, Any] = {"a": {}}
        in_dict["a"]["b"] = in_dict["a"]
        box = Box(None)
        box.content = [box]
        for state, path in (
            (in_list, r"state\[0\]\[1\]"),
            (in_dict, r"state\['a'\]\['b'\]"),
            ({"x": box}, r"state\['x'\].to_state\(\)\[0\]"),
        ):
            with pytest.raises(TypeError, match=f"^{path} contains itself$"):
                make(state)


def chain(length: int) -> list[Any]:
    """Lists, each of which holds the one before it."""
    state: list[Any] = [[0]]
    for _ in range(length):
        state.append([state[-1]])
    return state


@pytest.mark.parametrize("make", [pack_state, LazyState])
def test_references_count_as_levels(make: Any) -> None:
    state = chain(MAX_DEPTH - 2)
    assert graph(unpack_state(pack_state(state))) == graph(state)
    make(state)
    with pytest.raises(TypeError, match=r"^state\[63\]\[0\] is nested more than 64 deep$"):
        make(chain(MAX_DEPTH))


def hostile(*parts: Any) -> bytes:
    """A state of shared lists, each of the items given; an integer below 0 is a reference."""

    def item(value: int) -> Any:
        return msgpack.ExtType(13, msgpack.packb(-value - 1)) if value < 0 else value

    lists = [msgpack.ExtType(43, msgpack.packb([item(value) for value in part])) for part in parts]
    return bytes(with_bodies(msgpack.packb(lists), []))


def test_references_to_references_take_no_time() -> None:
    """Opened in each place, forty levels of two would be a million million lists."""
    raw = hostile([0], *([-n, -n] for n in range(1, 40)))
    again = pack_state(unpack_state(raw))
    assert pack_state(unpack_state(again)) == again


def test_references_that_nest_too_deep_are_refused() -> None:
    with pytest.raises(ProtocolError, match="nested more than 64 deep"):
        unpack_state(hostile([0], *([-n] for n in range(1, 80))))


def test_a_reference_to_a_part_that_is_not_complete_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a reference to part 0 of 0"):
        unpack_state(hostile([-1]))
