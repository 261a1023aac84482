"""Leaves: the parts of a state, each with a digest, to find out where two states differ.

Two states that should be equal are on two ranks, and may be large.  So each rank takes its own
apart, and the tracker compares paths and digests.  How far a state is taken apart depends on its
shape alone: containers are opened level by level, as long as the number of parts stays in bounds.
"""

import hashlib
from collections import deque
from collections.abc import Hashable
from typing import Any

import numpy as np

from ftcomm.protocol.field_types import MAX_LEAVES
from ftcomm.protocol.messages import Leaf
from ftcomm.state.identity import identity
from ftcomm.state.layout import Packed
from ftcomm.state.serializer import in_fortran_order, pack_state, unpack_state

DIGEST_BYTES = 8  # a difference is known already; this only says where
_SHOWN_LENGTH = 32  # characters of a number or a text


def leaves_of(raw: Packed) -> tuple[Leaf, ...]:
    """The parts of a packed state, containers before what they hold.

    It reads all of the state, in numpy and hashlib, which let other threads run meanwhile.
    """
    leaves: list[Leaf] = []
    state = unpack_state(raw, copy=False)  # held to the end: no other object gets an identity of it
    known: dict[Hashable, str] = {}  # the path at which a part came first
    waiting: deque[tuple[str, Any]] = deque([("state", state)])
    while waiting:
        path, value = waiting.popleft()
        key = identity(value)
        if key in known:
            leaves.append(_again(path, known[key]))
            continue
        if key is not None:
            known[key] = path
        parts = _parts(path, value)
        if parts and len(leaves) + len(waiting) + 1 + len(parts) <= MAX_LEAVES:
            leaves.append(Leaf(path, _container_text(value), _digest(_keys(value))))
            waiting.extend(parts)
        else:
            leaves.append(Leaf(path, _text(value), _digest(_content(value))))
    return tuple(leaves)


def _again(path: str, first: str) -> Leaf:
    """A part that is no copy of another one, but that one itself."""
    what = f"the same object as {first}"
    return Leaf(path, what, _digest(what.encode()))


def _parts(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    return []


def _keys(value: Any) -> bytes:
    return repr(list(value)).encode() if isinstance(value, dict) else b""


def _content(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    return pack_state(value)


def _digest(content: Any) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def _text(value: Any) -> str:
    """Describe `value`; include all of it where that is short."""
    if isinstance(value, np.ndarray):
        order = " in Fortran order" if in_fortran_order(value) else ""
        return f"{value.dtype.name}{list(value.shape)}{order}"
    if isinstance(value, (dict, list, tuple)):
        return _container_text(value)
    if (shape := getattr(value, "shape", ())) and hasattr(value, "dtype"):  # a tensor of torch
        return f"{type(value).__name__} {value.dtype}{list(shape)}"
    shown = str(value) if isinstance(value, np.generic) else repr(value)
    if len(shown) > _SHOWN_LENGTH:
        return f"{type(value).__name__} of {len(shown)} characters"
    return f"{type(value).__name__} {shown}"


def _container_text(value: Any) -> str:
    """The same for two that are to be taken apart: of a dict, which keys differ says more."""
    if isinstance(value, dict):
        return "dict"
    return f"{type(value).__name__} of {len(value)}"
