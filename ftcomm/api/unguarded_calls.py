"""Calls that pass no guard, as any thread may make them: messages, and the waits of handles."""

import sys
from pathlib import Path
from types import FrameType
from typing import Final

_PACKAGE: Final = Path(__file__).parents[1]
# What all of them go through.  Their modules are not imported: they import the session, which asks.
_FILES: Final = frozenset(
    str(_PACKAGE / file)
    for file in (
        "api/messages.py",
        "nonblocking/handle.py",
        "nonblocking/message_handles.py",
        "nonblocking/queue.py",
    )
)


def is_in_unguarded_call() -> bool:
    """True if the caller, a signal handler for example, runs in the middle of such a call."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - nothing else tells what runs
    while frame is not None:
        if frame.f_code.co_filename in _FILES:
            return True
        frame = frame.f_back
    return False
