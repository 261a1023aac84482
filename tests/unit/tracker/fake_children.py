"""Workers of a launcher that are no processes: coroutines behind the interface of a child."""

import itertools
import os
import subprocess
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import IO, Any

import pytest
import trio
from click.testing import CliRunner

import ftcomm
from ftcomm_tracker.cli.main import main
from ftcomm_tracker.launcher import launcher as launch
from ftcomm_tracker.launcher.processes.child_process import Child

_NUMBERS = itertools.count(1 << 23)  # above those of processes


class FakeProcess:
    """The part of a process that `Child` uses; its pipes are real ones."""

    def __init__(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid = next(_NUMBERS)
        self.returncode: int | None = None
        self.stdout = stdout
        self.stderr = stderr

    def wait(self) -> int:
        assert self.returncode is not None
        return self.returncode


class FakeChild(Child):
    """A worker that runs a coroutine.

    Attributes:
        start: how many processes of this worker there have been, with this one.
        environment: its variables.
        ended_by: the first signal that it was sent, 0 for none.
    """

    def __init__(
        self, worker_id: str, start: int, environment: Mapping[str, str], script: "Script"
    ) -> None:
        readers, writers = zip(os.pipe(), os.pipe(), strict=True)
        super().__init__(worker_id, FakeProcess(*(os.fdopen(fd, "rb") for fd in readers)))
        # A script that was killed goes on in its thread: it must not write to another child, which
        # has the numbers of these by then.
        self._writers = [os.fdopen(fd, "wb", buffering=0) for fd in writers]
        self.start, self.environment = start, environment
        self._script, self._scope, self.ended_by = script, trio.CancelScope(), 0

    def say(self, text: str, number: int = 2) -> None:
        """Write to its output or, with 2, to its error output."""
        self._writers[number - 1].write(text.encode())

    def signal(self, number: int) -> None:
        """End it; no script has a handler."""
        if self.running and not self.ended_by:
            self.ended_by = number
            self._scope.cancel()

    signal_group = signal

    def is_computing(self) -> bool:
        """False, as of one that waits."""
        return False

    async def wait(self) -> int:
        """Run the script; it takes its status from a signal that has come meanwhile."""
        status = 0
        with self._writers[0], self._writers[1], self._scope:
            status = await self._script(self)
        self.process.returncode = -self.ended_by if self._scope.cancelled_caught else status
        return self.process.returncode


Script = Callable[[FakeChild], Awaitable[int]]
Done = subprocess.CompletedProcess[str]


def exits(status: int, errors: str = "") -> Script:
    """A script that prints `errors` and ends."""

    async def script(child: FakeChild) -> int:
        child.say(errors)
        return status

    return script


def joins(use: Callable[[ftcomm.Communicator], object] = lambda comm: comm.barrier()) -> Script:
    """A script that joins its job, from a thread of the tests, and ends as one of its own would."""

    async def script(child: FakeChild) -> int:
        def join() -> int:
            try:
                with ftcomm.init(
                    child.environment["FTCOMM_TRACKER"],
                    worker_id=child.worker_id,
                    token_file=child.environment["FTCOMM_TOKEN_FILE"],
                    job="test",
                ) as comm:
                    use(comm)
            except SystemExit as end:
                return int(end.code or 0)
            except Exception as error:  # noqa: BLE001 - as an interpreter would
                child.say(traceback.format_exc())
                return error.exit_code if isinstance(error, ftcomm.FtcommError) else 1
            return 0

        return await trio.to_thread.run_sync(join, abandon_on_cancel=True)

    return script


async def runs_on(child: FakeChild) -> int:
    """Wait for a signal."""
    return await trio.sleep_forever()


class FakeWorkers:
    """Runs the command line in this process, with workers that are no processes.

    Attributes:
        children: all that have been started.
        verbosity: options of what the console prints.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.children: list[FakeChild] = []
        self.verbosity: tuple[str, ...] = ("-v",)
        self._capfd = capfd
        self._script: Script = runs_on
        monkeypatch.setattr(launch, "start_child", self._start)
        for name in ("OMP_NUM_THREADS", "FTCOMM_WORKER_ID"):
            monkeypatch.delenv(name, raising=False)

    def _start(
        self, worker_id: str, _: Sequence[str], variables: Mapping[str, str], **more: object
    ) -> Child:
        del more
        start = 1 + sum(child.worker_id == worker_id for child in self.children)
        self.children.append(FakeChild(worker_id, start, variables, self._script))
        return self.children[-1]

    def run(self, script: Script, *options: str, n: int = 2) -> Done:
        """``ftcomm-tracker run`` of workers that run `script`."""
        return self._invoke(script, "run", *self.verbosity, "-n", str(n), *options)

    def supervise(self, script: Script, *options: str) -> Done:
        """``ftcomm-tracker supervise`` of a worker that runs `script`."""
        return self._invoke(script, "supervise", *self.verbosity, *options)

    def _invoke(self, script: Script, *words: str) -> Done:
        self._script, self.children = script, []
        result = CliRunner().invoke(main, [*words, "--", "true"], catch_exceptions=False)
        said: Any = self._capfd.readouterr()
        return Done(words, result.exit_code, said.out, said.err + result.output)
