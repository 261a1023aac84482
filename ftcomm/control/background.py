"""Background: functions that run on a thread of their own, beside the heartbeats.

An exception that nobody expects ends the control thread, and this rank with it.  A function that
needs memory, or runs code of the user's, may raise anything.  So all such errors become one, which
every caller answers as it answers other failures of that work.
"""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

from ftcomm.errors import FtcommError

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
SHOWN_LENGTH = 300  # characters of an error's text: it goes to other processes


class BackgroundError(Exception):
    """A function failed in the background; nothing came of it."""

    def __init__(self, cause: str) -> None:
        self.cause = cause  # what happened, for a message or the log
        super().__init__(cause)


async def run_in_background(
    function: Callable[[*Arguments], T],
    *arguments: *Arguments,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> T:
    """Run a function on another thread and return what it returns.

    Raises:
        FtcommError, OSError: as `function` raises them.
        BackgroundError: it has raised something else, or no thread could be started for it.
    """
    try:
        return await trio.to_thread.run_sync(
            function, *arguments, abandon_on_cancel=abandon_on_cancel, limiter=limiter
        )
    except (FtcommError, OSError):
        raise
    except MemoryError as error:
        raise BackgroundError(f"this process has no memory left for it: {error}") from error
    except Exception as error:
        words = f"{type(error).__name__}: {error}"[:SHOWN_LENGTH]
        raise BackgroundError(words) from error
