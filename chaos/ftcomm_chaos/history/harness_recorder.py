"""The harness's own file beside those of the incarnations: what it started, broke and saw end."""

import os
import time
from pathlib import Path

from ftcomm.diagnostics.history import FORMAT, encode
from ftcomm_chaos.history.harness_events import (
    AttemptFound,
    EverythingLost,
    FaultFired,
    Harness,
    HarnessStarted,
)

HARNESS_FILE = "harness.jsonl"


class HarnessRecorder:
    """Appends to ``FOLDER/harness.jsonl``; one line is one write, flushed at once."""

    def __init__(self, folder: Path) -> None:
        """Make `folder` and the file.

        Raises:
            OSError: they cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(folder / HARNESS_FILE, flags, 0o600)
        self._write(HarnessStarted(FORMAT))

    def fault(self, kind: str, target: str, seconds: float = 0.0, *, at: float) -> None:
        """Something was broken at `at`, of the machine's monotonic clock, for `seconds`."""
        self._write(FaultFired(kind, target, seconds), at)

    def everything_lost(self, loss: EverythingLost, *, at: float) -> None:
        """All workers and the tracker were killed at `at`."""
        self._write(loss, at)

    def attempt_found(self, attempt: AttemptFound) -> None:
        """The store has the record of an attempt."""
        self._write(attempt)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, event: Harness, at: float | None = None) -> None:
        os.write(self._file, encode(event, time.monotonic() if at is None else at))
