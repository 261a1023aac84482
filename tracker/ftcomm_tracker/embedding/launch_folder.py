"""The folder through which `launch`, the process that runs its job, and the workers speak.

Its owner alone can enter it.  Each file is written whole before it has its name.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftcomm.config.named_paths import temporary_folder

PATH, OPTIONS, CALL, END = "path.json", "options.json", "call", "end.json"
_REPORT = "report-"
# Arguments: a file with the import path, a module of this package, the folder.
_BOOT = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0);"  # else a json.py there would be read
    " import json; path, name, folder = sys.argv[1:]; sys.argv[1:] = [];"
    " sys.path[:] = json.load(open(path, encoding='utf-8'));"
    " from importlib import import_module; import_module(name).main(folder)"
)


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The job that the host runs.

    Attributes:
        parent: number of the process that called `launch`.
        workers: number of ranks.
        settings: of the job.
        state_dir: None for a temporary one.
        max_restarts: of one worker.
        restart_window: seconds.
        grace: seconds, as in `LaunchOptions`.
        verbose: show the launcher's own words too.
    """

    parent: int
    workers: int
    settings: dict[str, Any]
    state_dir: str | None
    max_restarts: int
    restart_window: float
    grace: float
    verbose: bool


@dataclass(frozen=True, slots=True)
class HostEnd:
    """End of the host: of its job, or of its attempt to begin one.

    Attributes:
        ok: the job ended well.
        status: exit status of the launcher.
        error: name of the error that ended the job, empty for none.
        cause: of the error.
        remedy: of the error, empty for its usual one.
        refused: the job has not begun, or its tracker has failed.
    """

    ok: bool
    status: int
    error: str = ""
    cause: str = ""
    remedy: str = ""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Message of one worker's process at the end of its call.

    Attributes:
        worker_id: of the worker.
        rank: None if it had none yet.
        error: name of the error's class, empty where the call returned.
        text: of the error.
        traceback: of the error, from the called function on.
        is_own: the error is about this rank, not about the job.
        at: when, in seconds since 1970.
        body: the result or the error, pickled; empty if it cannot be.
    """

    worker_id: str
    rank: int | None
    error: str
    text: str
    traceback: str
    is_own: bool
    at: float
    body: bytes


class LaunchFolder:
    """The files of one call of `launch`."""

    def __init__(self, path: Path) -> None:
        """Use the folder `path`, which `made` has made."""
        self.path = path

    @classmethod
    @contextlib.contextmanager
    def made(cls) -> Iterator["LaunchFolder"]:
        """A new folder, for as long as the block runs."""
        folder = cls(temporary_folder("ftcomm-launch-"))
        try:
            yield folder
        finally:
            folder.remove()

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def boot_words(self, module: str) -> list[str]:
        """Arguments of a Python interpreter that runs ``main(folder)`` of `module`."""
        return ["-c", _BOOT, str(self.path / PATH), module, str(self.path)]

    def write_path(self, path: list[str]) -> None:
        """Keep the import path; relative entries are those of this process.

        What names no file is a mark of an import hook, such as that of an editable installation.
        """
        self._write_json(PATH, [_located(str(entry)) for entry in path])

    def write_options(self, options: HostOptions) -> None:
        """Keep the job's options."""
        self._write_json(OPTIONS, asdict(options))

    def read_options(self) -> HostOptions:
        """Inverse of `write_options`."""
        return HostOptions(**self._read_json(OPTIONS))

    def write_call(self, data: bytes) -> None:
        """Keep the pickled call."""
        self._write(CALL, data)

    def read_call(self) -> bytes:
        """Inverse of `write_call`."""
        return (self.path / CALL).read_bytes()

    def write_end(self, end: HostEnd) -> None:
        """Keep the host's end."""
        self._write_json(END, asdict(end))

    def read_end(self) -> HostEnd | None:
        """The host's end; None if it was cut short."""
        try:
            return HostEnd(**self._read_json(END))
        except FileNotFoundError:
            return None

    def write_report(self, report: WorkerReport) -> None:
        """Keep the newest report of a worker."""
        head = {name: value for name, value in asdict(report).items() if name != "body"}
        line = json.dumps(head).encode() + b"\n"
        self._write(_REPORT + report.worker_id, line + report.body)

    def remove_report(self, worker_id: str) -> None:
        """Forget what an earlier process of the worker has reported."""
        (self.path / (_REPORT + worker_id)).unlink(missing_ok=True)

    def reports(self) -> list[WorkerReport]:
        """All reports, the earliest first."""
        found = []
        for path in self.path.glob(f"{_REPORT}*"):
            with path.open("rb") as file:
                head = json.loads(file.readline())
                found.append(WorkerReport(**head, body=file.read()))
        return sorted(found, key=lambda report: report.at)

    def _read_json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text(encoding="utf-8"))

    def _write_json(self, name: str, document: object) -> None:
        self._write(name, json.dumps(document).encode())

    def _write(self, name: str, data: bytes) -> None:
        part = self.path / f".{os.getpid()}.part"
        part.write_bytes(data)
        part.replace(self.path / name)


def _located(entry: str) -> str:
    try:
        return str(Path(entry).absolute()) if Path(entry).exists() else entry
    except OSError:  # the working directory has been removed
        return entry
