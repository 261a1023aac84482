"""Standard streams of a command that may be closed, full, or without a reader.

A shell can start a command with a standard stream closed (``>&-``).  Python then has no
``sys.stdout``, and the next socket or file that is opened gets the stream's number.  So each
missing stream is opened on the null device before anything else is.

Nothing that a command writes to standard error may end it: nobody is left to be told.  What it
cannot write to standard output is an error of the command, except that a reader who has left, as
in ``| head``, wants no more.
"""

import errno
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

UNWRITTEN = 1  # exit status of a command whose output could not be written
INTERRUPTED = 128 + signal.SIGINT  # exit status of a command that Ctrl-C has ended


class StandardOutputError(OSError):
    """Standard output cannot be written: the disk is full, say."""

    def __str__(self) -> str:
        return f"standard output cannot be written: {self.strerror}"


class _Guarded(io.FileIO):
    """A standard stream that fails once at most, and takes and drops all that comes after."""

    failed = False

    def write(self, data: "ReadableBuffer", /) -> int:
        if not self.failed:
            try:
                return super().write(data)
            except OSError as error:
                # What is still buffered is written again at exit, and would fail again there.
                self.failed = True
                self._tell(error)
        return memoryview(data).nbytes

    def _tell(self, error: OSError) -> None:
        if self.fileno() == 1 and error.errno != errno.EPIPE:
            raise StandardOutputError(error.errno, error.strerror)


def hold_standard_streams() -> None:
    """Open each closed standard stream on the null device, and guard what is written to two."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = _guarded(1, sys.stdout)
    sys.stderr = _guarded(2, sys.stderr)


def reader_has_left() -> bool:
    """True once something that was written to standard output was dropped."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _Guarded) and raw.failed


def _guarded(number: int, given: TextIO | None) -> TextIO:
    encoding = None if given is None else given.encoding
    return io.TextIOWrapper(
        io.BufferedWriter(_Guarded(number, "wb", closefd=False)),
        encoding=encoding,
        errors="backslashreplace",  # a name in another encoding must not end a command either
        line_buffering=number == 2 or os.isatty(number),
    )
