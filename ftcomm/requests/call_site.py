"""Call sites: which line of the user's code made a call."""

import functools
import sys
from pathlib import Path
from types import CodeType, FrameType

_passing_on: set[str] = set()  # files that make calls for the user


def passes_on(file: str) -> None:
    """Name a file that makes calls for others, as an adapter does: ``passes_on(__file__)``.

    Messages then name the line that called the file's functions, and not the lines in it.

    Args:
        file: its ``__file__``.
    """
    _passing_on.add(file)


def call_site() -> str:
    """File and line from which the caller of this function was called, for messages."""
    frame = sys._getframe(2)  # noqa: SLF001 - the documented way costs 100 times as much
    if frame.f_code.co_filename in _passing_on:
        frame = _user_frame(frame)
    return _text(frame.f_code.co_filename, frame.f_lineno)


def _user_frame(frame: FrameType) -> FrameType:
    while frame.f_code.co_filename in _passing_on and frame.f_back is not None:
        frame = frame.f_back
    return frame


def spot_of_call() -> tuple[CodeType, int]:
    """Code and offset from which the caller of this function was called."""
    frame = _user_frame(sys._getframe(2))  # noqa: SLF001 - as above
    return frame.f_code, frame.f_lasti


@functools.lru_cache(maxsize=1024)
def _text(file: str, line: int) -> str:
    return f"{Path(file).name}:{line}"
