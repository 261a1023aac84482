"""Output of the launcher: workers' lines with their rank, its own messages, a live area.

Writing to a terminal or a pipe can block for as long as its reader likes; the tracker in the
same process must go on.  So one task writes, in a helper thread, what the others have queued.

A worker waits while more than `MAX_QUEUED_BYTES` are queued, so a slow reader loses nothing.  A
reader that takes nothing at all for `READER_PATIENCE_S`, such as a terminal after Ctrl-S, does not
hold the job up: what the workers print from then on is dropped until it reads again, and counted.
"""

import errno
import logging
import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from ftcomm.config.plurals import in_short
from ftcomm_tracker.launcher.live_area import LiveArea
from ftcomm_tracker.launcher.log_files import LogFiles
from ftcomm_tracker.launcher.log_lines import LineFormat, severity
from ftcomm_tracker.standard_streams import StandardOutputError

MAX_QUEUED_BYTES = 16 << 20  # of workers' output, before they wait for the reader
READER_PATIENCE_S = 10.0  # a scheduler's or a disk's pause is shorter
_BATCH_BYTES = 1 << 20  # for the helper thread at once; then workers that wait may go on
_WRITE_BYTES = 64 << 10  # at once; a reader that takes so little in its patience is seen to read

Write = Callable[[int, bytes | memoryview], None]


@dataclass(frozen=True, slots=True)
class _OfWorker:
    """Whole lines of a worker, rendered where they are written."""

    worker_id: str
    number: int
    data: bytes


class Console:
    """Two output streams that many tasks share; `run` does the writing.

    Attributes:
        unwritten: workers' output was lost, and not because its reader wanted no more.
    """

    def __init__(
        self,
        form: LineFormat,
        *,
        write: Write,
        area: LiveArea | None = None,
        files: LogFiles | None = None,
        patience_s: float = READER_PATIENCE_S,
        shown: int = logging.INFO,
    ) -> None:
        """Write to two streams.

        Args:
            form: of all lines.
            write: writes bytes to stream 1 or 2, and may block.
            area: at the end of stream 2, if that is a terminal.
            files: that keep everything too.
            patience_s: for a reader that takes nothing.
            shown: the least severity of the command's own messages that are printed, as in
                `logging`; files have all of them.
        """
        self.unwritten = False
        self._form = form
        self._write_some = write
        self._area = area
        self._files = files
        if files is not None:
            files.complain = self.warn
        self._patience_s = patience_s
        self._shown = shown
        self._open = {1, 2}
        self._queue: deque[tuple[_OfWorker | bytes, int]] = deque()
        self._queued_bytes = 0
        self._writes = 0
        self._stuck = False
        self._dropped_bytes = 0
        self._wake = trio.Event()
        self._room = trio.Event()
        self._closing = False
        self._finished = trio.Event()

    async def show(self, worker_id: str, number: int, data: bytes) -> None:
        """Print a worker's lines on stream `number` (1 or 2); `data` ends with a newline."""
        self._keep([worker_id], number, data)
        while self._queued_bytes > MAX_QUEUED_BYTES and not self._closing:
            if self._stuck:
                self._dropped_bytes += len(data)
                return
            writes = self._writes
            with trio.move_on_after(self._patience_s) as patience:
                await self._room.wait()
            self._stuck = patience.cancelled_caught and writes == self._writes
        self._put(_OfWorker(worker_id, number, data), len(data))

    def show_of_all(self, worker_ids: Sequence[str], number: int, data: bytes) -> None:
        """Print lines that each of these workers wrote, at once: they are few."""
        if not data:
            return
        self._keep(worker_ids, number, data)
        self._put(_OfWorker(in_short(worker_ids), number, data), len(data))

    def begin(self, worker_id: str, text: str) -> None:
        """Note in the file of a worker's output, if there is one, that another process begins."""
        if self._files is not None:
            self._files.begin(worker_id, text)

    def show_unfinished(self, worker_id: str, number: int, text: bytes) -> None:
        """Show a line that its worker overwrites, such as a progress bar; empty: none any more."""
        if self._area is not None:
            self._area.set_bar(f"{worker_id} {number}", f"[{worker_id}] ", text)
            self._wake.set()

    def say(self, text: str, level: str = "INFO") -> None:
        """Print a message of the command on the error stream, if its level is shown."""
        if self._files is not None:
            self._files.own_line(level, text)
        if severity(level) >= self._shown:
            data = self._form.own(level, text)
            self._put(data, len(data))

    def announce(self, text: str) -> None:
        """Print how the job begins, or ends well."""
        self.say(text, "NOTICE")

    def warn(self, text: str) -> None:
        """Print what somebody may have to act on."""
        self.say(text, "WARNING")

    def status(self, text: str) -> None:
        """Replace the live status line; nothing happens without one."""
        if self._area is not None:
            self._area.set_status(text)
            self._wake.set()

    def close(self) -> None:
        """Let `run` return once everything queued is written."""
        self._closing = True
        if self._area is not None:
            self._area.end()
        self._wake.set()
        self._room.set()

    async def finish(self, patience_s: float) -> None:
        """Close, and return when all is written, or when nothing has been for `patience_s`."""
        self.close()
        while not self._finished.is_set():
            writes = self._writes
            with trio.move_on_after(patience_s) as patience:
                await self._finished.wait()
            if patience.cancelled_caught and writes == self._writes:
                return

    async def run(self) -> None:
        """Write until `close`."""
        while True:
            if self._queue or (self._area is not None and self._area.changed):
                await self._write_queued()
            elif self._closing:
                self._finished.set()
                return
            else:
                self._wake = trio.Event()
                await self._wake.wait()

    def _keep(self, worker_ids: Sequence[str], number: int, data: bytes) -> None:
        if self._files is not None:
            for worker_id in worker_ids:
                self._files.of_worker(worker_id, number, data)

    def _put(self, item: _OfWorker | bytes, nbytes: int) -> None:
        self._queue.append((item, nbytes))
        self._queued_bytes += nbytes
        self._wake.set()

    async def _write_queued(self) -> None:
        batch: list[_OfWorker | bytes] = []
        nbytes = 0
        while self._queue and nbytes < _BATCH_BYTES:
            item, size = self._queue.popleft()
            batch.append(item)
            nbytes += size
        await trio.to_thread.run_sync(self._write, batch, abandon_on_cancel=True)
        self._queued_bytes -= nbytes
        self._stuck = False
        if self._dropped_bytes:
            dropped, self._dropped_bytes = self._dropped_bytes, 0
            self.warn(
                f"{dropped} bytes of workers' output were dropped: no process read it for"
                f" {self._patience_s:g} s"
            )
        room, self._room = self._room, trio.Event()
        room.set()

    def _write(self, batch: list[_OfWorker | bytes]) -> None:
        """In the helper thread."""
        if self._area is not None:
            self._write_to(2, self._area.erase())
        for item in batch:
            match item:
                case _OfWorker(worker_id, number, data):
                    self._write_to(number, self._form.of_worker(worker_id, number, data))
                case own:
                    self._write_to(2, own)
        if self._area is not None:
            self._write_to(2, self._area.draw())

    def _write_to(self, number: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view and number in self._open:
                self._write_some(number, view[:_WRITE_BYTES])
                self._writes += 1
                view = view[_WRITE_BYTES:]
        except OSError as error:
            self._open.discard(number)  # the job goes on
            if number == 1 and error.errno != errno.EPIPE:  # not as in `| head`
                self.unwritten = True
                lost = StandardOutputError(error.errno, error.strerror)
                text = f"{lost}; workers' output is lost from here on"
                self._write_to(2, self._form.own("ERROR", text))


def write_all(number: int, data: bytes | memoryview) -> None:
    """Write all of `data` to a descriptor, also to one that somebody has made non-blocking.

    Raises:
        OSError: it cannot be written.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(number, view) :]
        except BlockingIOError:
            poller = select.poll()
            poller.register(number, select.POLLOUT)
            poller.poll()
