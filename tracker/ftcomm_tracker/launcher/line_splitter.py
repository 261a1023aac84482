"""A stream of a worker's output cut into lines: pure."""

from ftcomm_tracker.launcher.log_lines import last_state

MAX_LINE_BYTES = 64 * 1024  # longer lines are printed in pieces, so that memory stays bounded


class LineSplitter:
    """Collects what arrives until a line is whole."""

    def __init__(self) -> None:
        self._rest = b""

    def split(self, data: bytes) -> bytes:
        """The lines that `data` completes, each with its newline; maybe none."""
        whole, newline, rest = data.rpartition(b"\n")
        lines = self._rest + whole + newline if newline else b""
        self._rest = rest if newline else self._rest + rest
        if b"\r" in self._rest:  # of a line that is overwritten, what is overwritten goes
            ended = b"\r" if self._rest.endswith(b"\r") else b""
            self._rest = b"\r" + last_state(self._rest) + ended
        if len(self._rest) > MAX_LINE_BYTES:
            lines += self.end()
        return lines

    def end(self) -> bytes:
        """Return the incomplete rest as a line."""
        rest, self._rest = self._rest, b""
        return rest + b"\n" if rest else b""

    @property
    def overwritten(self) -> bytes:
        """The present text of a line that its worker overwrites, such as a progress bar."""
        return last_state(self._rest) if b"\r" in self._rest else b""
