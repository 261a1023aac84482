"""User state survives the trip as it was, and hostile bytes give one typed error."""

import contextlib
import enum
import tracemalloc
from collections import Counter, OrderedDict, defaultdict
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ftcomm
from ftcomm.errors import ProtocolError
from ftcomm.protocol.signature import DTYPE_NAMES
from ftcomm.state.identity import MAX_DEPTH
from ftcomm.state.layout import with_bodies
from ftcomm.state.lazy import LazyState
from ftcomm.state.registered_types import FACTORIES, Converted
from ftcomm.state.serializer import LONG_BYTES, pack_state, unpack_state

KEYS = st.text(max_size=5) | st.integers(-(2**63), 2**64 - 1) | st.booleans()
NUMBERS = st.booleans() | st.integers() | st.floats() | st.complex_numbers()
LEAVES = st.none() | NUMBERS | st.text() | st.binary()
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
DTYPES = st.sampled_from(
    [name for name in DTYPE_NAMES.values() if name not in ("none", "bfloat16")]
)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    shape, dtype = draw(SHAPES), np.dtype(draw(DTYPES))
    nbytes = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = draw(st.binary(min_size=nbytes, max_size=nbytes))
    if dtype == np.bool_:
        raw = bytes(byte & 1 for byte in raw)
    return np.frombuffer(raw, dtype).reshape(shape)


@st.composite
def scalars(draw: st.DrawFn) -> Any:
    return draw(arrays().filter(lambda array: array.size > 0)).reshape(-1)[0]


class Point(NamedTuple):
    x: Any
    y: Any


class Phase(enum.IntEnum):
    WARM_UP = 1
    TRAIN = 2


ftcomm.register(Point, tuple, Point._make)
ftcomm.register(Phase, int, Phase)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=3)
    dicts = st.dictionaries(KEYS, inner, max_size=3)
    factories = st.sampled_from(FACTORIES)
    return (
        lists
        | lists.map(tuple)
        | dicts
        | dicts.map(OrderedDict)
        | st.builds(defaultdict, factories, dicts)
        | st.builds(Point, inner, inner)
    )


STATES = st.recursive(
    LEAVES | arrays() | scalars() | st.sampled_from(Phase), containers, max_leaves=8
)


def described(state: Any) -> Any:
    """A form of `state` that compares types, bits and shapes, NaN and -0.0 included."""
    if isinstance(state, np.ndarray | np.generic):
        array = np.asarray(state)
        return type(state).__name__, array.dtype.str, array.shape, array.tobytes()
    if isinstance(state, dict):
        kind = type(state).__name__, getattr(state, "default_factory", None)
        return kind, [(key, described(value)) for key, value in state.items()]
    if isinstance(state, list | tuple):
        return type(state).__name__, [described(item) for item in state]
    return type(state).__name__, repr(state)


@given(STATES)
def test_what_comes_back_is_what_went_in(state: Any) -> None:
    assert described(unpack_state(pack_state(state))) == described(state)


@given(STATES)
def test_the_bytes_of_what_comes_back_are_the_same(state: Any) -> None:
    raw = pack_state(state)
    assert pack_state(unpack_state(raw)) == raw


@given(STATES)
def test_a_lazy_state_gives_the_same_bytes(state: Any) -> None:
    assert LazyState(state).raw() == pack_state(state)


def test_a_lazy_state_takes_registered_values_as_they_are_now() -> None:
    class Mutable:
        weight = 1.0

    ftcomm.register(Mutable, lambda it: it.weight, lambda weight: Mutable())
    value = Mutable()
    before = pack_state([value])
    lazy = LazyState([value])
    value.weight = 2.0
    assert lazy.raw() == before


def test_a_type_that_is_not_registered_here_is_named() -> None:
    raw = pack_state([Converted("train.Point", [1, 2])])
    with pytest.raises(ProtocolError, match=r"holds the type train.Point.*ftcomm.register\(\)"):
        unpack_state(raw)


def test_what_from_state_raises_reaches_the_user() -> None:
    class Picky:
        pass

    def refuse(content: Any) -> Picky:
        raise ValueError("no such file")

    ftcomm.register(Picky, lambda it: None, refuse)
    with pytest.raises(ValueError, match="no such file") as raised:
        unpack_state(pack_state(Picky()))
    assert "from_state" in raised.value.__notes__[0]
    ftcomm.register(Picky, lambda it: None, lambda content: content)
    with pytest.raises(TypeError, match="it returned None"):
        unpack_state(pack_state(Picky()))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((dict, dict, dict), ValueError, "types of builtins are not registered"),
        ((np.float64, float, np.float64), ValueError, "types of numpy"),
        ((3, int, int), TypeError, "takes a class, got 3"),
        ((Phase, None, Phase), TypeError, "to_state must be a function"),
        ((type("x" * 256, (), {}), str, str), ValueError, "more than 255 characters"),
    ],
)
def test_what_cannot_be_registered_is_said(arguments: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        ftcomm.register(*arguments)


def test_every_reader_gets_its_own_writable_arrays() -> None:
    raw = pack_state({"w": np.zeros(3)})
    first, second = unpack_state(raw), unpack_state(raw)
    first["w"] += 1
    assert (first["w"].tolist(), second["w"].tolist()) == ([1, 1, 1], [0, 0, 0])


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (0, 2, 3), (1, 5), (5, 1), (3,), ()])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back_in_the_order_that_they_had(
    order: Any, shape: tuple[int, ...], copy: bool
) -> None:
    array = np.zeros(shape, ">f4", order)
    array[...] = np.arange(array.size).reshape(shape)
    back = unpack_state(pack_state({"w": array}), copy=copy)["w"]
    assert described(back) == described(array.astype("=f4"))
    for flag in ("c_contiguous", "f_contiguous"):
        assert getattr(back.flags, flag) == getattr(array.flags, flag)
    assert back.flags.writeable == copy


def test_foreign_byte_order_and_strides_become_plain_arrays() -> None:
    array = np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]
    back = unpack_state(pack_state(array))
    assert described(back) == described(np.ascontiguousarray(array.astype("=i4")))


class Other:
    """Something that no state may hold."""


class Coordinates(NamedTuple):
    x: float
    y: float


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": [1, Other()]}, r"state\['a'\]\[1\] is an Other"),
        ({1.5: 0}, "state has a key of type float"),
        ({2**64: 0}, "use str, bytes or int of 64 bits"),
        ([np.zeros(2, object)], r"state\[0\] has dtype object, .* pass its tolist"),
        ({"x": {1, 2}}, r"state\['x'\] is a set: pass sorted\(\) of it"),
        ({"x": Coordinates(1, 2)}, r"ftcomm.register\(Coordinates, tuple, Coordinates._make\)"),
        ([Counter("ab")], r"state\[0\] is a Counter: pass dict\(\) of it"),
        ([Colour.RED], r"state\[0\] is a Colour: pass int\(\) of it"),
        ({Colour.RED: 1}, "state has a key of type Colour"),
        ([defaultdict(Other)], r"state\[0\] is a defaultdict of .*pass dict\(\) of it"),
        ([np.ma.masked_array([1], [True])], r"state\[0\] is a MaskedArray: pass its .filled"),
        ([np.zeros(1).view(np.recarray)], r"state\[0\] is a recarray: pass numpy.asarray"),
        ([bytearray(b"x")], r"state\[0\] is a bytearray: pass bytes"),
        ([len], r"state\[0\] is the function len: functions and classes"),
        ([np.str_("a")], r"state\[0\] has dtype <U1, .* pass its tolist"),
        ([np.zeros(2, "M8[s]")], r"state\[0\] has dtype datetime64.* pass its view"),
        ([np.zeros(2, "f4,i4")], r"state\[0\] has dtype .* pass its fields, each an array"),
        ([10**5000], r"state\[0\] is an int of 16610 bits, .*pass its int.to_bytes"),
        (("a\udc80",), r"state\[0\] is a str .* surrogate at index 1; pass os.fsencode"),
        ([{"\udc80": 1}], r"a key of state\[0\] is a str .* surrogate at index 0"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_place(state: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        pack_state(state)


@given(st.binary(max_size=64))
def test_any_bytes_give_a_state_or_a_protocol_error(raw: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        unpack_state(raw)


@given(STATES, st.data())
def test_a_damaged_state_gives_a_state_or_a_protocol_error(state: Any, data: st.DataObject) -> None:
    raw = bytearray(pack_state(state))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        unpack_state(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


HEADS = st.recursive(
    st.integers(-(2**63), 2**64 - 1) | st.none() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*range(1, 15), *range(33, 45)]), HEADS, st.binary(max_size=40))
def test_a_hostile_array_head_gives_a_state_or_a_protocol_error(
    code: int, head: Any, body: bytes
) -> None:
    announced = msgpack.packb(msgpack.ExtType(code, msgpack.packb(head)))
    with contextlib.suppress(ProtocolError):
        unpack_state(with_bodies(announced, [np.frombuffer(body, np.uint8)]))


def announced(code: int, head: Any, nbytes: int) -> bytes:
    """A state of one part of type `code`, of which so many bytes follow."""
    text = msgpack.packb(msgpack.ExtType(code, msgpack.packb(head)))
    return bytes(with_bodies(text, [np.zeros(nbytes, np.uint8)]))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "0 bytes are no state"),
        ((1 << 60).to_bytes(8, "little"), "1152921504606846976 bytes announced, 0 there"),
        (announced(1, [11, [3]], 8), "12 bytes announced, 8 there"),
        (announced(1, [11, [1 << 62, 1 << 62]], 8), "bytes announced, 8 there"),
        (announced(1, [11, [2]], 9), "1 bytes too many"),
        (announced(1, [11, [-2, -1]], 8), "an array of shape"),
        (announced(1, [99, [2]], 8), "no dtype has the wire code 99"),
        (announced(5, 1 << 40, 8), "1099511627776 bytes announced, 8 there"),
        (bytes(pack_state(np.float32(1)))[:-1], "bytes announced"),
        (announced(13, 0, 0), "a reference to part 0 of 0"),
        (announced(13, -1, 0), "a reference to part -1 of 0"),
        (announced(13, "a", 0), "a reference to part a of 0"),
        (announced(34, [], 0), "unknown type 34"),
        (announced(45, 0, 0), "unknown type 45"),
        (announced(43, {}, 0), "a list that is none"),
        (announced(44, [], 0), "a dict that is none"),
    ],
)
def test_a_part_that_is_not_as_announced_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        unpack_state(raw)


def test_large_parts_follow_the_head_where_any_element_may_lie() -> None:
    pickled = bytes(range(256)) * (LONG_BYTES // 256)
    state = {"a": np.array([7, 77, 78], np.int8), "p": pickled, "b": (np.arange(2.0), pickled[1:])}
    raw = pack_state(state)
    for part in (state["a"], pickled, state["b"][0]):
        assert bytes(raw).index(bytes(memoryview(part).cast("B"))) % 64 == 0
    assert described(unpack_state(raw)) == described(state)
    with pytest.raises(TypeError, match="read-only"):
        np.frombuffer(raw, np.uint8).data[0] = 1


def test_an_array_is_copied_once() -> None:
    """As bytes and again into the message it would take three times as much, and longer."""
    state = [np.ones(1 << 20), (np.ones((1024, 1024)).T,)]
    nbytes = 2 * (8 << 20)
    tracemalloc.start()
    try:
        raw = pack_state(state)
        _, packing = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        back = unpack_state(raw)
        _, both = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert packing < nbytes * 1.1
    assert both < 2 * nbytes * 1.1
    assert described(back) == described(state)


def nested_tuples(depth: int) -> bytes:
    raw = msgpack.packb([])
    for _ in range(depth):
        raw = msgpack.packb(msgpack.ExtType(2, raw))
    return bytes(with_bodies(raw, []))


def test_tuples_nested_without_end_are_refused_before_the_stack_is_used_up() -> None:
    with pytest.raises(ProtocolError, match="nested"):
        unpack_state(nested_tuples(5000))


def test_tuples_nested_as_deep_as_may_be_written_can_be_read() -> None:
    state: Any = ()
    for _ in range(MAX_DEPTH):
        state = (state,)
    assert unpack_state(pack_state(state)) == state
    with pytest.raises(TypeError, match="nested more than"):
        pack_state((state,))
