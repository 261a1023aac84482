"""A Dask cluster as its commands start it: a scheduler, and workers with nannies."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import distributed

from tests.conformance.plans import ROOT, worker_environment

START_WITHIN_S = 60
# The client has threads, so the command itself asks the kernel to end with the tests.
COMMAND = """
import runpy
from tests.helpers.forker import die_with_parent
die_with_parent()
runpy.run_module("distributed.cli.dask_{}", run_name="__main__", alter_sys=True)
"""


class Cluster:
    """The processes of one cluster, which end with the block.

    Attributes:
        scheduler: its process.
        client: connected to it.
    """

    def __init__(
        self, folder: Path, *, nannies: int, config: Mapping[str, str] | None = None
    ) -> None:
        """Prepare `nannies` workers of one thread; `config` has variables of all processes."""
        self._folder, self._count = folder, nannies
        self._config = config or {}
        self._started = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        file = self._folder / "scheduler.json"
        self._file = ["--scheduler-file", str(file)]
        with contextlib.ExitStack() as self._stack:
            words = [*self._file, "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
            self.scheduler = self._start("scheduler", *words)
            for _ in range(self._count):
                self.start_nanny()
            self.client = distributed.Client(
                scheduler_file=str(file), timeout=START_WITHIN_S, set_as_default=False
            )
            self._stack.callback(self.client.close)
            self.client.wait_for_workers(self._count, timeout=START_WITHIN_S)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def start_nanny(self) -> None:
        """Start one more nanny, which starts its worker."""
        self._started += 1
        words = ["--nworkers", "1", "--nthreads", "1", "--no-dashboard"]
        folder = ["--local-directory", str(self._folder / f"worker{self._started}")]
        self._start("worker", *self._file, *words, *folder)

    def _start(self, command: str, *words: str) -> "subprocess.Popen[bytes]":
        log = self._stack.enter_context((self._folder / "log").open("ab"))
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND.format(command), *words],
            env={**worker_environment(), **self._config},
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._stack.callback(_kill_group, process)
        return process


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a command with the workers and ranks that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
