"""Function hash: what tells two Python functions apart, the same on every rank.

The digest is of a function's code and constants, of its defaults and closure values, and of the
functions that it calls by a global name, likewise.  Bytecode changes with Python's minor version,
so hashes are compared within one version only.

Other globals count by value where nothing can change them: constants, numpy's numbers and dtypes,
classes and functions of a library, partials of such.  The rest count by name.  A module-level
buffer or counter differs from call to call without being another function.  For the same reason a
variable that the function itself assigns counts by name.
"""

import dis
import functools
import hashlib
import struct
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

HASH_BYTES = 8  # what a signature has room for
MAX_VALUE_BYTES = 1 << 20  # of a closure: it is hashed again in every call, at about 1 GB/s
MAX_DEPTH = 32  # functions and containers inside each other; deeper is a cycle or a mistake
_READS_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
_ASSIGNS = frozenset(("STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_DEREF"))
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(...))
# Nor can anything change these; of a module its name.
_FIXED = (types.FunctionType, types.ModuleType, Enum, np.dtype, np.number, np.bool_)


class UnhashableFunctionError(Exception):
    """A function refers to something of which no digest can be made; the text says to what."""


def code_hash(function: Any, needs: str = "") -> int:
    """The hash of a Python function, or of a method or partial of one.

    Raises:
        UnhashableFunctionError: it refers to something that has no digest.
    """
    return _number(_Encoder().encoded(function, "it") + needs.encode())


def name_hash(name: str, needs: str = "") -> int:
    """The hash of a function that goes by a name, whatever its code."""
    return _number(_joined(b"name", name.encode(), needs.encode()))


def _number(raw: bytes) -> int:
    return int.from_bytes(hashlib.sha256(raw).digest()[:HASH_BYTES], "little")


def _joined(tag: bytes, *parts: bytes) -> bytes:
    """Parts with their lengths, so that no two lists of parts look alike."""
    lengths = struct.pack(f"<{len(parts) + 1}Q", len(parts), *map(len, parts))
    return b"".join((tag, b":", lengths, *parts))


class _Encoder:
    """Encodes one function and what it refers to."""

    def __init__(self, depth: int = 0) -> None:
        self._functions: dict[int, int] = {}  # by identity: their number, for those that recur
        self._depth = depth
        self._nbytes = 0

    def encoded(self, value: Any, where: str) -> bytes:
        """Bytes that stand for `value`, which messages call `where`."""
        if type(value) in _CONSTANTS:
            return _constant(value)
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                raise UnhashableFunctionError(f"{where} is nested more than {MAX_DEPTH} deep")
            return self._compound(value, where)
        finally:
            self._depth -= 1

    def _compound(self, value: Any, where: str) -> bytes:
        match value:
            case types.FunctionType():
                return self._function(value, where)
            case types.MethodType():
                return self._all(b"method", (value.__func__, value.__self__), where)
            case functools.partial():
                keywords = dict(sorted(value.keywords.items()))  # in no order
                return self._all(b"partial", (value.func, value.args, keywords), where)
            case np.ndarray() | np.generic():
                return self._array(np.asarray(value), where)
            case np.dtype():
                return _joined(b"dtype", _dtype_text(value).encode())
            case types.ModuleType():
                return _joined(b"module", value.__name__.encode())
            case Enum():
                return _joined(b"enum", type(value).__qualname__.encode(), value.name.encode())
        if type(value) in (tuple, list):
            return self._all(type(value).__name__.encode(), value, where)
        if type(value) is dict:
            return self._all(b"dict", [part for item in value.items() for part in item], where)
        if type(value) in (set, frozenset):  # in no order
            items = (_Encoder(self._depth).encoded(item, where) for item in value)
            return _joined(b"set", *sorted(items))
        name = _global_name(value)
        if name is None:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise UnhashableFunctionError(f"{where} is an object of type {kind}")
        return _joined(b"global", name.encode())

    def _all(self, tag: bytes, values: Iterable[Any], where: str) -> bytes:
        return _joined(tag, *(self.encoded(value, where) for value in values))

    def _array(self, array: np.ndarray[Any, Any], where: str) -> bytes:
        self._nbytes += array.nbytes
        if array.dtype.hasobject:
            raise UnhashableFunctionError(f"{where} is an array of Python objects")
        if self._nbytes > MAX_VALUE_BYTES:
            raise UnhashableFunctionError(
                f"{where} and what comes before it have more than {MAX_VALUE_BYTES} bytes"
            )
        shape = repr(array.shape).encode()
        return _joined(b"array", _dtype_text(array.dtype).encode(), shape, array.tobytes())

    def _function(self, function: types.FunctionType, where: str) -> bytes:
        if id(function) in self._functions:  # it calls itself, for example
            return _joined(b"again", b"%d" % self._functions[id(function)])
        self._functions[id(function)] = len(self._functions)
        inside = "" if where == "it" else f" of {where}"
        code = _summary(function.__code__)
        parts = [
            code.digest,
            self.encoded(function.__defaults__, f"a default{inside}"),
            self.encoded(function.__kwdefaults__, f"a default{inside}"),
        ]
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            parts.append(self._cell(name, cell, code, inside))
        parts += (
            self._global(name, function) for name in code.globals if name not in code.assigned
        )
        return _joined(b"function", *parts)

    def _cell(self, name: str, cell: types.CellType, code: "_Code", inside: str) -> bytes:
        if name in code.assigned:
            return _joined(b"assigned", name.encode())
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            return b"empty"
        return self.encoded(value, f"{name}{inside}")

    def _global(self, name: str, function: types.FunctionType) -> bytes:
        if name not in function.__globals__:  # a builtin
            return _joined(b"named", name.encode())
        value = function.__globals__[name]
        if _is_fixed(value):
            return _joined(b"global", name.encode(), self.encoded(value, name))
        return _joined(b"named", name.encode())


def _is_fixed(value: Any) -> bool:
    """Nothing can change it; then it is hashed by value."""
    if type(value) in (tuple, frozenset):
        return all(map(_is_fixed, value))
    if isinstance(value, functools.partial):
        return all(map(_is_fixed, (value.func, *value.args, *value.keywords.values())))
    if type(value) in _CONSTANTS or isinstance(value, _FIXED):
        return True
    return callable(value) and _global_name(value) is not None


def _dtype_text(dtype: np.dtype[Any]) -> str:
    """A dtype in words; ``str`` has only the size of structs and of other packages' floats."""
    return repr(dtype) if dtype.kind == "V" else dtype.str


def _constant(value: Any) -> bytes:
    """A constant of Python's own; floats by their bits, since 0.0 == -0.0 and NaN != NaN."""
    tag = type(value).__name__.encode()
    match value:
        case int():
            return _joined(tag, b"%x" % value)  # of any size, where digits have a limit
        case float():
            return _joined(tag, struct.pack("<d", value))
        case complex():
            return _joined(tag, struct.pack("<2d", value.real, value.imag))
        case str():
            return _joined(tag, value.encode("utf-8", "surrogatepass"))
        case bytes():
            return _joined(tag, value)
    return _joined(tag, repr(value).encode())


def _global_name(value: Any) -> str | None:
    """Name the place where every rank finds a class or C function; None for other objects."""
    if isinstance(value, np.ufunc):
        is_numpys = getattr(np, value.__name__, None) is value
        return f"numpy.{value.__name__}" if is_numpys else None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (isinstance(name, str) and isinstance(module, str | None)):
        return None
    if isinstance(value, type):
        return f"{module}.{name}"
    owner: Any = getattr(value, "__self__", None)  # of a C function: its module, or its class
    if isinstance(owner, types.ModuleType):
        return f"{owner.__name__}.{name}"
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{name}"
    found: Any = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is value else None


@dataclass(frozen=True, slots=True)
class _Code:
    """Hashed parts of a code object, made once for each.

    Attributes:
        digest: of instructions and constants, those of nested functions among them.
        globals: names that it reads, in order.
        assigned: names outside of it that it assigns.
    """

    digest: bytes
    globals: tuple[str, ...]
    assigned: frozenset[str]


@functools.lru_cache(maxsize=256)
def _summary(code: types.CodeType) -> _Code:
    names: dict[str, None] = {}
    assigned: set[str] = set()
    for nested in _nested(code):
        for instruction in dis.get_instructions(nested):
            if instruction.opname in _READS_GLOBAL:
                names[instruction.argval] = None
            elif instruction.opname in _ASSIGNS:
                assigned.add(instruction.argval)
    return _Code(hashlib.sha256(_code_bytes(code)).digest(), tuple(names), frozenset(assigned))


def _nested(code: types.CodeType) -> Iterable[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _code_bytes(code: types.CodeType) -> bytes:
    """Encode what a code object does, without its name, file and lines."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    constants = [_constant_bytes(constant) for constant in code.co_consts]
    return _joined(
        b"code",
        code.co_code,
        getattr(code, "co_exceptiontable", b""),
        repr(counts).encode(),
        repr(names).encode(),
        *constants,
    )


def _constant_bytes(constant: Any) -> bytes:
    if isinstance(constant, types.CodeType):
        return _code_bytes(constant)
    if isinstance(constant, slice):  # from Python 3.14 on
        constant = ("slice", constant.start, constant.stop, constant.step)
    return _Encoder().encoded(constant, "a constant")
