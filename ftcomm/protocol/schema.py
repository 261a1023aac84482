"""Field kinds: what one value of a control message may be, checked in both directions.

A message is declared once, as a dataclass whose annotations carry the bounds (`field_types`), and
`record_of` derives its row from them.

A kind turns a value into plain msgpack data (`write`) and reads it back from a peer (`read`).
The two directions blame different people: what we try to send and may not is our own defect
(`ValueError`), what a peer sent and may not is a `ProtocolError`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from ftcomm.errors import ProtocolError
from ftcomm.protocol.msgpack_reader import Plain, Reader


class Field(ABC):
    """One kind of value on the wire."""

    @abstractmethod
    def write(self, value: Any) -> Plain:
        """Plain data for `value`; raises ValueError."""

    @abstractmethod
    def read(self, reader: Reader) -> Any:
        """The next value; raises ProtocolError."""


class Int(Field):
    """An integer in ``lo..hi``, both included; bool is not an integer here."""

    def __init__(self, lo: int, hi: int) -> None:
        self.lo = lo
        self.hi = hi

    def _complaint(self, value: object) -> str | None:
        if type(value) is int and self.lo <= value <= self.hi:
            return None
        return f"integer in {self.lo}..{self.hi} expected, got {str(value)[:40]!r}"

    def write(self, value: Any) -> Plain:
        value = int(value) if isinstance(value, int) and not isinstance(value, bool) else value
        complaint = self._complaint(value)
        if complaint:
            raise ValueError(complaint)
        plain: int = value
        return plain

    def read(self, reader: Reader) -> int:
        value = reader.scalar()
        complaint = self._complaint(value)
        if complaint or not isinstance(value, int):
            raise ProtocolError(complaint or "integer expected")
        return value


class Bool(Field):
    """True or false, never 0 or 1."""

    def write(self, value: Any) -> Plain:
        if not isinstance(value, bool):
            raise ValueError(f"bool expected, got {value!r}")
        return value

    def read(self, reader: Reader) -> bool:
        value = reader.scalar()
        if not isinstance(value, bool):
            raise ProtocolError(f"bool expected, got {type(value).__name__}")
        return value


class Text(Field):
    """UTF-8 text of at most `limit` bytes.

    ``cut=True`` is for prose (reasons, causes): too long a text is shortened when it is sent,
    since an error that cannot be told would be worse than one told in part.
    """

    def __init__(self, limit: int, *, cut: bool = False) -> None:
        self.limit = limit
        self.cut = cut

    def write(self, value: Any) -> Plain:
        if not isinstance(value, str):
            raise ValueError(f"text expected, got {type(value).__name__}")
        if self.cut:
            return cut_text(value, self.limit)
        size = len(value.encode())  # a lone surrogate raises UnicodeEncodeError, a ValueError
        if size > self.limit:
            raise ValueError(f"text of {size} bytes, at most {self.limit}")
        return value

    def read(self, reader: Reader) -> str:
        value = reader.scalar()
        if not isinstance(value, str):
            raise ProtocolError(f"text expected, got {type(value).__name__}")
        if len(value.encode()) > self.limit:
            raise ProtocolError(f"text of {len(value.encode())} bytes, at most {self.limit}")
        return value


class Bytes(Field):
    """Raw bytes, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def write(self, value: Any) -> Plain:
        if not isinstance(value, bytes) or len(value) > self.limit:
            raise ValueError(f"at most {self.limit} bytes expected, got {str(value)[:40]!r}")
        return value

    def read(self, reader: Reader) -> bytes:
        value = reader.scalar()
        if not isinstance(value, bytes):
            raise ProtocolError(f"bytes expected, got {type(value).__name__}")
        if len(value) > self.limit:
            raise ProtocolError(f"{len(value)} bytes, at most {self.limit}")
        return value


class Many(Field):
    """A tuple of up to `limit` values of one kind."""

    def __init__(self, item: Field, limit: int) -> None:
        self.item = item
        self.limit = limit

    def write(self, value: Any) -> Plain:
        if not isinstance(value, tuple) or len(value) > self.limit:
            raise ValueError(f"tuple of at most {self.limit} expected, got {str(value)[:40]!r}")
        return [self.item.write(item) for item in value]

    def read(self, reader: Reader) -> tuple[Any, ...]:
        length = reader.array_length()
        if length > self.limit:
            raise ProtocolError(f"array of {length}, at most {self.limit}")
        return tuple([self.item.read(reader) for _ in range(length)])


class Pair(Field):
    """A tuple of exactly two values of one kind."""

    def __init__(self, item: Field) -> None:
        self.item = item

    def write(self, value: Any) -> Plain:
        if not isinstance(value, tuple) or len(value) != 2:
            raise ValueError(f"pair expected, got {str(value)[:40]!r}")
        return [self.item.write(value[0]), self.item.write(value[1])]

    def read(self, reader: Reader) -> tuple[Any, Any]:
        length = reader.array_length()
        if length != 2:
            raise ProtocolError(f"pair expected, got an array of {length}")
        return self.item.read(reader), self.item.read(reader)


class Maybe(Field):
    """A value of one kind, or None."""

    def __init__(self, item: Field) -> None:
        self.item = item

    def write(self, value: Any) -> Plain:
        return None if value is None else self.item.write(value)

    def read(self, reader: Reader) -> Any:
        if reader.at_nil():
            return reader.scalar()
        return self.item.read(reader)


class Record(Field):
    """An array of named values of one class, in a fixed order, none missing and none extra."""

    def __init__(self, build: Callable[..., Any], fields: Mapping[str, Field]) -> None:
        self.build = build
        self.fields = dict(fields)
        self.name = getattr(build, "__name__", "record")
        self._kinds = tuple(fields.values())

    def write(self, value: Any) -> list[Plain]:
        plain: list[Plain] = []
        for name, kind in self.fields.items():
            try:
                plain.append(kind.write(getattr(value, name)))
            except ValueError as error:
                raise ValueError(f"{self.name}.{name}: {error}") from None
        return plain

    def read(self, reader: Reader) -> Any:
        return self.read_fields(reader, reader.array_length())

    def read_fields(self, reader: Reader, length: int) -> Any:
        """Read the record's values after its array header, which said `length`."""
        if length != len(self._kinds):
            raise ProtocolError(f"{self.name} with {length} fields, expected {len(self._kinds)}")
        return self.build(*[kind.read(reader) for kind in self._kinds])


def cut_text(text: str, limit: int) -> str:
    """`text` in at most `limit` UTF-8 bytes, never ending in half a character."""
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


# --- from annotations to kinds ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AtMost:
    """The bound of an annotated ``tuple[X, ...]``."""

    count: int


NOT_SENT: Final = object()  # annotates a field that another message carries


@cache
def record_of(declared: type) -> Record:
    """The row of a dataclass or named tuple, from its annotations, in their order.

    Raises:
        TypeError: a field has no bounds.
    """
    fields: dict[str, Field] = {}
    for name, annotation in declared.__annotations__.items():
        if NOT_SENT in getattr(annotation, "__metadata__", ()):
            continue
        try:
            fields[name] = _field_of(annotation)
        except TypeError as error:
            raise TypeError(f"{declared.__name__}.{name}: {error}") from None
    return Record(declared, fields)


def _field_of(annotation: Any) -> Field:
    """The kind that an annotation declares."""
    arguments = get_args(annotation)
    match get_origin(annotation):
        case origin if origin is Annotated:
            return _bounded(*arguments)
        case origin if origin in (Union, UnionType):
            return _optional(arguments)
        case origin if origin is tuple:
            return _pair(arguments)
    if annotation is bool:
        return Bool()
    if is_dataclass(annotation) or hasattr(annotation, "_fields"):  # the latter is a named tuple's
        return record_of(annotation)
    raise TypeError(f"{annotation!r} has no bounds")


def _bounded(of: Any, bound: Any) -> Field:
    if isinstance(bound, Field):
        return bound
    if isinstance(bound, AtMost):
        item, _ = get_args(of)
        return Many(_field_of(item), bound.count)
    raise TypeError(f"{bound!r} is no bound")


def _optional(members: tuple[Any, ...]) -> Field:
    item, none = members
    if none is not type(None):
        raise TypeError("a union other than with None")
    return Maybe(_field_of(item))


def _pair(items: tuple[Any, ...]) -> Field:
    first, second = items
    if first is not second:
        raise TypeError("a tuple that is neither bounded by AtMost nor a pair of one type")
    return Pair(_field_of(first))
