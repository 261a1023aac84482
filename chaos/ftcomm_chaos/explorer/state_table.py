"""Parts of states, each kept once under a number, and what the cores made of them.

A move changes one or two parts of a state (the roster, one incarnation, a queue), and most states
are new combinations of parts that were seen before.  So a state is a row of numbers, exact and a
few bytes long.  A core is deterministic, so what it does with an event is computed once and looked
up after
that: the cores that run are the real ones, only never twice from the same state.

A core owns objects, some of which refer to one another.  Each of them is frozen once, on its own;
where another one refers to it there is its number among the objects of that core.
"""

import enum
import io
import pickle
from collections.abc import Callable, Hashable
from typing import Any

from ftcomm.protocol.position import Position

CORE_PACKAGES = ("ftcomm", "ftcomm_tracker")  # whose objects are parts of cores

Frozen = tuple[int, ...]  # the parts of one core in a table, the core itself last


class _Kind(enum.Enum):
    """Freezing method of the objects of one type."""

    VALUE = "a number in the table of values"
    SET = "the same, and thawed as a copy"
    PART = "on its own, once in a core"
    WRITTEN = "in its owner, wherever it is met"


class Table:
    """Hashable values of one kind, each with its number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._values: list[Any] = []

    def number(self, value: Hashable) -> int:
        """The number of `value`; equal values have one number."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self._values)
            self._values.append(value)
        return number

    def __getitem__(self, number: int) -> Any:
        return self._values[number]

    def __len__(self) -> int:
        return len(self._values)


class CoreStore:
    """Cores in every state that was met. What it hands out is shared and must not be changed."""

    def __init__(self) -> None:
        self._numbers: dict[Frozen, int] = {}
        self._frozen: list[Frozen] = []
        self._cores: list[Any] = []
        self._done: dict[tuple[Any, ...], tuple[Any, int]] = {}
        self._values = Table()  # frozen values inside cores
        self._parts = Table()  # frozen objects of cores
        self._kinds: dict[type, _Kind] = {}

    def put(self, core: Any) -> int:
        """Keep `core`, which from now on nobody changes; its number."""
        frozen = self.freeze(core)
        number = self._numbers.get(frozen)
        if number is None:
            number = self._numbers[frozen] = len(self._frozen)
            self._frozen.append(frozen)
            self._cores.append(core)
        return number

    def __getitem__(self, number: int) -> Any:
        return self._cores[number]

    def __len__(self) -> int:
        return len(self._frozen)

    def call(self, number: int, function: Callable[..., Any], *args: Hashable) -> tuple[Any, int]:
        """`function(core, *args)` on a copy of core `number`: what it returns, the copy's number.

        `function` decides by its arguments alone; what it raises is raised.
        """
        key = (number, function, args)
        done = self._done.get(key)
        if done is None:
            core = self._thaw(self._frozen[number])
            result = function(core, *args)
            done = self._done[key] = (result, self.put(core))
        return done

    def freeze(self, core: Any) -> Frozen:
        """`core` as numbers of parts: equal states are equal numbers."""
        parts = _CoreParts(self._values, self._kinds)
        parts.number(core)
        return tuple(map(self._parts.number, parts.frozen))

    def _thaw(self, frozen: Frozen) -> Any:
        parts: list[Any] = []
        for number in frozen:
            parts.append(_Thaw(io.BytesIO(self._parts[number]), self._values, parts).load())
        return parts[-1]

    def check(self) -> None:
        """Assert that nobody has changed what is shared."""
        for core, frozen in zip(self._cores, self._frozen, strict=True):
            assert self.freeze(core) == frozen, "a core was changed that others share"


class _CoreParts:
    """The objects of one core, each frozen once, behind all those that it refers to."""

    def __init__(self, values: Table, kinds: dict[type, _Kind]) -> None:
        self.values = values
        self.kinds = kinds
        self.frozen: list[bytes] = []
        self._numbers: dict[int, int] = {}  # by identity

    def number(self, part: Any) -> int:
        """The number of `part` in this core; it is frozen if it was not yet."""
        number = self._numbers.get(id(part))
        if number is None:
            buffer = io.BytesIO()
            pickler = _Freeze(buffer, self, part)
            pickler.fast = True  # no memo: whether two values are one object decides nothing
            pickler.dump(part)
            number = self._numbers[id(part)] = len(self.frozen)
            self.frozen.append(buffer.getvalue())
        return number


class _Freeze(pickle.Pickler):
    """Writes frozen values as their number in a table: they are most of a core."""

    def __init__(self, file: io.BytesIO, parts: _CoreParts, part: Any) -> None:
        super().__init__(file, protocol=5)
        self._parts = parts
        self._part = part

    def persistent_id(self, value: Any) -> int | None:
        """Called for everything: the number of a frozen value or part, None for all else."""
        kind = type(value)
        treatment = self._parts.kinds.get(kind)
        if treatment is None:
            treatment = self._parts.kinds[kind] = _kind_of(kind)
        if treatment is _Kind.SET:  # by what is in it: its order is an accident of hashes
            return self._parts.values.number((kind, frozenset(value)))
        if treatment is _Kind.VALUE:
            return self._parts.values.number((kind, value))
        if treatment is _Kind.PART and value is not self._part:
            return ~self._parts.number(value)
        return None


def _kind_of(kind: type) -> _Kind:
    parameters = getattr(kind, "__dataclass_params__", None)
    if kind is set:
        return _Kind.SET
    if kind in (Position, frozenset) or issubclass(kind, enum.Enum):
        return _Kind.VALUE
    if parameters is not None:
        return _Kind.VALUE if parameters.frozen else _Kind.WRITTEN
    own = kind.__module__.partition(".")[0] in CORE_PACKAGES and not issubclass(kind, tuple)
    return _Kind.PART if own else _Kind.WRITTEN


class _Thaw(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, values: Table, parts: list[Any]) -> None:
        super().__init__(file)
        self._values = values
        self._parts = parts

    def persistent_load(self, number: int) -> Any:
        """The part, or the frozen value itself; of a set a copy."""
        if number < 0:
            return self._parts[~number]
        kind, value = self._values[number]
        return set(value) if kind is set else value
