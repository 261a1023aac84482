"""Parts of states, each kept once under a number, and what the cores made of them.

A move changes one or two parts of a state (the roster, one incarnation, a queue), and most states
are new combinations of parts that were seen before.  So a state is a row of numbers, exact and a
few bytes long.  A core is deterministic, so what it does with an event is computed once and looked
up after
that: the cores that run are the real ones, only never twice from the same state.
"""

import enum
import io
import pickle
from collections.abc import Callable, Hashable
from typing import Any

from ftcomm.protocol.position import Position


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
        self._numbers: dict[bytes, int] = {}
        self._frozen: list[bytes] = []
        self._cores: list[Any] = []
        self._done: dict[tuple[Any, ...], tuple[Any, int]] = {}
        self._values = Table()  # frozen values inside cores
        self._shared: dict[type, bool] = {}  # which types are frozen

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
            core = _Thaw(io.BytesIO(self._frozen[number]), self._values).load()
            result = function(core, *args)
            done = self._done[key] = (result, self.put(core))
        return done

    def freeze(self, core: Any) -> bytes:
        """`core` as bytes: equal states are equal bytes."""
        buffer = io.BytesIO()
        pickler = _Freeze(buffer, self._values, self._shared)
        pickler.fast = True  # without a memo: whether two parts are one object decides nothing
        pickler.dump(core)
        return buffer.getvalue()

    def check(self) -> None:
        """Assert that nobody has changed what is shared."""
        for core, frozen in zip(self._cores, self._frozen, strict=True):
            assert self.freeze(core) == frozen, "a core was changed that others share"


class _Freeze(pickle.Pickler):
    """Writes frozen values as their number in a table: they are most of a core."""

    def __init__(self, file: io.BytesIO, values: Table, shared: dict[type, bool]) -> None:
        super().__init__(file, protocol=5)
        self._values = values
        self._shared = shared

    def persistent_id(self, value: Any) -> int | None:
        """Called for everything: the number of a frozen value, None for what is written out."""
        kind = type(value)
        shared = self._shared.get(kind)
        if shared is None:
            parameters = getattr(kind, "__dataclass_params__", None)
            frozen = bool(parameters and parameters.frozen)
            shared = kind in (Position, frozenset) or frozen or issubclass(kind, enum.Enum)
            self._shared[kind] = shared
        if kind is set:  # by what is in it: its order is an accident of hashes
            return self._values.number((kind, frozenset(value)))
        return self._values.number((kind, value)) if shared else None


class _Thaw(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, values: Table) -> None:
        super().__init__(file)
        self._values = values

    def persistent_load(self, number: int) -> Any:
        """The frozen value itself; of a set a copy."""
        kind, value = self._values[number]
        return set(value) if kind is set else value
