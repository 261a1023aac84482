"""Lines of `run`, `serve` and `supervise` as text or JSON: a pure rendering.

A line of a command's own says when it was written and how grave it is.  A worker's line keeps its
bytes: as text it stands behind the worker's id, as JSON it is a field.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

FORMATS = ("text", "json")
NOTICE = logging.INFO + 5  # how the job begins and ends: shown unless told otherwise
_LEVELS = {**logging.getLevelNamesMapping(), "NOTICE": NOTICE}
_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m"}
_NO_COLOUR = "\x1b[0m"
_STREAMS = {1: "stdout", 2: "stderr"}
MAX_LINE_BYTES = 64 * 1024  # longer lines are printed in pieces, so that memory stays bounded


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Format of lines.

    Attributes:
        as_json: one JSON object a line, instead of text.
        clock: seconds since 1970.
        dated: a message of the command in text has its time and level.
        coloured: warnings and errors in text have a colour.
    """

    as_json: bool
    clock: Callable[[], float]
    dated: bool = True
    coloured: bool = False

    def own(self, level: str, text: str) -> bytes:
        """Format a message of the command; `level` is named as in `logging`."""
        moment = datetime.fromtimestamp(self.clock(), tz=UTC)
        if self.as_json:
            stamp = moment.isoformat(timespec="milliseconds")
            return _json({"time": stamp, "level": level.lower(), "message": text})
        head = ""
        if self.dated:
            stamp = moment.astimezone().replace(tzinfo=None).isoformat(" ", "milliseconds")
            head = f"{stamp} {level.upper()} "
        colour = _COLOURS.get(level, "") if self.coloured else ""
        end = _NO_COLOUR if colour else ""
        lines = [f"{colour}{head}ftcomm: {line}{end}\n" for line in text.splitlines()]
        return "".join(lines).encode(errors="backslashreplace")

    def of_worker(self, worker_id: str, number: int, data: bytes) -> bytes:
        """Whole lines that a worker wrote on stream `number`; `data` ends with a newline."""
        data = self.in_own_file(worker_id, number, data)
        if self.as_json:
            return data
        head = f"[{worker_id}] ".encode()
        return head + data[:-1].replace(b"\n", b"\n" + head) + b"\n"

    def in_own_file(self, worker_id: str, number: int, data: bytes) -> bytes:
        """The same for a file that holds nothing else."""
        if b"\r" in data:
            data = b"".join(last_state(line) + b"\n" for line in data[:-1].split(b"\n"))
        return self._json_of_worker(worker_id, number, data) if self.as_json else data

    def _json_of_worker(self, worker_id: str, number: int, data: bytes) -> bytes:
        stamp = datetime.fromtimestamp(self.clock(), tz=UTC).isoformat(timespec="milliseconds")
        fields = {"time": stamp, "worker": worker_id, "stream": _STREAMS[number]}
        lines = data[:-1].split(b"\n")
        return b"".join(_json({**fields, "line": line.decode(errors="replace")}) for line in lines)


def severity(level: str) -> int:
    """The number of a level's name, as in `logging`; that of INFO for an unknown one."""
    return _LEVELS.get(level, logging.INFO)


def last_state(line: bytes) -> bytes:
    """Return the text that a terminal shows of `line`, which carriage returns overwrite."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _json(document: dict[str, str]) -> bytes:
    return json.dumps(document).encode() + b"\n"


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

    def unfinished(self, *, prompts: bool) -> bytes:
        """The present text of a line that its worker overwrites, such as a progress bar.

        With `prompts` that of any line: the worker may wait for an answer.
        """
        return last_state(self._rest) if prompts or b"\r" in self._rest else b""
