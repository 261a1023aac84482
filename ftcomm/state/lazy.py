"""Lazy state: a checkpoint's state that becomes bytes only if somebody asks for them.

It holds on to the user's own arrays, whose content must not change until the next checkpoint has
returned; containers are its own, so the user may put other things into a dict or a list at once.
Two threads use it: the user's makes and releases it, and one that serves another rank reads it.
"""

import hashlib
import threading
from collections import defaultdict
from typing import Any

import numpy as np

from ftcomm.errors import StateChangedError
from ftcomm.state.identity import DICTS, LEAVES, MAX_DEPTH, SharedParts
from ftcomm.state.layout import Packed
from ftcomm.state.registered_types import Converted
from ftcomm.state.serializer import (
    checked_code,
    checked_integer,
    checked_key,
    checked_text,
    factory_code,
    pack_state,
)


class LazyState:
    """One version's state, until it is released.

    Args:
        state: as `pack_state` takes it.
        watched: compare the arrays' content with what it is now, before it is used and in `check`.

    Raises:
        TypeError: something else is in it; the message says where.
    """

    def __init__(self, state: Any, *, watched: bool = False) -> None:
        self._lock = threading.Lock()
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._state = _Owner(state, self._arrays).own(state, "state", 0)
        self._is_held = True
        self._raw: Packed | None = None
        self._marks = {path: _mark(a) for path, a in self._arrays.items()} if watched else {}

    def raw(self) -> Packed | None:
        """The packed state, made at the first call; None if it was released before.

        Raises:
            StateChangedError: it is watched, and the user has changed it.
        """
        with self._lock:
            if self._raw is None and self._is_held:
                raw = pack_state(self._state)
                self._compare()
                self._raw = raw
                if not self._marks:
                    self._release()
            return self._raw

    @property
    def packed(self) -> Packed | None:
        """The packed state if somebody has asked for it before; nothing is packed now."""
        return self._raw

    def packed_now(self) -> Packed:
        """The packed state, for one that is made just now; what is held stays as it is."""
        return pack_state(self._state)

    def check(self) -> None:
        """See that nothing has changed, if it is watched; raises StateChangedError."""
        with self._lock:
            self._compare()

    def release(self) -> None:
        """The user may change the arrays from now on; waits while they are being read."""
        with self._lock:
            self._release()

    def _release(self) -> None:
        self._state, self._arrays, self._marks, self._is_held = None, {}, {}, False

    def _compare(self) -> None:
        changed = [path for path, mark in self._marks.items() if _mark(self._arrays[path]) != mark]
        if changed:
            raise StateChangedError(
                f"{changed[0]} was written to after checkpoint(..., lazy=True) was given it and "
                "before the next checkpoint had returned"
            )


class _Owner:
    """Makes containers of our own for one state; arrays share the user's memory."""

    def __init__(self, state: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        self._parts, self._arrays = SharedParts(state), arrays

    def own(self, value: Any, where: str, depth: int) -> Any:
        """`value` in our own containers; raises TypeError."""
        if depth > MAX_DEPTH:
            raise TypeError(f"{where} is nested more than {MAX_DEPTH} deep")
        key = self._parts.key(value)
        if key is None:
            return self._part(value, where, depth)
        found = self._parts.find(key, where, depth)
        if found is None:
            found = self._part(value, where, depth)
            self._parts.keep(key, found)
        return found

    def _part(self, value: Any, where: str, depth: int) -> Any:
        kind = type(value)
        if kind is np.ndarray:
            checked_code(value, where)
            self._arrays[where] = value.view()
            return self._arrays[where]
        if kind in DICTS:
            content = {
                checked_key(key, where): self.own(item, f"{where}[{key!r}]", depth + 1)
                for key, item in value.items()
            }
            return _same_dict(value, content, where)
        if kind is list or kind is tuple:
            return kind(self.own(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value))
        of_user = self._parts.content(value)
        if of_user is not None:  # now: the user may change the value before it is packed
            content = self.own(of_user.content, f"{where}.to_state()", depth + 1)
            return Converted(of_user.name, content)
        if kind is str:
            checked_text(value, where)
        elif kind is int:
            checked_integer(value, where)
        elif kind not in LEAVES:
            pack_state(value, where)  # a number of numpy's, or refused
        return value


def _same_dict(value: Any, content: dict[Any, Any], where: str) -> Any:
    """A dict of `value`'s type with other content; raises TypeError."""
    if type(value) is defaultdict:
        factory_code(value, where)
        return defaultdict(value.default_factory, content)
    return type(value)(content)


def _mark(array: np.ndarray[Any, Any]) -> bytes:
    whole = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.blake2b(whole.data, digest_size=16).digest()
