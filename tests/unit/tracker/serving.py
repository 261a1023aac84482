"""`ftcomm-tracker serve` and workers under `ftcomm-tracker supervise`, as real processes."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.unit.tracker.test_launcher import environment

Serving = tuple["subprocess.Popen[str]", dict[str, str]]
CLI = [sys.executable, "-m", "ftcomm_tracker"]


@contextlib.contextmanager
def serve(state: Path | None, *options: str, **extra: str) -> Iterator[Serving]:
    """A tracker on `state`, and the fields of the line that it prints when it is ready."""
    where = [] if state is None else ["--state-dir", str(state)]
    with subprocess.Popen(
        [*CLI, "serve", "-v", *where, *options],
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            name, ready, *fields = process.stdout.readline().split()
            assert (name, ready) == ("ftcomm-tracker", "ready")
            yield process, dict(field.split("=", 1) for field in fields)
        finally:
            process.kill()


@contextlib.contextmanager
def supervise(
    ready: dict[str, str], *options: str, script: str, **extra: str
) -> Iterator["subprocess.Popen[str]"]:
    """A supervisor of one worker that runs `script`."""
    given = ["--tracker", ready["address"], "--token-file", ready["token_file"], *options]
    with subprocess.Popen(
        [*CLI, "supervise", "-v", *given, "--", sys.executable, "-c", script],
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
