"""Background: functions that run on a thread of their own, beside the heartbeats.

An exception that nobody expects ends the control thread, and this rank with it.  A function that
needs memory, or runs code of the user's, may raise anything.  So all such errors become one, which
every caller answers as it answers other failures of that work.

Python 3.12 starts no thread once a script has come to its end, and a script without close() is
closed behind that.  So one thread is held in reserve.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar, TypeVarTuple

import trio

from ftcomm.errors import FtcommError

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
# Names of the threads: those of trio's cache, which outlive their work, have none of their own.
BACKGROUND, RESERVE = "ftcomm-background", "ftcomm-reserve"
SHOWN_LENGTH = 300  # characters of an error's text: it goes to other processes
_reserve: "trio.lowlevel.RunVar[_Reserve | None]" = trio.lowlevel.RunVar("ftcomm_reserve", None)


class BackgroundError(Exception):
    """A function failed in the background; nothing came of it."""

    def __init__(self, cause: str) -> None:
        self.cause = cause  # what happened, for a message or the log
        super().__init__(cause)


async def run_in_background(
    function: Callable[[*Arguments], T],
    *arguments: *Arguments,
    abandon_on_cancel: bool = False,
) -> T:
    """Run a function on another thread and return what it returns.

    Raises:
        FtcommError, OSError: as `function` raises them.
        BackgroundError: it has raised something else, or there is no thread for it.
    """
    ended = Future[T]()

    def run() -> None:
        try:
            ended.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001 - for who waits
            ended.set_exception(error)

    await trio.lowlevel.checkpoint_if_cancelled()
    try:
        with trio.CancelScope(shield=not abandon_on_cancel):
            await _run(run)
        return ended.result()
    except (FtcommError, OSError):
        raise
    except MemoryError as error:
        raise BackgroundError(f"this process has no memory left for it: {error}") from error
    except Exception as error:
        words = f"{type(error).__name__}: {error}"[:SHOWN_LENGTH]
        raise BackgroundError(words) from error


async def _run(function: Callable[[], None]) -> None:
    """Return when a thread has run `function`, which raises nothing."""
    token, done = trio.lowlevel.current_trio_token(), trio.Event()

    def run() -> None:
        function()
        with contextlib.suppress(trio.RunFinishedError):  # nobody waits for it any more
            token.run_sync_soon(done.set)

    try:
        threading.Thread(target=run, name=BACKGROUND, daemon=True).start()
    except RuntimeError:  # there is no room for one more
        reserve = _reserve.get()
        if reserve is None:
            raise
        reserve.orders.put(run)
    await done.wait()


async def keep_reserve() -> None:
    """Hold a thread that runs functions for which none can be started, one after another."""
    reserve = _Reserve()
    try:
        reserve.thread.start()
    except RuntimeError:  # there is no room for this one either
        return
    _reserve.set(reserve)
    try:
        await trio.sleep_forever()
    finally:
        _reserve.set(None)
        reserve.end()


class _Reserve:
    """The thread in reserve, and its work."""

    def __init__(self) -> None:
        self.thread = threading.Thread(target=self._serve, name=RESERVE, daemon=True)
        self.orders = queue.Queue[Callable[[], None] | None]()

    def end(self) -> None:
        """End the thread; what still runs for the user may take long, and is left to itself."""
        is_idle = not self.orders.unfinished_tasks
        self.orders.put(None)
        if is_idle:
            self.thread.join()

    def _serve(self) -> None:
        while (order := self.orders.get()) is not None:
            order()
            self.orders.task_done()
