"""Exit status of a process that an error of this library ends, and what a forked child inherits.

A launcher or supervisor decides by the exit status whether a restart makes sense.  An uncaught
`FtcommError` therefore ends the process with the error's `exit_code` instead of 1; the traceback
is printed as always, and nothing is done to a process that catches the error.
"""

import os
import sys
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ftcomm.errors import FtcommError

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

_installed = False
_abandons: "weakref.WeakSet[Any]" = weakref.WeakSet()


def use_exit_codes() -> None:
    """Install the hook, once; whatever hook was there goes on printing."""
    global _installed  # noqa: PLW0603 - once per process
    if not _installed:
        _installed = True
        sys.excepthook = _with_exit_code(sys.excepthook)
        if hasattr(os, "register_at_fork"):  # Windows does not fork
            os.register_at_fork(after_in_child=_abandon_all)


def _with_exit_code(previous: _Hook) -> _Hook:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        if isinstance(error, FtcommError):
            raise SystemExit(error.exit_code)

    return hook


def abandon_in_children(owner: Any) -> None:
    """Call ``owner.abandon()`` in every forked child for as long as `owner` lives."""
    _abandons.add(owner)


def _abandon_all() -> None:
    for owner in list(_abandons):
        owner.abandon()
