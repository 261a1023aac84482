"""Errors of a script, read from its error stream: pure.

The interpreter prints the traceback of an uncaught error, also of one before `import ftcomm`, such
as a syntax error.  That text is the one place where every script's error can be seen.  If the next
process of the worker fails by the same error, its traceback is not shown again.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ftcomm import errors

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
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_RANK = re.compile(r"^(?:\[rank\d+\]: )+")  # torch.distributed puts it before each line
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MAY_BEGIN = (_HEADER.encode(), b'  File "')
_USAGE = 2  # exit status of the interpreter, argparse and click for a wrong command line
_STATUSES = (1, errors.FtcommError.exit_code)  # by which an uncaught error ends a process
# Errors of the environment, which another process may not meet: they count as deaths.
_OF_THE_ENVIRONMENT = frozenset(
    kind.__name__
    for kind in (
        BlockingIOError,
        BrokenPipeError,
        ConnectionAbortedError,
        ConnectionError,
        ConnectionRefusedError,
        ConnectionResetError,
        InterruptedError,
        KeyboardInterrupt,
        MemoryError,
        TimeoutError,
        errors.AuthenticationError,
        errors.EvictedError,
        errors.ProtocolError,
        errors.ThreadLimitError,
        errors.TrackerLostError,
    )
) | {"gaierror", "herror", "timeout", "HTTPError", "URLError", "OutOfMemoryError"}


@dataclass(frozen=True, slots=True)
class ScriptError:
    """An error that ended a script; equal for the same error at the same line.

    Attributes:
        text: the last line of the traceback, without memory addresses.
        place: file and line of the frame that raised it; empty if there was none.
    """

    text: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.place})" if self.place else self.text


class TracebackReader:
    """Keeps the newest traceback of a stream of lines.

    Attributes:
        lines: of the traceback, and of those that it is chained to; without memory addresses.
        essential: how many of them there are up to the error's own line; 0 before that line.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.essential = 0
        self._place = ""
        self._text = ""
        self._members: list[str] = []
        self._is_group = False
        self._last = ""

    def read(self, data: bytes) -> None:
        """Take whole lines."""
        if not self._is_reading and not any(mark in data for mark in _MAY_BEGIN):
            self._last = next(_texts_of(data[data[:-1].rfind(b"\n") + 1 :]), "") or self._last
            return
        for text in _texts_of(data):
            self._read_line(text)
            self._last = text.strip() or self._last

    def error_of(self, status: int) -> ScriptError | None:
        """The error by which the script ended with exit status `status`, if it is known."""
        if status in _STATUSES and self.essential and self._is_reading:
            if any(map(_is_of_the_environment, (self._text, *self._members))):
                return None
            members = f" [{'; '.join(self._members)}]" if self._members else ""
            return ScriptError(self._text + members, self._place)
        if status == _USAGE or (status == 1 and _NO_SCRIPT.match(self._last)):
            return ScriptError(self._last) if self._last else None
        return None

    @property
    def is_of_ftcomm(self) -> bool:
        """True if the newest output is the traceback of an `FtcommError`."""
        if not (self.essential and self._is_reading):
            return False
        return self._text.startswith(f"{errors.__name__}.")

    @property
    def _is_reading(self) -> bool:
        """True from a traceback's beginning until too much has followed it."""
        after = len(self.lines) - self.essential if self.essential else 0
        return 0 < len(self.lines) <= MAX_TRACEBACK_LINES and after <= MAX_LINES_AFTER

    def _read_line(self, text: str) -> None:
        in_frames = self._is_reading and not self.essential
        is_header = text in (_HEADER, _GROUP_HEADER)
        if is_header or (_SYNTAX.match(text) and not in_frames):
            self._begin(is_group=text == _GROUP_HEADER)
        elif not self._is_reading:
            return
        self.lines.append(text)
        if is_header:
            return
        if self.essential:
            self._read_member(text)
        else:
            self._read_frame(text.removeprefix(_GROUP_MARGIN) if self._is_group else text)

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

    def _begin(self, *, is_group: bool) -> None:
        written = [line for line in self.lines[-3:] if line]
        if not (self._is_reading and written and written[-1] in _CHAINED):
            self.lines = []
        self.essential = 0
        self._place = self._text = ""
        self._members = []
        self._is_group = is_group


def _is_of_the_environment(text: str) -> bool:
    return text.partition(":")[0].rpartition(".")[2].strip() in _OF_THE_ENVIRONMENT


class RepeatFilter:
    """Takes a known traceback out of a stream of lines; what is most like it is held a moment."""

    def __init__(self, known: TracebackReader) -> None:
        """Hold back `known`, if it is whole."""
        self._known = known.lines if known.essential else []
        self._essential = known.essential
        self._held: list[bytes] = []
        self._matched = 0
        self.dropped = False

    def pass_on(self, data: bytes) -> bytes:
        """Return the lines to show; `data` are whole lines."""
        if not self._known or (not self._matched and self._known[0].encode() not in data):
            return data
        shown: list[bytes] = []
        for line in data.splitlines(keepends=True):
            self._pass_line(line, shown)
        return b"".join(shown)

    def end(self) -> bytes:
        """Return what is held at the stream's end."""
        held, self._held, self._matched = self._held, [], 0
        return b"".join(held)

    def _pass_line(self, line: bytes, shown: list[bytes]) -> None:
        text = next(_texts_of(line), "")
        if self._matched and not self._goes_on(text):
            shown.append(self.end())
        if not self._goes_on(text):
            shown.append(line)
            return
        self._matched += 1
        if self._matched < self._essential:
            self._held.append(line)
        else:  # the whole traceback is known; what follows it in the same way is too
            self._held.clear()
            self.dropped = True

    def _goes_on(self, text: str) -> bool:
        return self._matched < len(self._known) and self._known[self._matched] == text


def _texts_of(data: bytes) -> Iterator[str]:
    """The lines of `data` as text that is the same in each process."""
    for line in data.splitlines():
        text = _RANK.sub("", _COLOUR.sub("", line.decode(errors="replace")))
        yield _ADDRESS.sub("0x", text).rstrip()
