"""The command that began or resumed the job of a state directory, kept there for people."""

import contextlib
import json
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from ftcomm_tracker.operator.job_registry import write_private

FILE = "command.json"
MAX_BYTES = 1 << 20  # more than any system passes to a program


@dataclass(frozen=True, slots=True)
class GivenCommand:
    """A command line and the folder in which it was given.

    Attributes:
        line: as a shell takes it.
        folder: absolute; empty if it is not known.
    """

    line: str
    folder: str

    @property
    def again(self) -> str:
        """The text to type to give it again."""
        elsewhere = self.folder and self.folder != _working_folder()
        return f"cd {shlex.quote(self.folder)} && {self.line}" if elsewhere else self.line


def this_command() -> GivenCommand:
    """The command of this process."""
    return GivenCommand(shlex.join(["ftcomm-tracker", *sys.argv[1:]]), _working_folder())


def keep_command(state_dir: Path, command: GivenCommand) -> None:
    """Write the command beside the journal; a job does not depend on it."""
    with contextlib.suppress(OSError):
        write_private(state_dir / FILE, json.dumps(asdict(command)))


def kept_command(state_dir: Path) -> GivenCommand | None:
    """The command of a state directory; None if there is none that can be read."""
    try:
        with (state_dir / FILE).open("rb") as file:
            found = json.loads(file.read(MAX_BYTES))
        line, folder = found["line"], found["folder"]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return None
    is_text = isinstance(line, str) and isinstance(folder, str)
    return GivenCommand(line, folder) if is_text and _is_shown(line) and _is_shown(folder) else None


def _is_shown(text: str) -> bool:
    """True if a terminal only shows it; a script behind ``python -c`` has several lines."""
    return all(part.isprintable() for part in text.replace("\t", "\n").split("\n"))


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return ""
