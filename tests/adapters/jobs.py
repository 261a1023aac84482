"""Jobs of training scripts that kill themselves, and the model that each rank tells."""

import atexit
import contextlib
import functools
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.conformance.plans import ROOT, worker_environment
from tests.helpers.forker import Forker, die_with_parent

WORKERS = 3
WALL_S = 110.0  # a job takes some five seconds on two idle cores


@functools.cache
def forker(adapter: str) -> Forker:
    """A process with an adapter and its frameworks imported: that would be most of a job."""
    made = Forker([adapter.partition(".")[0], f"ftcomm.{adapter}"], worker_environment())
    atexit.register(made.close)
    return made


def adapter_of(script: Path) -> str:
    """The adapter whose frameworks a script imports, such as ``torch.lightning``."""
    found = re.findall(
        r"^(?:import|from) .*?\bftcomm\.(torch\.(?:lightning|trainer|accelerate)|\w+)",
        script.read_text("utf-8"),
        re.MULTILINE,
    )
    return max(found, key=len)


class Workers:
    """The workers of one job: forked, and forked again when SIGKILL has ended them.

    Attributes:
        status: exit status of the first worker that has failed, else 0.
    """

    def __init__(self, folder: Path, words: list[str], variables: dict[str, str]) -> None:
        self.status = 0
        self._folder, self._words, self._variables = folder, words, variables
        self._forker = forker(adapter_of(Path(words[0])))
        self._pids: dict[str, int] = {}
        self._kills: list[str] = []
        self._rest = b""

    def run(self, count: int) -> None:
        """Run workers to their ends."""
        until = time.monotonic() + WALL_S
        try:
            for rank in range(count):
                self._start(str(rank))
            while self._pids and not self._has_a_bug:
                self._hear(until)
        finally:
            self._end()

    def said(self) -> str:
        """Their output, each line behind its worker, and who was killed."""
        lines = self._kills + [
            f"[{path.stem}] {line}"
            for path in sorted(self._folder.glob("*.log"))
            for line in path.read_text().splitlines()
        ]
        return "\n".join(lines)

    @property
    def _has_a_bug(self) -> bool:
        """True if a script has failed by an error that is not of the library."""
        return 0 < self.status < 64

    def _start(self, worker: str) -> None:
        self._pids[worker] = 0
        variables = {**self._variables, "FTCOMM_WORKER_ID": worker}
        log = self._folder / f"{worker}.log"
        self._forker.start(worker, self._words, variables, log, folder=self._folder)

    def _hear(self, until: float, *, restart: bool = True) -> None:
        """Take in what the forker says next."""
        output = self._forker.process.stdout
        assert output is not None
        if not select.select([output], [], [], until - time.monotonic())[0]:
            raise TimeoutError(self.said())
        *lines, self._rest = (self._rest + os.read(output.fileno(), 4096)).split(b"\n")
        for event in map(json.loads, lines):
            worker = event["name"]
            self._pids[worker] = event["pid"]
            if "status" in event:
                del self._pids[worker]
                self.status = self.status or max(event["status"], 0)
                if restart and event["status"] == -signal.SIGKILL:
                    self._kills.append(f"worker {worker} was killed by SIGKILL")
                    self._start(worker)

    def _end(self) -> None:
        """Kill those that are left: nothing of this job may be told to the next one."""
        until = time.monotonic() + WALL_S
        while self._pids:
            for pid in filter(None, self._pids.values()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._hear(until, restart=False)


def attempt(
    script: Path, folder: Path, *options: str, workers: int = WORKERS, faults: str = ""
) -> tuple[int, str]:
    """Run a script in `folder`, which is new; returns the exit status, and all that was said.

    Inputs of replayed collectives are compared with those of the first run.

    Args:
        script: of the user.
        folder: where it runs.
        options: of the script.
        workers: how many.
        faults: addresses of deaths.
    """
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ftcomm_tracker", "serve", "-v", "-n", str(workers)]
    command += ["--verify", "inputs", "--state-dir", str(folder / "state")]
    with subprocess.Popen(
        command,
        env=worker_environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - the tests have one thread
    ) as tracker:
        assert tracker.stdout is not None
        try:
            ready = dict(re.findall(r"(\w+)=(\S+)", tracker.stdout.readline()))
            variables = {
                "FTCOMM_TRACKER": ready["address"],
                "FTCOMM_TOKEN_FILE": ready["token_file"],
                "FTCOMM_FAULTS": faults,
            }
            job = Workers(folder, [str(script), *options], variables)
            job.run(workers)
            return job.status or tracker.wait(WALL_S), job.said()
        finally:
            tracker.kill()


def launch(
    script: Path, folder: Path, *options: str, workers: int = WORKERS, faults: str = ""
) -> str:
    """Run a script to its good end, as `attempt`; returns all that was said."""
    status, said = attempt(script, folder, *options, workers=workers, faults=faults)
    assert status == 0, said[-4000:]
    return said


def run(script: Path, folder: Path, *options: str, kills: Iterable[str] = ()) -> str:
    """The same, of a script that takes ``--kill rank.step.moment`` for each of `kills`."""
    return launch(script, folder, *options, *(f"--kill={kill}" for kill in kills))


def lose_all(script: Path, folder: Path, *options: str, at: str) -> str:
    """Run a script of the same kind under the launcher; returns all that was said.

    All workers are killed where they stand at one step and moment, with a durable checkpoint.
    """
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ftcomm_tracker", "run", "-v", "-n", str(WORKERS)]
    command += ["--state-dir", str(folder / "state"), "--checkpoint-every", "1v", "--"]
    with subprocess.Popen(
        [*command, sys.executable, str(script), *options, f"--kill=all.{at}"],
        cwd=folder,
        env=worker_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - the tests have one thread
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        try:
            stand = (line for line in launcher.stdout if "] stands: " in line)
            pids = [int(line.split()[-1]) for line in itertools.islice(stand, WORKERS)]
            assert any(" is durable" in line for line in launcher.stderr)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            said = "".join(launcher.communicate(timeout=WALL_S))
        finally:
            launcher.kill()
    assert launcher.returncode == 0, said[-4000:]
    return said


def runs_without_kills(factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Output of a script with its options, which runs once for all tests of a module."""

    @functools.cache
    def said(script: Path, *options: str) -> str:
        return run(script, factory.mktemp("undisturbed") / "job", *options)

    return said


def model_in(said: str) -> str:
    """The one model that all ranks told."""
    told = re.findall(r"^\[(\d)\] model ([0-9a-f]{64})$", said, re.MULTILINE)
    assert sorted(rank for rank, _ in told) == [str(rank) for rank in range(WORKERS)], said
    (model,) = {model for _, model in told}
    return str(model)


def victims_in(said: str) -> list[str]:
    """The workers that SIGKILL ended, sorted."""
    return sorted(re.findall(r"worker (\d) was killed by SIGKILL", said))
