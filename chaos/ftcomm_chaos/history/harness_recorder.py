"""The harness's own file beside those of the incarnations: what it started, broke and saw end."""

import os
import time
from pathlib import Path

from ftcomm.diagnostics.history import FORMAT, encode
from ftcomm_chaos.history.harness_events import FaultFired, Harness, HarnessStarted

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
        self.write(HarnessStarted(FORMAT))

    def fault(self, kind: str, target: str, seconds: float = 0.0, *, at: float) -> None:
        """Something was broken at `at`, of the machine's monotonic clock, for `seconds`."""
        self.write(FaultFired(kind, target, seconds), at)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def write(self, event: Harness, at: float | None = None) -> None:
        """Write an event of now, or of another time of the machine's monotonic clock."""
        os.write(self._file, encode(event, time.monotonic() if at is None else at))
