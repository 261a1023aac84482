"""``--log-dir``: one file for the lines of a command itself, and one for each of its workers.

They are written in the launcher's main loop, as its journal is.
"""

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from ftcomm.errors import ConfigError
from ftcomm_tracker.launcher.log_lines import LineFormat

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class LogFiles:
    """Files in one folder, each opened at its first line and only appended to."""

    def __init__(self, folder: Path, own: str, form: LineFormat) -> None:
        """Write into `folder`; ``OWN.log`` is for the command's own lines.

        Raises:
            ConfigError: the folder cannot be made.
        """
        self.complain: Callable[[str], None] | None = None
        self._folder = folder
        self._own = own
        self._form = form
        self._files: dict[str, int | None] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--log-dir {folder}: {error.strerror or error}") from error

    def own_line(self, level: str, text: str) -> None:
        """Keep a message of the command itself."""
        self._append(self._own, self._form.own(level, text))

    def of_worker(self, worker_id: str, number: int, data: bytes) -> None:
        """Keep whole lines that a worker wrote on stream `number`."""
        self._append(_name(worker_id), self._form.in_own_file(worker_id, number, data))

    def begin(self, worker_id: str, text: str) -> None:
        """Keep a line of our own among a worker's: where another process of it begins, say."""
        self._append(_name(worker_id), self._form.own("INFO", text))

    def _append(self, name: str, data: bytes) -> None:
        path = self._folder / f"{name}.log"
        try:
            if name not in self._files:
                self._files[name] = os.open(path, _APPEND, 0o666)
            file = self._files[name]
            while file is not None and data:
                data = data[os.write(file, data) :]
        except OSError as error:  # the job does not depend on it
            if (file := self._files.get(name)) is not None:
                os.close(file)
            self._files[name] = None
            self._say(f"cannot write {path}: {error.strerror}; what follows is not kept there")

    def _say(self, text: str) -> None:
        if self.complain is not None:
            self.complain(text)


def _name(worker_id: str) -> str:
    return f"worker-{quote(worker_id, safe='')}"
