"""Errors of a script, read from its error stream: pure.

The interpreter prints the traceback of an uncaught error, also of one before `import ftcomm`, such
as a syntax error.  That text is the one place where every script's error can be seen.  It is held
back at the end of a process's output, so that workers that fail by the same error show it once.
"""

import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ftcomm import errors
from ftcomm.diagnostics.script_failures import OF_THE_ENVIRONMENT, without_addresses

MAX_TRACEBACK_LINES = 400  # the interpreter abbreviates recursion; a longer one is not compared
MAX_LINES_AFTER = 20  # between a traceback and the process's end: warnings, unraisable errors

_HEADER = "Traceback (most recent call last):"
_GROUP_HEADER = f"  + Exception Group {_HEADER}"
_GROUP_MARGIN = "  | "  # before each line of a group's own traceback
_PART_OF_GROUP = re.compile(r"\s+[|+]")
# The line of an error within a group, at any depth.
_MEMBER = re.compile(r"\s{4,}\| (?!(?:Exception Group )?Traceback \()(?P<text>\S.*)")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+)')
# Before its first frame a script's own syntax error has no header.
_SYNTAX = re.compile(r'  File ".*", line \d+$')
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_NO_SCRIPT = re.compile(r"\S*python[\d.]*: (can't open file|No module named|Error while finding) ")
_RANK = re.compile(r"^(?:\[rank\d+\]: )+")  # torch.distributed puts it before each line
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MAY_BEGIN = (_HEADER.encode(), b'  File "')
_USAGE = 2  # exit status of the interpreter, argparse and click for a wrong command line
_STATUSES = (1, errors.FtcommError.exit_code)  # by which an uncaught error ends a process


@dataclass(frozen=True, slots=True)
class ScriptError:
    """An error that ended a script; equal for the same error at the same line.

    Attributes:
        text: the last line of the traceback, without memory addresses.
        place: file and line of the frame that raised it; empty if there was none.
        behind: errors that it was made of: those that it is chained to, and a group's members.
    """

    text: str
    place: str = ""
    behind: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.text} ({self.place})" if self.place else self.text

    @property
    def may_pass(self) -> bool:
        """True of an `OSError` of Python's, also behind it: all ranks may meet it only now."""
        return any(map(_is_os_error, (self.text, *self.behind)))


class TracebackReader:
    """Keeps the newest traceback of a stream of lines, and holds it back while it is the newest.

    Attributes:
        lines: of the traceback, and of those that it is chained to; without memory addresses.
        essential: how many of them there are up to the error's own line; 0 before that line.
        holds: lines are held back.
        causes: errors that the newest one is chained to.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.essential = 0
        self._place = self._text = ""
        self._members: list[str] = []
        self.causes: list[str] = []
        self._is_group = False
        self._last = ""
        self._held: list[bytes] = []
        self.holds = False

    def read(self, data: bytes) -> bytes:
        """Take whole lines, and return those to show: all but the newest traceback."""
        if not self._is_reading and not any(mark in data for mark in _MAY_BEGIN):
            self._last = next(_texts_of(data[data[:-1].rfind(b"\n") + 1 :]), "") or self._last
            return data
        shown: list[bytes] = []
        for line in data.splitlines(keepends=True):
            text = next(_texts_of(line), "")
            begins = self._read_line(text)
            if begins or not self._is_reading:
                shown.append(self.release())
                self.holds = begins
            (self._held if self.holds else shown).append(line)
            self._last = text.strip() or self._last
        return b"".join(shown)

    def release(self) -> bytes:
        """Return what is held back, to be shown."""
        held, self._held, self.holds = self._held, [], False
        return b"".join(held)

    def error_of(self, status: int) -> ScriptError | None:
        """The error by which the script ended with exit status `status`, if it is known."""
        if status in _STATUSES and self.is_whole:
            behind = (*self.causes, *self._members)
            if any(map(_is_of_the_environment, (self._text, *behind))):
                return None
            members = f" [{'; '.join(self._members)}]" if self._members else ""
            return ScriptError(self._text + members, self._place, behind)
        if status == _USAGE or (status == 1 and _NO_SCRIPT.match(self._last)):
            return ScriptError(self._last) if self._last else None
        return None

    @property
    def is_whole(self) -> bool:
        """True if the newest output is a traceback, up to its error."""
        return self.essential > 0 and self._is_reading

    @property
    def is_of_ftcomm(self) -> bool:
        """True if the newest output is the traceback of an `FtcommError`."""
        return self.is_whole and self._text.startswith(f"{errors.__name__}.")

    @property
    def _is_reading(self) -> bool:
        """True from a traceback's beginning until too much has followed it."""
        after = len(self.lines) - self.essential if self.essential else 0
        return 0 < len(self.lines) <= MAX_TRACEBACK_LINES and after <= MAX_LINES_AFTER

    def _read_line(self, text: str) -> bool:
        """Take a line in; True if a traceback begins that is not chained to the one before."""
        in_frames = self._is_reading and not self.essential
        is_header = text in (_HEADER, _GROUP_HEADER)
        begins = False
        if is_header or (_SYNTAX.match(text) and not in_frames):
            begins = self._begin(is_group=text == _GROUP_HEADER)
        elif not self._is_reading:
            return False
        self.lines.append(text)
        if self.essential:
            self._read_member(text)
        elif not is_header:
            self._read_frame(text.removeprefix(_GROUP_MARGIN) if self._is_group else text)
        return begins

    def _read_frame(self, text: str) -> None:
        """Read a line between the header and the error's own line, or that one."""
        if frame := _FRAME.match(text):
            self._place = f"{frame['file']}:{frame['line']}"
        elif text and not text.startswith(" "):
            self.essential = len(self.lines)
            self._text = text

    def _read_member(self, text: str) -> None:
        """Read a line behind the error's own: a group's members belong to its error."""
        if not (self._is_group and self.essential == len(self.lines) - 1):
            return
        if _PART_OF_GROUP.match(text):
            self.essential = len(self.lines)
            if member := _MEMBER.match(text):
                self._members.append(member["text"])

    def _begin(self, *, is_group: bool) -> bool:
        """Begin a traceback; False if it is chained to the one before."""
        written = [line for line in self.lines[-3:] if line]
        is_chained = self._is_reading and bool(written) and written[-1] in _CHAINED
        if not is_chained:
            self.lines = []
        self.causes = [*self.causes, self._text, *self._members] if is_chained else []
        self.essential = 0
        self._place = self._text = ""
        self._members = []
        self._is_group = is_group
        return not is_chained


def _is_os_error(text: str) -> bool:
    kind = getattr(builtins, text.partition(":")[0], None)
    return isinstance(kind, type) and issubclass(kind, OSError)


def _is_of_the_environment(text: str) -> bool:
    return text.partition(":")[0].rpartition(".")[2].strip() in OF_THE_ENVIRONMENT


_Lines = tuple[str, ...]


class EqualTracebacks:
    """Tracebacks that ended processes: those that are equal are shown once, for all of them."""

    def __init__(self) -> None:
        """Begin without any."""
        self._last: dict[str, tuple[_Lines, bytes]] = {}  # by worker, of its process before
        self._waiting: dict[_Lines, tuple[bytes, list[str]]] = {}

    def add(self, worker_id: str, reader: TracebackReader) -> bytes:
        """Take what `reader` holds at its process's end; returns what is to be shown at once.

        A traceback that ended the worker's process before too is not shown again.
        """
        held = reader.release()
        if not held or not reader.is_whole:
            return held
        text = tuple(reader.lines[: reader.essential])
        rest = b"".join(held.splitlines(keepends=True)[len(text) :])  # warnings of the interpreter
        before, self._last[worker_id] = self._last.get(worker_id), (text, rest)
        if before is not None and before[0] == text:
            return b"" if before[1] == rest else rest
        if text not in self._waiting:
            self._waiting[text] = held, [worker_id]
            return b""
        first, workers = self._waiting[text]
        workers.append(worker_id)
        return b"" if first.endswith(rest) else rest

    def take(self, number: int = 1) -> list[tuple[bytes, list[str]]]:
        """The tracebacks that `number` workers or more have, with those: they are to be shown."""
        ready = [text for text, (_, workers) in self._waiting.items() if len(workers) >= number]
        return [self._waiting.pop(text) for text in ready]


def _texts_of(data: bytes) -> Iterator[str]:
    """The lines of `data` as text that is the same in each process."""
    for line in data.splitlines():
        text = _RANK.sub("", _COLOUR.sub("", line.decode(errors="replace")))
        yield without_addresses(text).rstrip()
