"""User state as bytes: plain containers, numbers, text and numpy arrays, by msgpack alone.

Nothing that is read here can run code: unknown types are refused by name when written, unknown
tags when read.  Tuples stay tuples; arrays come back writable, in native byte order.
"""

from typing import Any

import msgpack
import numpy as np

from ftcomm.collectives.dtypes import dtype_code, dtype_of
from ftcomm.errors import ProtocolError

_ARRAY, _TUPLE, _BIG_INT, _SCALAR = 1, 2, 3, 4
_LEAVES = (bool, int, float, str, bytes, np.ndarray, np.generic)
_USUAL_LEAVES = frozenset((bool, int, float, str, bytes, type(None), np.ndarray))
MAX_DEPTH = 64  # nesting of a state; deeper is a cycle or a mistake


def pack_state(state: Any, name: str = "state") -> bytes:
    """A copy of `state` as bytes; the same content in the same order gives the same bytes.

    Args:
        state: nested dict, list, tuple of numpy arrays, numbers, str, bytes, bool, None.
        name: what messages call it.

    Raises:
        TypeError: something else is in it; the message says where.
    """
    return bytes(msgpack.packb(_plain(state, name, 0), use_bin_type=True))


def unpack_state(raw: bytes) -> Any:
    """The inverse of `pack_state`; every call gives its own writable copy.

    Raises:
        ProtocolError: the bytes are no packed state.
    """
    try:
        state = _Reader().read(raw)
        _must_be_plain(state, 0)
        return state
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise ProtocolError(f"damaged checkpoint: {error}") from error


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


def _must_be_plain(value: Any, depth: int) -> None:
    """See that `pack_state` could have written `value`.

    Raises:
        ValueError, TypeError: msgpack knows more than states may hold, such as timestamps.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict):
        for key, item in value.items():
            checked_key(key, "it")
            _must_be_plain(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        # Most long ones hold nothing else, and to look at each costs more than to read it did.
        if depth < MAX_DEPTH and _USUAL_LEAVES.issuperset(map(type, value)):
            return
        for item in value:
            _must_be_plain(item, depth + 1)
    elif not (value is None or isinstance(value, _LEAVES)):
        raise TypeError(f"it holds a {type(value).__name__}")


def _limits(size: int) -> dict[str, int]:
    """No length inside may exceed the bytes that are there."""
    names = ("max_str_len", "max_bin_len", "max_array_len", "max_map_len", "max_ext_len")
    return dict.fromkeys(names, size)


def _plain(value: Any, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise TypeError(f"{where} is nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, (bool, float, str, bytes)):
        return value
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, np.generic):
        return msgpack.ExtType(_SCALAR, _array_bytes(np.asarray(value), where))
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(_ARRAY, _array_bytes(value, where))
    if isinstance(value, dict):
        return {
            checked_key(key, where): _plain(item, f"{where}[{key!r}]", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        items = [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
        if isinstance(value, list):
            return items
        return msgpack.ExtType(_TUPLE, msgpack.packb(items, use_bin_type=True))
    raise TypeError(
        f"{where} is a {type(value).__name__}; it may be or hold dict, list, tuple, numpy arrays, "
        "numbers, str, bytes, bool and None"
    )


def _integer(value: int) -> Any:
    if -(2**63) <= value < 2**64:
        return value
    return msgpack.ExtType(_BIG_INT, str(value).encode())


def checked_key(key: Any, where: str) -> Any:
    """A dict's key as it is.

    Raises:
        TypeError: it is no str, bytes, bool, None or int of 64 bits.
    """
    if isinstance(key, (str, bytes, bool)) or key is None:
        return key
    if isinstance(key, int) and -(2**63) <= key < 2**64:
        return key
    kind = type(key).__name__
    raise TypeError(f"{where} has a key of type {kind}; use str, bytes or int of 64 bits")


def checked_code(array: np.ndarray[Any, Any], where: str) -> int:
    """The code of an array's dtype.

    Raises:
        TypeError: states do not hold that.
    """
    try:
        return dtype_code(array.dtype)
    except TypeError as error:
        raise TypeError(f"{where}: {error}") from None


def _array_bytes(array: np.ndarray[Any, Any], where: str) -> bytes:
    code = checked_code(array, where)
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    head = msgpack.packb([code, list(array.shape)])
    return b"".join((len(head).to_bytes(2, "big"), head, native.tobytes()))


class _Reader:
    """Reads one state; counts how deep tuples are nested, each of which is packed by itself."""

    def __init__(self) -> None:
        self._depth = 0

    def read(self, raw: bytes) -> Any:
        """The value in `raw`.

        Raises:
            ValueError, TypeError, OverflowError, msgpack.UnpackException: it is damaged.
        """
        if self._depth > MAX_DEPTH:  # each level takes some 40 KiB of the thread's stack
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

    def _restore(self, code: int, data: bytes) -> Any:
        if code == _TUPLE:
            return tuple(self.read(data))
        if code == _BIG_INT:
            return int(data.decode("ascii"))
        if code in (_ARRAY, _SCALAR):
            array = _array(data)
            return array if code == _ARRAY else array[()]
        raise ValueError(f"unknown type {code}")


def _array(data: bytes) -> np.ndarray[Any, Any]:
    length = int.from_bytes(data[:2], "big")
    head = data[2 : 2 + length]
    _must_be_whole(head)
    code, shape = msgpack.unpackb(head)
    flat = np.frombuffer(data, dtype_of(code), offset=2 + length)
    return flat.reshape(shape).copy()
