"""Bounds on what one input may cost: memory, and steps of the interpreter, not seconds."""

import contextlib
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

# What the richest small input needs, several times over; what grows without bound passes it soon.
BASE_BYTES, BYTES_PER_BYTE = 6 << 20, 256
BASE_STEPS, STEPS_PER_BYTE = 200_000, 200

_ROOT = Path(__file__).parents[2]
# Whose lines are counted; of other code only the calls are.
OWN = tuple(str(_ROOT / folder) for folder in ("ftcomm", "tracker", "chaos", "tests"))


class TooExpensive(BaseException):
    """Passes through every `except` of the code that it stops."""


@contextlib.contextmanager
def bounded(size: int) -> Iterator[None]:
    """Hold what runs inside to the bounds for an input of `size` bytes.

    Raises:
        TooExpensive: it took more.
    """
    with _bounded_steps(BASE_STEPS + STEPS_PER_BYTE * size):
        tracemalloc.start()
        try:
            yield
            peak, most = tracemalloc.get_traced_memory()[1], BASE_BYTES + BYTES_PER_BYTE * size
        finally:
            tracemalloc.stop()
    if peak > most:
        raise TooExpensive(f"{peak} bytes of memory for {size} bytes of input, at most {most}")


@contextlib.contextmanager
def _bounded_steps(most: int) -> Iterator[None]:
    left = most

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise TooExpensive(f"more than {most} lines, in {frame.f_code.co_name}")
        return trace if frame.f_code.co_filename.startswith(OWN) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
