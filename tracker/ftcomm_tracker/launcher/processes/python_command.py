"""A worker's command line as the interpreter reads it: pure.

A forked process cannot read it a second time, so the interpreter's own options go to the zygote,
and the rest says what the forked process runs.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ftcomm.errors import ConfigError

_INTERPRETER = re.compile(r"python(\d+(\.\d+)*)?")
_FLAGS = frozenset("bBdEIOPqsSuvx")  # without an argument
_WITH_ARGUMENT = frozenset("WX")
FILE, MODULE, CODE = "file", "module", "code"
_LISTS = ("words", "options", "arguments")
_KINDS = {"m": MODULE, "c": CODE}


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A command that begins with a Python interpreter.

    Attributes:
        words: the whole command line.
        interpreter: as it was typed.
        options: of the interpreter.
        kind: of `target`: file, module or code.
        target: the script's path, the module's name, or the text to run.
        arguments: of the script.
    """

    words: tuple[str, ...]
    interpreter: str
    options: tuple[str, ...]
    kind: str
    target: str
    arguments: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "PythonCommand":
        """Inverse of `to_dict`."""
        return cls(**{**fields, **{name: tuple(fields[name]) for name in _LISTS}})


def parse_python_command(command: Sequence[str]) -> PythonCommand:
    """Read `command` as the interpreter would.

    Raises:
        ConfigError: it does not begin with a Python interpreter, or names no script.
    """
    interpreter, *rest = command
    if not _INTERPRETER.fullmatch(interpreter.rpartition("/")[2]):
        raise _refusal(f"{interpreter!r} is no Python interpreter")
    options: list[str] = []
    kind = target = ""
    while not kind and rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        kind, target = _read_options(word, rest, options)
    if not kind:
        if not rest:
            raise _refusal("the command names no script")
        kind, target = FILE, rest.pop(0)
        if target.endswith(".pyc"):
            raise _refusal(f"{target!r} is no source file")
    words = tuple(command)
    return PythonCommand(words, interpreter, tuple(options), kind, target, tuple(rest))


def _read_options(word: str, rest: list[str], options: list[str]) -> tuple[str, str]:
    """Read one word of options; returns kind and target of ``-m`` and ``-c``, else empty texts."""
    if word == "--check-hash-based-pycs" and rest:
        options += [word, rest.pop(0)]
        return "", ""
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter in _FLAGS:
            options.append(f"-{letter}")
            continue
        if letter not in _WITH_ARGUMENT | _KINDS.keys() or not (letters or rest):
            raise _refusal(f"{word!r} is no option of Python that it knows")
        value = letters or rest.pop(0)
        if letter in _KINDS:
            return _KINDS[letter], value
        options += [f"-{letter}", value]
        return "", ""
    if word == "-":
        raise _refusal("a script on standard input can be read once only")
    return "", ""


def _refusal(why: str) -> ConfigError:
    return ConfigError(
        f"--prefork: {why}",
        remedy="give a command such as: python train.py, python -m package.train; or leave"
        " --prefork out",
    )
