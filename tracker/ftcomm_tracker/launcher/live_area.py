"""The last lines of a terminal, which are drawn again below all that is printed."""

import re
import shutil
from collections.abc import Callable

MAX_BARS = 8  # of workers' progress; a terminal has 24 lines at least
_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x1f\x7f]")  # bars of several lines move


class LiveArea:
    """Progress bars of workers, one line each, and a status line below them.

    One thread may draw while another one says what to show.

    Attributes:
        changed: what is shown is not what should be.
    """

    def __init__(self, width: Callable[[], int] | None = None) -> None:
        """Lines are cut to `width()` columns; a longer one would take two rows of the screen."""
        self.changed = False
        self._width = _terminal_width if width is None else width
        self._bars: dict[str, bytes] = {}
        self._status = b""
        self._rows = 0

    def set_status(self, text: str) -> None:
        """Show `text` in the last line."""
        self.changed |= text.encode() != self._status
        self._status = text.encode()

    def set_bar(self, name: str, prefix: str, text: bytes) -> None:
        """Show `text` as bar `name`; without text the bar goes."""
        line = prefix.encode() + _CONTROL.sub(b"", text) if text else b""
        if line != self._bars.get(name, b""):
            self.changed = True
            self._bars.pop(name, None)
            if line:
                self._bars[name] = line

    def end(self) -> None:
        """Show nothing more."""
        self.changed |= self._rows > 0
        self._bars.clear()
        self._status = b""

    def erase(self) -> bytes:
        """Bytes that clear what is shown, and leave the cursor where it began."""
        rows, self._rows = self._rows, 0
        if rows <= 1:
            return b"\r\x1b[K" * rows
        return b"\r\x1b[%dA\x1b[J" % (rows - 1)

    def draw(self) -> bytes:
        """Bytes that show everything, with the cursor on the last line."""
        self.changed = False
        columns = max(self._width() - 1, 1)  # a full row would wrap
        present = dict(self._bars)  # in one step: another thread sets bars meanwhile
        bars = [line for _, line in sorted(present.items())][:MAX_BARS]
        lines = [*bars, self._status] if self._status else bars
        self._rows = len(lines)
        shown = [_cut(line, columns) for line in lines]
        return b"\r\x1b[K" + b"\n".join(shown) if shown else b""


def _cut(line: bytes, columns: int) -> bytes:
    return line.decode(errors="replace")[:columns].encode()


def _terminal_width() -> int:
    return shutil.get_terminal_size().columns
