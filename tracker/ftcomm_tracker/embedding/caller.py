"""The process that has started this one, and with which it ends."""

import os
import select

_STDIN = 0
_LOOK_EVERY_S = 1.0  # whether the caller's process is still the parent


def take_input() -> int:
    """Return the caller's pipe; who reads standard input from here on finds it empty."""
    watched = os.dup(_STDIN)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, _STDIN)
    os.close(empty)
    return watched


def wait_for_end_of_caller(parent: int, watched: int) -> None:
    """Return when the caller closes its pipe or is gone.

    The pipe alone does not tell of its death: a process that it has forked may hold the other end.
    """
    while os.getppid() == parent:
        readable, _, _ = select.select([watched], [], [], _LOOK_EVERY_S)
        if readable and not os.read(watched, 1):
            return
