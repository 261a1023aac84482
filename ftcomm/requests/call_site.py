"""Call sites: which line of the user's code made a call."""

import contextlib
import functools
import sys
from pathlib import Path
from types import FrameType

_passing_on: set[str] = set()  # files that make calls for the user
_folders: tuple[str, ...] = ()  # folders of such files, each ending with a separator


def passes_on(path: str) -> None:
    """Name the caller's line, not its own, where the code at `path` makes a call.

    For libraries that make calls for their users: a message about a mismatch then names the line
    of the script that called the library.
    """
    global _folders  # noqa: PLW0603 - one table a process, as calls of every module are looked up
    if not Path(path).is_dir():
        _passing_on.add(path)
    elif (folder := f"{path.rstrip('/')}/") not in _folders:
        _folders = (*_folders, folder)


def call_site() -> str:
    """File and line from which the caller of this function was called, for messages."""
    frame = _user_frame(sys._getframe(2))  # noqa: SLF001 - the documented way costs 100 times as much
    file = frame.f_code.co_filename
    if frame.f_back is None and file in _passing_on:  # in an exit function
        return "the end of the script"
    return _text(file, frame.f_lineno)


def _user_frame(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if file not in _passing_on and not (_folders and _is_in_folder(file)):
            break
        frame = frame.f_back
    return frame


def _is_in_folder(file: str) -> bool:
    if not file.startswith(_folders):
        return False
    _passing_on.add(file)
    return True


@functools.lru_cache(maxsize=1024)
def _text(file: str, line: int) -> str:
    return f"{cell_name(file) or Path(file).name}:{line}"


def cell_name(file: str) -> str:
    """``Cell In[3]`` for the file of a notebook's cell, which is a number of its text; else empty.

    The notebook's own process alone can tell.
    """
    with contextlib.suppress(KeyError, AttributeError):  # no notebook, or one of another kind
        label = sys.modules["IPython"].get_ipython().compile.format_code_name(file)
        return " ".join(label or ())
    return ""
