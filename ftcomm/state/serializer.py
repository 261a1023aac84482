"""User state as bytes: plain containers, numbers, text and numpy arrays.

A head by msgpack says what there is; arrays and long strings of bytes follow it as they are (see
`bodies`).  Nothing that is read here can run code: unknown types are refused by name when written,
unknown tags when read.  Every value comes back with the type that it had, or is refused; arrays
come back writable, in native byte order, and in C or Fortran order as they were, since numpy may
round the sums of these differently.  A mutable part that occurs more than once is written once and
comes back as one object: see `identity`.  Types of users are those that they have registered: see
`registered_types`.
"""

import math
import struct
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Hashable
from typing import Any

import msgpack
import numpy as np

from ftcomm.collectives.dtypes import AnyDtype, dtype_code, dtype_of
from ftcomm.config.plurals import kind_of
from ftcomm.errors import ProtocolError
from ftcomm.state.identity import MAX_DEPTH, SharedParts
from ftcomm.state.layout import Array, Bodies, Packed, with_bodies
from ftcomm.state.registered_types import (
    FACTORIES,
    MAX_NAME,
    is_registered,
    refusal,
    registered,
)

_ARRAY, _TUPLE, _BIG_INT, _SCALAR, _LONG_BYTES = 1, 2, 3, 4, 5
_COMPLEX, _ORDERED_DICT, _DEFAULT_DICT, _REGISTERED, _FORTRAN_ARRAY = 6, 7, 8, 9, 10
_LIST, _DICT, _REFERENCE = 11, 12, 13
_SHARED = 32  # is added where a part occurs again, as a reference to it
_COMPLEX_BYTES = struct.Struct("<dd")
LONG_BYTES = 1 << 16  # from here on a string of bytes is a body
_LEAVES = (bool, int, float, complex, str, bytes, np.ndarray, np.generic)
_USUAL_LEAVES = frozenset((bool, int, float, complex, str, bytes, type(None), np.ndarray))
_AS_THEY_ARE = frozenset((bool, float, type(None)))  # msgpack's own
_NATIVE: dict[int, type] = {_LIST: list, _DICT: dict}  # msgpack's own, where they are shared
# What may be shared: what has an identity.
_MUTABLE = (_ARRAY, _FORTRAN_ARRAY, _LIST, _DICT, _ORDERED_DICT, _DEFAULT_DICT, _REGISTERED)
# What to pass in place of an array, by the kind of its dtype: text, bytes, objects, times, structs.
_INSTEAD = {
    **dict.fromkeys("USO", "tolist()"),
    **dict.fromkeys("Mm", "view(np.int64)"),
    "V": "fields, each an array",
}


def pack_state(state: Any, name: str = "state") -> Packed:
    """A copy of `state` as bytes; the same content in the same order gives the same bytes.

    Other threads go on while large arrays are copied.

    Args:
        state: nested dict, OrderedDict, defaultdict, list, tuple of numpy arrays, numbers, str,
            bytes, bool, None, and of types that are registered.
        name: what messages call it.

    Raises:
        TypeError: something else is in it, or it contains itself; the message says where.
    """
    writer = _HeadWriter(state)
    head = bytes(msgpack.packb(writer.plain(state, name, 0), use_bin_type=True))
    return with_bodies(head, writer.bodies)


def unpack_state(raw: Packed, *, copy: bool = True) -> Any:
    """The inverse of `pack_state`; every call gives its own writable copy.

    Parts that were one object are one again.

    Args:
        raw: as `pack_state` made it.
        copy: False: arrays are views of `raw`, read-only unless that can be written to.

    Raises:
        ProtocolError: the bytes are no packed state, or hold a type that is not registered here.
        Exception: what the `from_state` of a registered type raised.
    """
    try:
        bodies = Bodies(raw)
        reader = _HeadReader(bodies, copy=copy)
        state = reader.read(bodies.head)
        bodies.must_be_over()
        reader.check(state, 0)
        return state
    except _FromStateFailed as failed:
        raise failed.error from None
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise ProtocolError(f"damaged checkpoint: {error}") from error


class _FromStateFailed(Exception):  # noqa: N818 - carries a user's error past our own handlers
    """A registered type's `from_state` raised `error`; the bytes are not to blame."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _must_be_whole(raw: bytes) -> None:
    """Walk over `raw` and build nothing.

    A decoder makes room for as many items as a header announces: nested headers that announce
    what never comes cost five hundred times their own size.  Skipping costs nothing.

    Raises:
        ValueError, msgpack.UnpackException: it does not hold what its headers announce.
    """
    walker = msgpack.Unpacker(max_buffer_size=max(len(raw), 1), **_limits(len(raw)))
    walker.feed(raw)
    walker.skip()


def _limits(size: int) -> dict[str, int]:
    """No length inside may exceed the bytes that are there."""
    names = ("max_str_len", "max_bin_len", "max_array_len", "max_map_len", "max_ext_len")
    return dict.fromkeys(names, size)


class _HeadWriter:
    """Makes one state's head."""

    def __init__(self, state: Any) -> None:
        self.bodies: list[Array] = []  # what has to follow it
        self._parts = SharedParts(state)
        self._number = 0  # of the next shared part

    def plain(self, value: Any, where: str, depth: int) -> Any:
        """`value` as msgpack takes it; raises TypeError."""
        if depth > MAX_DEPTH:
            raise TypeError(f"{where} is nested more than {MAX_DEPTH} deep")
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        if kind is str:
            return checked_text(value, where)
        if kind is int:
            return checked_integer(value, where)
        if kind is bytes:
            return self._long_bytes(value) if len(value) >= LONG_BYTES else value
        key = self._parts.key(value)
        if key is None:
            return self._part(value, where, depth)
        return self._shared(key, value, where, depth)

    def _shared(self, key: Hashable, value: Any, where: str, depth: int) -> msgpack.ExtType:
        """A part that occurs more than once: its content, or a reference to it."""
        reference = self._parts.find(key, where, depth)
        if reference is not None:
            return reference
        part = self._part(value, where, depth)
        if type(part) is not msgpack.ExtType:
            part = _ext(_LIST if type(part) is list else _DICT, part)
        self._parts.keep(key, msgpack.ExtType(_REFERENCE, msgpack.packb(self._number)))
        self._number += 1
        return msgpack.ExtType(part.code + _SHARED, part.data)

    def _part(self, value: Any, where: str, depth: int) -> Any:
        """Content of an array, a container, or a value of another type."""
        kind = type(value)
        if kind is np.ndarray:
            return self._array(value, where)
        if kind is dict:
            return {
                checked_key(key, where): self.plain(item, f"{where}[{key!r}]", depth + 1)
                for key, item in value.items()
            }
        if kind is list:
            return self._items(value, where, depth)
        return self._tagged(value, where, depth)

    def _items(self, value: Any, where: str, depth: int) -> list[Any]:
        return [self.plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]

    def _tagged(self, value: Any, where: str, depth: int) -> msgpack.ExtType:
        """A value of a type that msgpack has no form for."""
        kind = type(value)
        if kind is tuple:
            return _ext(_TUPLE, self._items(value, where, depth))
        if kind is OrderedDict:
            return _ext(_ORDERED_DICT, self._pairs(value, where, depth))
        if kind is defaultdict:
            code = factory_code(value, where)
            return _ext(_DEFAULT_DICT, [code, *self._pairs(value, where, depth)])
        if kind is complex:
            return msgpack.ExtType(_COMPLEX, _COMPLEX_BYTES.pack(value.real, value.imag))
        of_user = self._parts.content(value)
        if of_user is not None:
            content = self.plain(of_user.content, f"{where}.to_state()", depth + 1)
            return _ext(_REGISTERED, [of_user.name, content])
        if isinstance(value, np.generic):
            return msgpack.ExtType(_SCALAR, _scalar_bytes(np.asarray(value), where))
        raise refusal(value, where)

    def _pairs(self, value: Any, where: str, depth: int) -> list[Any]:
        """Keys and values in turn."""
        pairs: list[Any] = []
        for key, item in value.items():
            pairs += checked_key(key, where), self.plain(item, f"{where}[{key!r}]", depth + 1)
        return pairs

    def _array(self, array: Array, where: str) -> msgpack.ExtType:
        code = checked_code(array, where)
        is_fortran = in_fortran_order(array)
        self.bodies.append(array.T if is_fortran else array)
        tag = _FORTRAN_ARRAY if is_fortran else _ARRAY
        return msgpack.ExtType(tag, msgpack.packb([code, list(array.shape)]))

    def _long_bytes(self, value: bytes) -> msgpack.ExtType:
        self.bodies.append(np.frombuffer(value, np.uint8))
        return msgpack.ExtType(_LONG_BYTES, msgpack.packb(len(value)))


def _ext(code: int, items: Any) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb(items, use_bin_type=True))


def factory_code(value: Any, where: str) -> int:
    """Return the index in `FACTORIES` of a defaultdict's factory; raises TypeError."""
    for code, factory in enumerate(FACTORIES):
        if value.default_factory is factory:
            return code
    known = ", ".join(factory.__name__ for factory in FACTORIES if factory is not None)
    raise TypeError(
        f"{where} is a defaultdict of {value.default_factory!r}: states hold those of {known}; "
        "pass dict() of it"
    )


def checked_integer(value: int, where: str) -> Any:
    """An integer as msgpack takes it; raises TypeError."""
    if -(2**63) <= value < 2**64:
        return value
    try:
        return msgpack.ExtType(_BIG_INT, str(value).encode())
    except ValueError:  # the limit of `sys.set_int_max_str_digits`
        raise TypeError(
            f"{where} is an int of {value.bit_length()} bits, which Python does not write in "
            "digits; pass its int.to_bytes()"
        ) from None


def checked_text(value: str, where: str, of: str = "") -> str:
    """A text as it is; `of` precedes its place.

    Raises:
        TypeError: it has no UTF-8, as the name of a file in another encoding.
    """
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise TypeError(
                f"{of}{where} is a str that is no valid Unicode: a lone surrogate at index "
                f"{error.start}; pass os.fsencode() of a file's name, which is bytes"
            ) from None
    return value


def checked_key(key: Any, where: str) -> Any:
    """A dict's key as it is; raises TypeError."""
    kind: Any = type(key)
    if kind is str:
        return checked_text(key, where, "a key of ")
    if kind in (bytes, bool) or key is None:
        return key
    if kind is int and -(2**63) <= key < 2**64:
        return key
    kind = kind.__name__
    raise TypeError(f"{where} has a key of type {kind}; use str, bytes or int of 64 bits")


def checked_code(array: np.ndarray[Any, Any], where: str) -> int:
    """The code of an array's dtype; raises TypeError."""
    try:
        return dtype_code(array.dtype)
    except TypeError:
        dtype = array.dtype
        remedy = _INSTEAD.get(dtype.kind, "astype() of a dtype that states hold")
        raise TypeError(
            f"{where} has dtype {dtype}, which states do not hold: pass its {remedy}"
        ) from None


def _scalar_bytes(scalar: Array, where: str) -> bytes:
    code = checked_code(scalar, where)
    return bytes((code,)) + scalar.astype(scalar.dtype.newbyteorder("=")).tobytes()


class _HeadReader:
    """Reads one state; counts how deep tuples are nested, each of which is packed by itself."""

    def __init__(self, bodies: Bodies, *, copy: bool = True) -> None:
        self._depth = 0
        self._shared: list[Any] = []  # parts to which references may follow
        self._levels: dict[int, int] = {}  # of containers below each of them, by `id`
        self._bodies = bodies
        self._copy = copy

    def read(self, raw: bytes) -> Any:
        """The value in `raw`.

        Raises:
            ValueError, TypeError, OverflowError, msgpack.UnpackException: it is damaged.
        """
        # Each level takes some 40 KiB of the thread's stack; the state itself is one more.
        if self._depth > MAX_DEPTH + 1:
            raise ValueError(f"tuples are nested more than {MAX_DEPTH} deep")
        self._depth += 1
        _must_be_whole(raw)
        try:
            return msgpack.unpackb(
                raw,
                raw=False,
                strict_map_key=False,
                ext_hook=self._restore,
                **_limits(len(raw)),
            )
        finally:
            self._depth -= 1

    def check(self, value: Any, depth: int) -> int:
        """See that `pack_state` could have written `value`; return the levels of containers in it.

        Raises:
            ValueError, TypeError: it is nested too deep, or holds something else.
        """
        if depth > MAX_DEPTH:  # before the stack is used up
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        if id(value) in self._levels or is_registered(value):  # it was looked at when it was made
            return self._levels.get(id(value), 0)
        if isinstance(value, dict):
            for key in value:
                checked_key(key, "it")
            items: Collection[Any] = value.values()
        elif isinstance(value, (list, tuple)):
            items = value
        elif value is None or isinstance(value, _LEAVES):
            return 0
        else:
            raise TypeError(f"it holds {kind_of(value)}")
        levels = 1 if items else 0
        for item in [item for item in items if type(item) not in _USUAL_LEAVES]:
            levels = max(levels, 1 + self.check(item, depth + 1))
        if depth + levels > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        return levels

    def _restore(self, code: int, data: bytes) -> Any:
        if code == _REFERENCE:
            return self._referred(data)
        if code < _SHARED:
            return self._value(code, data)
        if code - _SHARED not in _MUTABLE:
            raise ValueError(f"unknown type {code}")
        value = self._value(code - _SHARED, data)
        self._levels[id(value)] = self.check(value, self._depth)
        self._shared.append(value)
        return value

    def _referred(self, data: bytes) -> Any:
        number = _unpacked(data)
        if type(number) is not int or not 0 <= number < len(self._shared):
            raise ValueError(f"a reference to part {number} of {len(self._shared)}")
        return self._shared[number]

    def _value(self, code: int, data: bytes) -> Any:
        if code in _NATIVE:
            return self._native(code, data)
        if code == _TUPLE:
            return tuple(self._list(data))
        if code == _ORDERED_DICT:
            return OrderedDict(_in_pairs(self._list(data)))
        if code == _DEFAULT_DICT:
            return _default_dict(self._list(data))
        if code == _COMPLEX:
            return _complex(data)
        if code == _REGISTERED:
            return self._registered(self._list(data))
        if code == _BIG_INT:
            return int(data.decode("ascii"))
        if code == _SCALAR:
            return _scalar(data)
        if code == _ARRAY:
            dtype, shape = _dtype_and_shape(data)
            return self._array(dtype, shape)
        if code == _FORTRAN_ARRAY:
            dtype, shape = _dtype_and_shape(data)
            return self._array(dtype, shape[::-1]).T
        if code == _LONG_BYTES:
            return self._bodies.take(_unpacked(data)).tobytes()
        raise ValueError(f"unknown type {code}")

    def _list(self, data: bytes) -> list[Any]:
        items = self.read(data)
        if type(items) is not list:
            raise ValueError("a container that holds no list")
        return items

    def _native(self, code: int, data: bytes) -> Any:
        value = self.read(data)
        if type(value) is not _NATIVE[code]:
            raise ValueError(f"a {_NATIVE[code].__name__} that is none")
        return value

    def _registered(self, items: list[Any]) -> Any:
        """A value of a user's type; only what this process has registered is ever called."""
        name, content = items
        if type(name) is not str or not name.isprintable() or len(name) > MAX_NAME:
            raise ValueError("a registered type without a name")
        entry = registered(name)
        if entry is None:
            raise ProtocolError(
                f"the state holds the type {name}, which this process has not registered",
                remedy="call ftcomm.register() for it on every rank, before load_checkpoint()",
            )
        self.check(content, self._depth)
        try:
            value = entry.from_state(content)
            if type(value) is not entry.kind:
                raise TypeError(f"it returned {kind_of(value)}")  # noqa: TRY301 - one path out
        except Exception as error:
            error.add_note(f"raised by from_state, registered for {name}")
            raise _FromStateFailed(error) from error
        return value

    def _array(self, dtype: AnyDtype, shape: list[int]) -> Array:
        body = self._bodies.take(math.prod(shape) * dtype.itemsize)
        if not self._copy:
            return body.view(dtype).reshape(shape)
        array = np.empty(shape, dtype)
        array.reshape(-1).view(np.uint8)[:] = body
        return array


def in_fortran_order(array: Array) -> bool:
    """True if the elements of `array` lie in Fortran order, and not in C order too."""
    return array.flags.fnc


def _dtype_and_shape(data: bytes) -> tuple[AnyDtype, list[int]]:
    code, shape = _unpacked(data)
    if type(shape) is not list or any(extent < 0 for extent in shape):
        raise ValueError(f"an array of shape {shape}")
    return dtype_of(code), shape


def _in_pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    if len(items) % 2:
        raise ValueError("a dict with a key and no value")
    return list(zip(items[::2], items[1::2], strict=True))


def _default_dict(items: list[Any]) -> defaultdict[Any, Any]:
    if not items or type(items[0]) is not int or not 0 <= items[0] < len(FACTORIES):
        raise ValueError("a defaultdict of an unknown factory")
    return defaultdict(FACTORIES[items[0]], _in_pairs(items[1:]))


def _complex(data: bytes) -> complex:
    if len(data) != _COMPLEX_BYTES.size:
        raise ValueError(f"a complex number in {len(data)} bytes")
    return complex(*_COMPLEX_BYTES.unpack(data))


def _scalar(data: bytes) -> Any:
    if not data:
        raise ValueError("a number of no type")
    dtype = dtype_of(data[0])
    if len(data) != 1 + dtype.itemsize:
        raise ValueError(f"a number of {dtype.name} in {len(data) - 1} bytes")
    return np.frombuffer(data, dtype, offset=1)[0]


def _unpacked(data: bytes) -> Any:
    _must_be_whole(data)
    return msgpack.unpackb(data)
