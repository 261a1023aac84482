"""Groups of processes, one for each library, that take turns in one run."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from _turns import ADDRESS

from ftcomm_tracker.launcher.memcpy_tuning import with_tuned_copies

START_LIMIT_S = 120.0  # a busy machine imports torch eight times
TURN_LIMIT_S = 300.0  # the slowest peers need seconds for 100 MB
END_LIMIT_S = 20.0
T = TypeVar("T")


@dataclass(frozen=True)
class Peer:
    """One library, and how its group is started.

    Attributes:
        NAME: of the group.
        commands: of a number of ranks and a folder, command lines which together start all ranks;
            each rank calls `take_turns`.
        lacking: what is not installed, if anything.
        variables: for these, beside our own.
    """

    NAME: str
    commands: Callable[[int, Path], list[list[str]]]
    lacking: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


class PeerFailed(Exception):  # noqa: N818 - said in the table, not an error of the benchmark
    """Reason for which a group cannot continue."""


class Group:
    """All ranks of one library."""

    def __init__(self, peer: Peer, world_size: int, folder: Path) -> None:
        """Start the processes and wait for them.

        Raises:
            PeerFailed: they did not come.
        """
        self._world_size = world_size
        self._output = folder / "output"
        self._lines: dict[int, Any] = {}
        self._buffers = contextlib.ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "orders"))
            listener.listen(world_size)
            # as ftcomm's launcher sets it, for all alike
            environment = with_tuned_copies({**os.environ, "OMP_NUM_THREADS": "1"})
            environment.update(peer.variables)
            path = [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
            environment[ADDRESS] = str(folder / "orders")
            try:
                for command in peer.commands(world_size, folder):
                    self._start(command, environment)
                self._welcome(listener)
            except BaseException:
                self.close()
                raise

    def _start(self, command: list[str], environment: dict[str, str]) -> None:
        with self._output.open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    process_group=0,  # in our session, as ftcomm's launcher does
                )
            )

    def _welcome(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        listener.settimeout(1.0)
        while len(self._lines) < self._world_size:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                self._must_live()
                if time.monotonic() > deadline:
                    raise PeerFailed(f"did not start in {START_LIMIT_S:.0f} s") from None
                continue
            connection.settimeout(TURN_LIMIT_S)
            self._buffers.enter_context(connection)
            lines = self._buffers.enter_context(connection.makefile("rw", encoding="utf-8"))
            self._lines[json.loads(lines.readline())["rank"]] = lines

    def turn(self, kind: str, nbytes: int, calls: int) -> list[float]:
        """Seconds of each call at each rank.

        Raises:
            PeerFailed: a rank has ended, or none answered in time.
        """
        answers = self.ask({"kind": kind, "nbytes": nbytes, "calls": calls})
        return [seconds for answer in answers for seconds in answer["seconds"]]

    def ask(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """Give every rank an order; returns their answers, by rank.

        Raises:
            PeerFailed: a rank has ended, or none answered in time.
        """
        try:
            for lines in self._lines.values():
                lines.write(json.dumps(order) + "\n")
                lines.flush()
            return [json.loads(self._lines[rank].readline()) for rank in sorted(self._lines)]
        except TimeoutError:
            raise PeerFailed(f"no answer in {TURN_LIMIT_S:.0f} s") from None
        except (OSError, ValueError):
            raise PeerFailed(self._last_words()) from None

    def close(self) -> None:
        """End the ranks, by force if they do not end by themselves; once is enough."""
        with contextlib.suppress(OSError):
            self._buffers.close()
        while self._processes:
            process = self._processes.pop()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_LIMIT_S)
            with contextlib.suppress(ProcessLookupError):  # what it started is in its group
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _must_live(self) -> None:
        if any(process.poll() is not None for process in self._processes):
            raise PeerFailed(self._last_words())

    def _last_words(self) -> str:
        lines = self._output.read_text(errors="replace").split("\n")
        errors = [line.strip() for line in lines if "Error" in line]
        return (errors or [line for line in lines if line.strip()] or ["ended without a word"])[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Groups:
    """The groups of one run by their names; one that fails once is out, with the reason."""

    def __init__(self) -> None:
        """Begin without any."""
        self.running: dict[str, Group] = {}
        self.reasons: dict[str, str] = {}

    def start(self, stack: contextlib.ExitStack, peer: Peer, world_size: int) -> None:
        """Start a group of the peer until `stack` is left, or note why there is none."""
        if peer.lacking is not None:
            self.drop(peer.NAME, peer.lacking)
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftcomm-bench-")))
        try:
            group = stack.enter_context(Group(peer, world_size, folder / "group"))
        except PeerFailed as failed:
            self.drop(peer.NAME, str(failed))
        else:
            self.running[peer.NAME] = group

    def drop(self, name: str, reason: str) -> None:
        """Close the group if it runs, and keep the reason."""
        group = self.running.pop(name, None)
        if group is not None:
            group.close()  # now: one that hangs would take the processors from the others
        self.reasons[name] = reason
        print(f"{name} is out: {reason}", file=sys.stderr)


def in_order(items: Iterable[T], number: int) -> list[T]:
    """In another order every round; no pair stays together."""
    found = list(items)
    random.Random(number).shuffle(found)  # noqa: S311 - no secret
    return found
