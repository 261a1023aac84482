"""Identity: which parts of a state are one object under several names.

Mutable parts have an identity: what is written under one name is read under the other.  Arrays are
one if they are the same elements: same memory, dtype, shape and strides.  That joins two tensors on
one storage, as those of tied weights are, and a view of a whole array with that array.  Immutable
values have none.  Python itself makes one object of equal constants, so ranks would differ for no
reason.  A value of a registered type is taken as immutable if its hash is that of its content.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Hashable
from copy import copy
from typing import Any, cast

import numpy as np

from ftcomm.state.registered_types import Converted, converted, is_registered

MAX_DEPTH = 64  # nesting of a state; deeper is a mistake
LEAVES = frozenset((bool, int, float, complex, str, bytes, type(None)))  # nobody can change them
DICTS = frozenset((dict, OrderedDict, defaultdict))
_OPEN = object()
_BY_OBJECT = DICTS | {list, Converted}
_MUTABLE = _BY_OBJECT | {np.ndarray}


def identity(value: Any) -> Hashable:
    """A key that is equal for one object alone while that is alive; None for an immutable value."""
    kind = type(value)
    if kind in _BY_OBJECT:
        return id(value)
    if kind is np.ndarray:
        address = value.__array_interface__["data"][0]
        return (address, value.dtype, value.shape, value.strides) if value.nbytes else id(value)
    if is_registered(value) and not _hashes_by_content(value):
        return id(value)
    return None


def _hashes_by_content(value: Any) -> bool:
    try:
        return hash(value) not in (object.__hash__(value), id(value))
    except TypeError:
        return False


class SharedParts:
    """Parts that occur more than once in one state, and what its writer has made of them.

    It holds what `to_state` of registered types gave, so that no other object gets its address
    before it is written.
    """

    def __init__(self, state: Any) -> None:
        self._made: dict[Hashable, Any] = {}  # `_OPEN` for what is being made
        self._levels: dict[Hashable, int] = {}  # of containers below each identity
        self._contents: defaultdict[int, deque[Converted]] = defaultdict(deque)
        self._keys: set[Hashable] = set()
        self._visit(state, 0)

    def key(self, value: Any) -> Hashable:
        """The identity of `value` if it occurs more than once, else None."""
        if not self._keys:
            return None
        key = identity(value)
        return key if key in self._keys else None

    def find(self, key: Hashable, where: str, depth: int) -> Any:
        """Find what was made of a part; None the first time: the caller makes it, and calls `keep`.

        Raises:
            TypeError: at `where` the part contains itself, or is nested too deep.
        """
        made = self._made.get(key)
        if made is None:
            self._made[key] = _OPEN
            return None
        if made is _OPEN:
            raise TypeError(f"{where} contains itself")
        if depth + self._levels[key] > MAX_DEPTH:
            raise TypeError(f"{where} is nested more than {MAX_DEPTH} deep")
        return made

    def keep(self, key: Hashable, made: Any) -> None:
        """Remember what was made of a part."""
        self._made[key] = made

    def content(self, value: Any) -> Converted | None:
        """The content of a value of a registered type, None for any other.

        Called in the order in which the state was visited.  An immutable value has a content for
        each name, as if it were an object for each: see above.
        """
        contents = self._contents.get(id(value))
        return contents.popleft() if contents else None

    def _visit(self, value: Any, depth: int) -> int:
        """Note a part and what it holds; return the levels of containers below it."""
        key = identity(value)
        if key in self._levels:
            self._keys.add(key)
            return self._levels[key]
        if depth > MAX_DEPTH:
            return 0  # who writes it says where
        if key is not None:
            self._levels[key] = 0
        items = self._items(value)
        levels = 1 if items else 0
        for item in [item for item in items if type(item) not in LEAVES]:
            levels = max(levels, 1 + self._visit(item, depth + 1))
        if levels and key is not None:
            self._levels[key] = levels
        return levels

    def _items(self, value: Any) -> Collection[Any]:
        """Parts of `value`, in the order in which it is written."""
        kind = type(value)
        if kind is list or kind is tuple:
            return cast("Collection[Any]", value)
        if kind in DICTS:
            return cast("Collection[Any]", value.values())
        found = None if kind is np.ndarray else converted(value)
        if found is None:
            return ()
        if (
            identity(value) is None and type(found.content) in _MUTABLE
        ):  # `vars` gives the same dict each time
            found = Converted(found.name, copy(found.content))
        self._contents[id(value)].append(found)
        return (found.content,)
