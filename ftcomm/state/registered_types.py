"""Types that a state may hold beside plain ones: those that users register, and why others may not.

A state comes back with the types that it had. What the format has no form for is refused by its
place, with a remedy: a namedtuple that silently became a tuple would fail in the restarted worker
alone, hours later.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ftcomm.config.plurals import kind_of

T = TypeVar("T")

MAX_NAME = 255  # characters of a registered type's name: longer ones are no module and class
PLAIN = "dict, list, tuple, numpy arrays, numbers, str, bytes, bool and None"
# What `defaultdict` may make by default; anything else is code, which no state carries.
FACTORIES: tuple[type | None, ...] = (
    None,
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    list,
    dict,
    tuple,
)
_OF_PYTHON = frozenset(("builtins", "collections", "numpy"))  # modules whose types are decided here


@dataclass(frozen=True, slots=True)
class Registration:
    """Encoding of one registered type."""

    name: str  # module and qualified name, by which the bytes say which type it is
    kind: type[Any]  # the type
    to_state: Callable[[Any], Any]  # its value as plain content
    from_state: Callable[[Any], Any]  # the inverse


@dataclass(frozen=True, slots=True)
class Converted:
    """A registered value as the content that `to_state` gave."""

    name: str
    content: Any


_by_type: dict[type[Any], Registration] = {}
_by_name: dict[str, Registration] = {}


def register(kind: type[T], to_state: Callable[[T], Any], from_state: Callable[[Any], T]) -> None:
    """Let states and objects hold values of `kind`.

    Where `to_state` gives a numpy array, collectives and messages take such a value, or one of a
    subclass, as that array.

    Call it on every rank, before `load_checkpoint` and before any collective of objects. A second
    call for one type replaces the first. Subclasses of `kind` are types of their own.

    Args:
        kind: the class, for example a namedtuple, an enum or a dataclass. Its module and qualified
            name identify it on all ranks.
        to_state: called when a state is taken; returns what a state may hold. It must give the
            same content for the same value on every rank.
        from_state: called with a copy of that content; returns a value of `kind`.

    Raises:
        TypeError: `kind` is no class, or a function cannot be called.
        ValueError: states hold values of `kind` as they are, or its name is too long.

    Example:
        ``ftcomm.register(Point, tuple, Point._make)`` for a namedtuple ``Point``.
    """
    if not isinstance(kind, type):
        raise TypeError(f"register() takes a class, got {kind!r}")
    for word, function in (("to_state", to_state), ("from_state", from_state)):
        if not callable(function):
            raise TypeError(f"register({kind.__name__}): {word} must be a function")
    if kind.__module__ in _OF_PYTHON:
        raise ValueError(
            f"register({kind.__name__}): types of {kind.__module__} are not registered"
        )
    name = name_of(kind)
    if len(name) > MAX_NAME:
        raise ValueError(f"register({name[:40]}...): its name has more than {MAX_NAME} characters")
    entry = Registration(name, kind, to_state, from_state)
    _by_type[kind] = _by_name[name] = entry


def name_of(kind: type[Any]) -> str:
    """Module and qualified name."""
    return f"{kind.__module__}.{kind.__qualname__}"


def converted(value: Any) -> Converted | None:
    """The content of a value of a registered type, None for any other."""
    if type(value) is Converted:
        return value
    entry = _by_type.get(type(value))
    return None if entry is None else Converted(entry.name, entry.to_state(value))


def array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """The array that stands for a value of a registered type, or of a subclass of one.

    None where no type is registered, or the content of a value is no array.
    """
    entry = next((_by_type[kind] for kind in type(value).__mro__ if kind in _by_type), None)
    content = None if entry is None else entry.to_state(value)
    return content if isinstance(content, np.ndarray) else None


def registered(name: str) -> Registration | None:
    """Return the registration under `name`."""
    return _by_name.get(name)


def is_registered(value: Any) -> bool:
    """Tell whether values of exactly this type are registered."""
    return type(value) in _by_type


def refusal(value: Any, where: str) -> TypeError:
    """Build the error that explains why a state cannot hold `value`, and how to change it."""
    kind, name = type(value), getattr(value, "__qualname__", None)
    called = kind_of(value)
    if callable(value) and isinstance(name, str):
        called = f"the class {name}" if isinstance(value, type) else f"the function {name}"
    return TypeError(f"{where} is {called}: {_remedy(value, kind)}")


def _remedy(value: Any, kind: type[Any]) -> str:
    name = kind.__name__
    adding = f"ftcomm.register({name}, to_state, from_state)"
    if isinstance(value, tuple) and hasattr(kind, "_make"):
        return f"ftcomm.register({name}, tuple, {name}._make) keeps it, tuple() drops the names"
    if kind.__module__.split(".")[0] == "torch" and hasattr(value, "numpy"):
        return "import ftcomm.torch first, by which states hold tensors on the CPU"
    if hasattr(value, "filled") and hasattr(value, "mask"):
        return "pass its .filled() and its .mask, numpy.ma makes it again"
    if callable(value):
        return "functions and classes are not carried; pass what they are made from"
    for plain, cast in _CASTS:
        if isinstance(value, plain):
            return f"pass {cast}" if kind.__module__ in _OF_PYTHON else f"pass {cast}, or {adding}"
    if hasattr(value, "__array__"):
        return "pass numpy.asarray() of it"
    return f"it may be or hold {PLAIN}; {adding} adds a type"


# Of subclasses and relatives of plain types: what to pass where the difference does not matter.
_CASTS: tuple[tuple[Any, str], ...] = (
    (dict, "dict() of it"),
    (list, "list() of it"),
    (tuple, "tuple() of it"),
    (bool, "bool() of it"),
    (int, "int() of it"),
    (float, "float() of it"),
    (complex, "complex() of it"),
    (str, "str() of it"),
    ((bytes, bytearray, memoryview), "bytes() of it"),
    ((set, frozenset), "sorted() of it"),
)
