"""The words of any error, also of a class that refuses to tell them or to take more.

And its traceback, where one object is raised several times: Python adds frames to it each time,
and each frame keeps what its function had.
"""

import contextlib
import sys
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def text_of(error: BaseException) -> str:
    """The error's `str`, or what a traceback shows where that fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever the user's class does
        return "<exception str() failed>"


def named(error: BaseException) -> str:
    """Class and words of an error in one text, for whoever is told of it."""
    name, words = type(error).__name__, text_of(error)
    return f"{name}: {words}" if words else name


def add_note(error: BaseException, text: str) -> None:
    """Add a note, unless the class refuses attributes, as a frozen dataclass does."""
    with contextlib.suppress(Exception):
        error.add_note(text)


def bound_to_process(what: str, instead: str) -> TypeError:
    """The error of a copy or pickle of `what`, which has the job's connections or threads."""
    return TypeError(f"{what} belongs to its process, so it cannot be copied or pickled; {instead}")


def raised_anew(error: E) -> E:
    """`error` for a function that raises it again: without the frames of its earlier raises there.

    What led to the error stays.
    """
    code = sys._getframe(1).f_code  # noqa: SLF001 - of the function that raises
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is code:
            error.with_traceback(trace.tb_next)
        trace = trace.tb_next
    return error
