"""The host of a launched job, as its caller has it: started, its output passed on, ended."""

import codecs
import contextlib
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Self

from ftcomm.errors import ConfigError

_READ_BYTES = 1 << 16
END_WITHIN_S = 5.0  # once the workers have had their time to end, and are killed
_LOST = "workers' output is lost from here on"


class HostProcess:
    """A process that ends, with all that it has started, when the ``with`` block does."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], grace_s: float
    ) -> None:
        """Start this process's interpreter with the arguments `words`.

        Its workers have `grace_s` to end.

        Raises:
            ConfigError: it cannot be started.
        """
        self._end_within_s = grace_s + END_WITHIN_S
        if not sys.executable:
            raise ConfigError("launch needs a Python interpreter, and sys.executable names none")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and our own module
                [sys.executable, *words],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is the caller's; it ends the host in order
            )
        except OSError as error:
            raise ConfigError(f"cannot run {sys.executable}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end()
        finally:  # a second Ctrl-C does not wait
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()

    def pass_on_output(self) -> int:
        """Print what the host prints, as this process's output, until it ends; returns its status.

        Printed by the thread that calls, since a notebook shows it at the cell of that thread.
        """
        with selectors.DefaultSelector() as selector:
            for pipe, stream in (
                (self._process.stdout, "stdout"),
                (self._process.stderr, "stderr"),
            ):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, _Printer(stream))
            while selector.get_map():
                for key, _ in selector.select():
                    if not key.data.take(os.read(key.fd, _READ_BYTES)):
                        selector.unregister(key.fileobj)
        return self._process.wait()

    def _end(self) -> None:
        """Close the pipe that the host watches, and wait while it ends its workers."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._end_within_s)


class _Printer:
    """Decodes one stream and writes it to the caller's stream of that name, whatever it is now.

    As under ``ftcomm-tracker run``, no job ends because its output cannot be written.
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._is_lost = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, data: bytes) -> bool:
        """Print bytes; False at the end."""
        stream: IO[str] | None = getattr(sys, self._stream)
        text = self._decoder.decode(data, final=not data)
        if stream is not None and text and not self._is_lost:
            self._print(stream, text)
        return bool(data)

    def _print(self, stream: IO[str], text: str) -> None:
        try:
            _write(stream, text)
        except (OSError, ValueError) as error:  # a full disk, a reader that has gone; it is closed
            self._is_lost = True
            if not isinstance(error, BrokenPipeError) and sys.stderr not in (None, stream):
                with contextlib.suppress(OSError, ValueError):
                    _write(sys.stderr, f"sys.{self._stream} cannot be written ({error}); {_LOST}\n")


def _write(stream: IO[str], text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError as error:  # workers may print what this stream has no letters for
        encoded = text.encode(error.encoding, "backslashreplace")
        stream.write(encoded.decode(error.encoding))
    stream.flush()
