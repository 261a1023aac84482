"""One line of a file as checked fields: everything hostile ends in one `ValueError`."""

import json
from typing import Any, Never

from ftcomm.diagnostics.history import MAX_TEXT
from ftcomm.protocol.field_types import MAX_WORLD_SIZE
from ftcomm.protocol.position import PRELUDE, Position

MAX_WHOLE = 1 << 62  # nothing that is counted comes near
MAX_SECONDS = 1e12  # 30,000 years: an uptime is less
HEX = frozenset("0123456789abcdef")


class Fields:
    """The members of one JSON object, read by name and type.

    Each method raises ValueError with a sentence that names the field.
    """

    def __init__(self, raw: bytes) -> None:
        """Parse a line.

        Raises:
            ValueError: it is not one JSON object.
        """
        try:
            values = json.loads(raw.decode("utf-8"), parse_constant=_refuse)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except UnicodeDecodeError:
            raise ValueError("it is not UTF-8") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"it is not JSON: {error.msg}") from None
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
        self._values: dict[str, Any] = values

    def text(self, name: str) -> str:
        """A string."""
        value = self._value(name)
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            self._wrong(name, f"a text of at most {MAX_TEXT} characters")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            self._wrong(name, "text that UTF-8 can hold")
        return value

    def one_of(self, name: str, choice: frozenset[str]) -> str:
        """One of some strings."""
        value = self.text(name)
        if value not in choice:
            self._wrong(name, f"one of {', '.join(sorted(choice))}")
        return value

    def hexadecimal(self, name: str) -> str:
        """A digest or signature; may be empty."""
        value = self.text(name)
        if not HEX.issuperset(value):
            self._wrong(name, "lower-case hex digits")
        return value

    def digest(self, name: str) -> str | None:
        """A digest, or null."""
        return None if self._value(name) is None else self.hexadecimal(name)

    def whole(self, name: str, least: int = 0) -> int:
        """A whole number of at least `least`."""
        value = self._value(name)
        if not _is_whole(value) or not least <= value <= MAX_WHOLE:
            self._wrong(name, f"a whole number from {least} on")
        return int(value)

    def version(self, name: str) -> int | None:
        """A version, or null."""
        return None if self._value(name) is None else self.whole(name)

    def seconds(self, name: str) -> float:
        """A finite number that is not negative."""
        value = self._value(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= MAX_SECONDS:  # whole ones may be too large for a float
            self._wrong(name, "a number of seconds, not negative")
        return float(value)

    def position(self, name: str) -> Position:
        """``[branch, version, seqno]``."""
        value = self._value(name)
        whole = isinstance(value, list) and len(value) == 3 and all(map(_is_whole, value))
        if not whole or value[0] < 0 or value[1] < PRELUDE or value[2] < 0:
            self._wrong(name, "[branch, version, seqno]")
        if max(value) > MAX_WHOLE:
            self._wrong(name, f"numbers up to {MAX_WHOLE}")
        return Position(*value)

    def members(self, name: str) -> tuple[tuple[str, int], ...]:
        """``[[worker id, incarnation], ...]``."""
        value = self._value(name)
        if not isinstance(value, list) or not 0 < len(value) <= MAX_WORLD_SIZE:
            self._wrong(name, f"a list of 1 to {MAX_WORLD_SIZE} members")
        for member in value:
            pair = isinstance(member, list) and len(member) == 2
            if not pair or not isinstance(member[0], str) or not _is_whole(member[1]):
                self._wrong(name, "a list of [worker id, incarnation]")
        return tuple((worker, incarnation) for worker, incarnation in value)

    def _value(self, name: str) -> Any:
        if name not in self._values:
            raise ValueError(f"{name!r} is missing")
        return self._values[name]

    def _wrong(self, name: str, wanted: str) -> Never:
        shown = repr(self._values[name])
        shown = shown if len(shown) <= 60 else shown[:60] + "..."
        raise ValueError(f"{name!r} is {shown}, and must be {wanted}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse(name: str) -> Never:
    raise ValueError(f"{name} is not a number")
