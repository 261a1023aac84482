"""Commands that need a core and no quiet: they run beside the tests, and their tests come last.

A test names its command by ``@pytest.mark.background("module", "argument", ...)`` and takes what
came of it from the fixture `background`; see conftest.  Run as a program, this module is the
queue: as many commands at once as there are cores to spare.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conformance.forker import die_with_parent

ROOT = Path(__file__).parents[1]
NICE = 10  # the tests with real processes come first
Command = tuple[str, ...]  # of `python -m`


class Background:
    """The queue in a process of its own; neither it nor its folder outlives the session."""

    def __init__(self, commands: list[Command]) -> None:
        """Begin with the first command."""
        self._commands = commands
        self._folder = tempfile.TemporaryDirectory(prefix="ftcomm-background-")
        self._statuses: dict[int, int] = {}
        self._queue = subprocess.Popen(
            [sys.executable, "-m", "tests.background", self._folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "TMPDIR": self._folder.name,
            },
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - pytest has one thread at this time
        )
        assert self._queue.stdin is not None
        with self._queue.stdin as stdin:
            json.dump(commands, stdin)

    def result(self, command: Command) -> tuple[int, str]:
        """Exit status and output of one of the commands, once it has ended."""
        index = self._commands.index(command)
        assert self._queue.stdout is not None
        while index not in self._statuses:
            ended = self._queue.stdout.readline().split()
            assert ended, "the queue has died"
            self._statuses[int(ended[0])] = int(ended[1])
        return self._statuses[index], _output(self._folder.name, index).read_text(encoding="utf-8")

    def stop(self) -> None:
        """End what still runs."""
        assert self._queue.stdout is not None
        with self._queue.stdout:  # whose end says that all who might write in the folder are gone
            if self._queue.poll() is None:
                os.killpg(self._queue.pid, signal.SIGKILL)
            self._queue.wait()
        self._folder.cleanup()


def _output(folder: str, index: int) -> Path:
    return Path(folder, f"{index}.out")


def main(folder: str) -> None:
    """Run the commands that stand in the standard input; say which has ended, and how."""
    die_with_parent()
    os.nice(NICE)
    waiting = list(enumerate(json.load(sys.stdin)))
    running: dict[int, int] = {}
    spare = max((os.cpu_count() or 1) - 1, 1)
    while waiting or running:
        while waiting and len(running) < spare:
            index, command = waiting.pop(0)
            with _output(folder, index).open("w") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    preexec_fn=die_with_parent,  # noqa: PLW1509 - the queue has one thread
                )
            running[process.pid] = index
        pid, status = os.wait()
        sys.stdout.write(f"{running.pop(pid)} {os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
