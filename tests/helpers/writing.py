"""Every way in which a script may try to write to an array that it was given to read."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def ways_to_write(array: Array) -> list[str]:
    """The ways that numpy allows for `array`; none for a view of the log.

    What is found is undone: the array is read-only again when this returns.
    """
    found = []
    for name, seen in _seen(array):
        if seen.flags.writeable:
            found.append(f"{name} is writable")
        for how, make in _CHANGES.items():
            try:
                make(seen)
            except ValueError:
                continue
            found.append(f"{name}.{how}")
            seen.flags.writeable = False
    return found + [f"{name} is writable" for name, raw in _raw(array) if not raw.readonly]


def _set_flag(array: Array) -> None:
    array.flags.writeable = True


_CHANGES: dict[str, Callable[[Array], None]] = {
    "setflags": lambda array: array.setflags(write=True),
    "flags": _set_flag,
}


def _seen(array: Array) -> Iterator[tuple[str, Array]]:
    """The array, what can be made of it without a copy, and every array below it."""
    yield "array", array
    yield "asarray", np.asarray(array)
    yield "view", array.view()
    yield "reshape", array.reshape(-1)
    yield "slice", array[...]
    yield "transposed", array.T
    if array.dtype.kind != "V":  # bfloat16 has no buffer
        yield "of its memoryview", np.asarray(array.data)
    base, depth = array.base, 0
    while isinstance(base, np.ndarray):
        depth += 1
        yield f"base {depth}", base
        base = base.base


def _raw(array: Array) -> Iterator[tuple[str, memoryview]]:
    if array.dtype.kind != "V":
        yield "memoryview", array.data
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if base is not array:
        yield "the last base", memoryview(base)
