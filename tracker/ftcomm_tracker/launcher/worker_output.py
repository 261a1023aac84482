"""Output of a worker, from its pipes to its consumers.

A reader that sleeps in the kernel is woken by each write into its pipe, which costs the writer
more than the write.  So the pipes are large, and after a read this reader leaves them alone for
a moment: what comes meanwhile arrives together.
"""

import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import IO

import trio

from ftcomm_tracker.launcher.log_lines import LineSplitter, last_state
from ftcomm_tracker.launcher.processes.child_process import Child

if sys.platform == "linux":
    import fcntl

PIPE_BYTES = 1 << 20  # the most that Linux grants by default; elsewhere the system's own size
_STDERR = 2
HOLD_S = 2.0  # for a traceback: then its process does not end by it, or takes its time
DRAIN_DEADLINE_S = 1.0  # for the end of a dead worker's pipes, which others may hold open
PAUSE_S = 0.005  # in which a worker that only prints writes half a pipe; nobody sees it


# take whole lines of stream 1 or 2, which end with a newline; may wait
ShowLines = Callable[[int, bytes], Awaitable[None]]
# take the present text of a line that its worker overwrites; empty: none any more
ShowUnfinished = Callable[[int, bytes], None]


async def forward_output(
    child: Child,
    show: ShowLines,
    unfinished: ShowUnfinished | None = None,
    *,
    holds_last: bool = False,
) -> None:
    """Pass on what the worker prints until both its pipes end.

    With `holds_last` a traceback that is the last of it is left in `child.traceback`.

    What it has left running elsewhere may hold them open.  So some time after its end they are read
    once more, and then left.  All that was read is passed on, however slow its consumer is.
    """
    forwarders = []
    for number, pipe in ((1, child.process.stdout), (2, child.process.stderr)):
        assert pipe is not None
        forwarders.append(_Forwarder(child, number, _large(pipe), show, unfinished, holds_last))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_waits, child, forwarders)
        async with trio.open_nursery() as readers:
            for forwarder in forwarders:
                readers.start_soon(forwarder.run)
        nursery.cancel_scope.cancel()


async def _end_waits(child: Child, forwarders: "Sequence[_Forwarder]") -> None:
    await child.ended.wait()
    await trio.sleep(DRAIN_DEADLINE_S)
    for forwarder in forwarders:
        forwarder.end_wait()


def lines_of(data: bytes) -> list[str]:
    """The lines that a `ShowLines` is given, as text."""
    return [last_state(line).decode(errors="replace") for line in data[:-1].split(b"\n")]


def _large(pipe: IO[bytes]) -> IO[bytes]:
    """`pipe`, read without waiting and as large as may be.

    It keeps its one descriptor: a launcher with many workers may have none left.
    """
    os.set_blocking(pipe.fileno(), False)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # the user's pipes may have used up their share
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return pipe


class _Forwarder:
    """One stream of a worker."""

    def __init__(
        self,
        child: Child,
        number: int,
        pipe: IO[bytes],
        show: ShowLines,
        unfinished: ShowUnfinished | None,
        holds_last: bool,
    ) -> None:
        self._child = child
        self._number = number
        self._pipe = pipe
        self._show = show
        self._unfinished = unfinished
        self._holds_last = holds_last
        self._splitter = LineSplitter()
        self._shown = b""
        self._waits = True
        self._wait = trio.CancelScope()

    def end_wait(self) -> None:
        """Take what is in the pipe, and leave it."""
        self._waits = False
        self._wait.cancel()

    async def run(self) -> None:
        with self._pipe:
            while self._waits and (data := await self._receive()):
                await self._take(data)
                if len(data) < PIPE_BYTES // 2:
                    await trio.sleep(PAUSE_S)
            if not self._waits:
                await self._take(self._left_in_the_pipe())
            await self._pass_on(self._splitter.end())
        self._pass_on_unfinished(b"")

    async def _receive(self) -> bytes:
        with trio.CancelScope() as self._wait:
            await trio.lowlevel.checkpoint()
            while True:
                try:
                    return os.read(self._pipe.fileno(), PIPE_BYTES)
                except BlockingIOError:
                    await self._wait_readable()
        return b""

    async def _wait_readable(self) -> None:
        if self._number == _STDERR and self._child.traceback.holds:
            with trio.move_on_after(HOLD_S):
                await trio.lowlevel.wait_readable(self._pipe.fileno())
                return
            with trio.CancelScope(shield=True):  # what was read is passed on
                await self._show_lines(self._child.traceback.release())
        await trio.lowlevel.wait_readable(self._pipe.fileno())

    def _left_in_the_pipe(self) -> bytes:
        with contextlib.suppress(BlockingIOError):  # empty, and others could still write
            return os.read(self._pipe.fileno(), PIPE_BYTES)
        return b""

    async def _take(self, data: bytes) -> None:
        await self._pass_on(self._splitter.split(data))
        self._pass_on_unfinished(self._splitter.unfinished(prompts=self._child.has_input))

    async def _pass_on(self, lines: bytes) -> None:
        if not lines:
            return
        tail = self._child.tail
        newest = lines[:-1].rsplit(b"\n", tail.maxlen or -1)
        tail.extend(last_state(line).decode(errors="replace") for line in newest)
        if self._number == _STDERR:
            lines = self._child.traceback.read(lines)
            if not self._holds_last:
                lines += self._child.traceback.release()
        await self._show_lines(lines)

    async def _show_lines(self, lines: bytes) -> None:
        if lines:
            await self._show(self._number, lines)

    def _pass_on_unfinished(self, text: bytes) -> None:
        if self._unfinished is not None and text != self._shown:
            self._shown = text
            self._unfinished(self._number, text)
