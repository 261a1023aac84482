"""What the launcher prints: workers' lines with their rank, its own words, a live status line.

Writing to a terminal or a pipe can block for as long as its reader likes; the tracker in the
same process must go on.  So one task writes, in a helper thread, what the others have queued,
and a worker whose output is not being read waits for the reader as it would without us.
"""

from collections import deque
from typing import BinaryIO

import trio

from ftcomm_tracker.standard_streams import StandardOutputError

MAX_QUEUED_BYTES = 1 << 20  # of workers' output; beyond it the workers wait
_CLEAR_LINE = b"\r\x1b[K"


class Console:
    """Two output streams that many tasks share; `run` does the writing.

    Attributes:
        unwritten: workers' output was lost, and not because its reader wanted no more.
    """

    def __init__(self, out: BinaryIO, err: BinaryIO, *, live: bool) -> None:
        """Write workers' output to `out` and `err`, and with `live` keep a status line on `err`."""
        self._streams = {1: out, 2: err}
        self._live = live
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued_bytes = 0
        self._status = b""
        self._shown = b""
        self._wake = trio.Event()
        self._room = trio.Event()
        self._closing = False
        self.unwritten = False

    async def show(self, prefix: str, number: int, lines: list[bytes]) -> None:
        """Print a worker's lines on stream `number` (1 or 2), each with its prefix."""
        while self._queued_bytes > MAX_QUEUED_BYTES and not self._closing:
            await self._room.wait()
        head = prefix.encode()
        self._put(number, b"".join(head + line + b"\n" for line in lines))

    def say(self, text: str) -> None:
        """Print the launcher's own words, on the error stream."""
        self._put(2, b"".join(f"ftcomm: {line}\n".encode() for line in text.splitlines()))

    def status(self, text: str) -> None:
        """Replace the live status line; nothing happens without one."""
        if self._live and text.encode() != self._status:
            self._status = text.encode()
            self._wake.set()

    def close(self) -> None:
        """Let `run` return once everything queued is written."""
        self._closing = True
        self._status = b""
        self._wake.set()
        self._room.set()

    async def run(self) -> None:
        """Write until `close`."""
        while True:
            if self._queue or self._status != self._shown:
                await self._write_queued()
            elif self._closing:
                return
            else:
                self._wake = trio.Event()
                await self._wake.wait()

    def _put(self, number: int, data: bytes) -> None:
        self._queue.append((number, data))
        self._queued_bytes += len(data)
        self._wake.set()

    async def _write_queued(self) -> None:
        batch, self._queue = self._queue, deque()
        clear, status = bool(self._shown), self._status
        await trio.to_thread.run_sync(self._write, batch, clear, status, abandon_on_cancel=True)
        self._shown = status
        self._queued_bytes -= sum(len(data) for _, data in batch)
        room, self._room = self._room, trio.Event()
        room.set()

    def _write(self, batch: deque[tuple[int, bytes]], clear: bool, status: bytes) -> None:
        """In the helper thread."""
        if clear:
            self._write_to(2, _CLEAR_LINE)
        for number, data in batch:
            self._write_to(number, data)
        if status:
            self._write_to(2, _CLEAR_LINE + status)

    def _write_to(self, number: int, data: bytes) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        try:
            stream.write(data)
            stream.flush()
        except (OSError, ValueError) as error:
            del self._streams[number]  # the job goes on
            if isinstance(error, StandardOutputError):
                self.unwritten = True
                text = f"ftcomm: {error}; workers' output is lost from here on\n"
                self._write_to(2, text.encode())
