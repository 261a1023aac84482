"""A packed state as a tree, without numpy and without a user's types.

`ftcomm.state.serializer` documents the bytes.  Arrays stay where they are: the tree says their
dtype, shape and place.  Types that a user registered appear by their names.
"""

import math
import struct
from dataclasses import dataclass
from typing import Any

import msgpack

from ftcomm.config.plurals import kind_of
from ftcomm.durable.store import Buffer, DamagedObjectError
from ftcomm.protocol.signature import DTYPE_NAMES

MAX_DEPTH = 64  # of nested containers, as in `ftcomm.state.serializer`
ALIGNMENT = 64  # bytes, as in `ftcomm.state.layout`
ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "bfloat16": 2,
}
FACTORIES = ("None", "int", "float", "complex", "str", "bytes", "bool", "list", "dict", "tuple")
_REFERENCE = 13
_SHARED = 32  # is added to the code of a part that occurs again
_MUTABLE = (1, 7, 8, 9, 10, 11, 12)
_LENGTH = struct.Struct("<Q")
_COMPLEX = struct.Struct("<dd")


@dataclass(frozen=True, slots=True)
class ArrayNode:
    """An array, or with ``is_scalar`` a number of its dtype.

    ``content`` is its raw bytes, in C order, or with ``is_fortran`` in Fortran order.
    """

    dtype: str
    shape: tuple[int, ...]
    content: memoryview
    is_scalar: bool = False
    is_fortran: bool = False


@dataclass(frozen=True, slots=True)
class BytesNode:
    """A long string of bytes."""

    content: memoryview


@dataclass(frozen=True, slots=True)
class TaggedNode:
    """A value that msgpack has no form for: its kind, and what it is made of.

    ``kind`` is ``tuple`` (a list), ``ordered_dict`` (keys and values in turn), ``default_dict``
    (the factory's name, then keys and values in turn), ``complex`` (two numbers), ``registered``
    (the type's name and its content), ``shared`` (a number and a part) or ``reference`` (the number
    of a shared part that came before).  An array that is shared is one `ArrayNode` in all places.
    """

    kind: str
    items: list[Any]


_LEAVES = (bool, int, float, str, bytes, ArrayNode, BytesNode)


def read_packed_state(raw: Buffer, what: str) -> Any:
    """The tree of a packed state: dicts, lists, plain values, and the nodes above.

    Nodes are views of `raw`; `what` names the state in errors.

    Raises:
        DamagedObjectError: the bytes are no packed state.
    """
    try:
        tree = _Reader(memoryview(raw).cast("B")).whole()
        _must_be_known(tree, 0)
        return tree
    except (
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
        msgpack.UnpackException,
        struct.error,
    ) as error:
        raise DamagedObjectError(f"{what} is no packed state: {str(error)[:200]}") from None


def _must_be_known(value: Any, depth: int) -> None:
    """See that a tree has nothing but what `read_packed_state` promises.

    Raises:
        ValueError, TypeError: msgpack knows more, such as timestamps.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    if isinstance(value, TaggedNode):
        for item in value.items:
            _must_be_known(item, depth + (value.kind != "shared"))
    elif isinstance(value, list):
        for item in value:
            _must_be_known(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not (key is None or isinstance(key, (str, bytes, bool, int))):
                raise TypeError(f"it has a key of type {type(key).__name__}")
            _must_be_known(item, depth + 1)
    elif not (value is None or isinstance(value, _LEAVES)):
        raise TypeError(f"it holds {kind_of(value)}")


class _Reader:
    def __init__(self, raw: memoryview) -> None:
        self._raw = raw
        self._end = 0
        self._depth = 0
        self._shared: list[Any] = []

    def whole(self) -> Any:
        (length,) = _LENGTH.unpack(self._taken(0, _LENGTH.size))
        tree = self._read(bytes(self._taken(self._end, length)))
        if self._end != len(self._raw):
            raise ValueError(f"{len(self._raw) - self._end} bytes too many")
        return tree

    def _taken(self, start: int, nbytes: int) -> memoryview:
        if not 0 <= nbytes <= len(self._raw) - start:
            raise ValueError(f"{nbytes} bytes announced, {len(self._raw) - start} there")
        self._end = start + nbytes
        return self._raw[start : self._end]

    def _body(self, nbytes: int) -> memoryview:
        return self._taken(-(-self._end // ALIGNMENT) * ALIGNMENT, nbytes)

    def _read(self, data: bytes) -> Any:
        if self._depth > MAX_DEPTH + 1:  # the state itself is one more
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        self._depth += 1
        # Headers may announce more than there is, and cost room for it: skipping costs nothing.
        walker = msgpack.Unpacker(max_buffer_size=max(len(data), 1), **_limits(len(data)))
        walker.feed(data)
        walker.skip()
        try:
            return msgpack.unpackb(
                data,
                raw=False,
                strict_map_key=False,
                ext_hook=self._extension,
                **_limits(len(data)),
            )
        finally:
            self._depth -= 1

    def _extension(self, code: int, data: bytes) -> Any:
        if code == _REFERENCE:
            return self._referred(self._read(data))
        if code < _SHARED:
            return self._part(code, data)
        if code - _SHARED not in _MUTABLE:
            raise ValueError(f"unknown type {code}")
        part = self._part(code - _SHARED, data)
        self._shared.append(part)
        if isinstance(part, ArrayNode):
            return part
        return TaggedNode("shared", [len(self._shared) - 1, part])

    def _referred(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self._shared):
            raise ValueError(f"a reference to part {number} of {len(self._shared)}")
        part = self._shared[number]
        return part if isinstance(part, ArrayNode) else TaggedNode("reference", [number])

    def _part(self, code: int, data: bytes) -> Any:
        match code:
            case 1 | 10:
                dtype, shape = self._read(data)
                return self._array(dtype, tuple(shape), is_fortran=code == 10)
            case 2:
                return TaggedNode("tuple", self._items(data))
            case 3:
                return int(data.decode("ascii"))
            case 4:
                dtype = DTYPE_NAMES[data[0]]
                if len(data) - 1 != ITEM_BYTES[dtype]:
                    raise ValueError(f"a number of {dtype} in {len(data) - 1} bytes")
                return ArrayNode(dtype, (), memoryview(data)[1:], is_scalar=True)
            case 5:
                return BytesNode(self._body(self._read(data)))
            case 6:
                return TaggedNode("complex", list(_COMPLEX.unpack(data)))
            case 7:
                return TaggedNode("ordered_dict", _in_pairs(self._items(data)))
            case 8:
                return _default_dict(self._items(data))
            case 9:
                return _registered(self._items(data))
            case 11 | 12:
                return self._native(code, data)
            case _:
                raise ValueError(f"unknown type {code}")

    def _items(self, data: bytes) -> list[Any]:
        items = self._read(data)
        if not isinstance(items, list):
            raise TypeError("a container that holds no list")
        return items

    def _native(self, code: int, data: bytes) -> Any:
        part = self._read(data)
        if not isinstance(part, list if code == 11 else dict):
            raise TypeError("a list or dict that is none")
        return part

    def _array(self, code: int, shape: tuple[int, ...], *, is_fortran: bool) -> ArrayNode:
        dtype = DTYPE_NAMES.get(code, "none")
        if dtype not in ITEM_BYTES or any(extent < 0 for extent in shape):
            raise ValueError(f"an array of dtype {code} and shape {shape}")
        content = self._body(math.prod(shape) * ITEM_BYTES[dtype])
        return ArrayNode(dtype, shape, content, is_fortran=is_fortran)


def _default_dict(items: list[Any]) -> TaggedNode:
    factory, *rest = items
    if type(factory) is not int or not 0 <= factory < len(FACTORIES):
        raise ValueError("a defaultdict of an unknown factory")
    return TaggedNode("default_dict", [FACTORIES[factory], *_in_pairs(rest)])


def _registered(items: list[Any]) -> TaggedNode:
    name, content = items
    if type(name) is not str:
        raise ValueError("a registered type without a name")
    return TaggedNode("registered", [name, content])


def _in_pairs(items: list[Any]) -> list[Any]:
    if len(items) % 2:
        raise ValueError("a dict with a key and no value")
    return items


def _limits(size: int) -> dict[str, int]:
    """No length inside may exceed the bytes that are there."""
    names = ("max_str_len", "max_bin_len", "max_array_len", "max_map_len", "max_ext_len")
    return dict.fromkeys(names, size)
