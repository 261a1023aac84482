"""The launcher's side of the zygote: starts it, has it fork workers, starts it again.

A worker that the zygote has forked is a child of the launcher like any other (`zygote_process`),
so that the zygote's end ends no worker.  Without a zygote, as after its death, a worker is started
by a fresh interpreter.
"""

import array
import itertools
import json
import os
import platform
import signal
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

import trio

from ftcomm.config.backoff import RESTART_BACKOFF
from ftcomm.diagnostics.os_errors import describe
from ftcomm.errors import ConfigError
from ftcomm_tracker.launcher.console import Console
from ftcomm_tracker.launcher.processes.child_process import Child, start_child
from ftcomm_tracker.launcher.processes.linux_calls import adopt_orphans, ended_child
from ftcomm_tracker.launcher.processes.python_command import PythonCommand, parse_python_command
from ftcomm_tracker.launcher.processes.zygote_process import GO, MAX_REQUEST_BYTES
from ftcomm_tracker.launcher.worker_output import forward_output

NAME = "prefork"  # stands before the zygote's own lines of output
READY_WITHIN_S = 300.0  # a framework's import from a cold network disk takes a minute
FORK_WITHIN_S = 10.0  # a fork takes milliseconds; a zygote that is stopped never answers
# Without the folder from which the launcher was started: the script's import path has no such.
_BOOT = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0);"
    " from ftcomm_tracker.launcher.processes.zygote_process import main; main()"
)
_BROKEN = (OSError, ValueError, KeyError, trio.TooSlowError, trio.ClosedResourceError)
ENDED_EARLY = "the zygote ended before it was ready"


class ForkedProcess:
    """A process that the zygote has forked, with what the launcher uses of `subprocess.Popen`.

    Attributes:
        pid: its number.
        returncode: as of a `Popen`; None until `wait`.
        stdout: its output.
        stderr: its error output.
    """

    def __init__(self, pid: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None

    def wait(self) -> int:
        """Reap it, and return its status."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


@dataclass(frozen=True, slots=True)
class _Pipes:
    """Three pipes of a new process: output, error output, and "go"."""

    readers: tuple[int, int, int]
    writers: tuple[int, int, int]

    @classmethod
    def make(cls) -> "_Pipes":
        """Open all three.

        Raises:
            OSError: as many files are open as may be; none of the three is then.
        """
        pairs: list[tuple[int, int]] = []
        try:
            pairs += (os.pipe() for _ in range(3))
        except OSError:
            for descriptor in itertools.chain(*pairs):
                os.close(descriptor)
            raise
        return cls(*zip(*pairs, strict=True))

    @property
    def of_worker(self) -> tuple[int, int, int]:
        return self.writers[0], self.writers[1], self.readers[2]

    def close(self, *, also_readers: bool) -> None:
        """Close what is the worker's, and the writer of "go"; the rest where there is no worker."""
        readers = self.readers if also_readers else self.readers[2:]
        for descriptor in (*self.writers, *readers):
            os.close(descriptor)


class Zygote:
    """One zygote at a time, for all workers of a launcher."""

    def __init__(
        self,
        command: PythonCommand,
        preload: Collection[str],
        environment: Mapping[str, str],
        console: Console,
    ) -> None:
        """Prepare one that forks workers which run `command` with `environment`.

        Args:
            command: of the workers.
            preload: names of modules to import beside those that every worker needs.
            environment: of all workers.
            console: where its output goes.
        """
        self._command = command
        self._preload = tuple(preload)
        self._environment = environment
        self._console = console
        self._child: Child | None = None
        self._channel: trio.socket.SocketType | None = None
        self._forking = trio.Lock()
        self._was_ready = False
        self._when_ready: Callable[[], None]

    @property
    def pid(self) -> int:
        """Number of its process, 0 if there is none."""
        return self._child.process.pid if self._child is not None else 0

    @property
    def is_forking(self) -> bool:
        """True while a process may exist that the launcher does not know yet."""
        return self._forking.locked()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a zygote; this task has started once the first one is ready.

        Raises:
            ConfigError: the first one cannot start, or a module cannot be preloaded.
        """
        failures = 0
        self._when_ready = task_status.started
        while True:
            remedy = None
            try:
                refusal = await self._run_one()
            except OSError as error:  # others end meanwhile, and give back what they use
                refusal = f"the zygote cannot be started ({describe(error)})"
            except ConfigError as error:
                refusal, remedy = error.cause, error.remedy
            if not self._was_ready:
                raise ConfigError(f"--prefork: {refusal}", remedy=remedy)
            failures = failures + 1 if refusal else 1
            delay_s = RESTART_BACKOFF.delay_s(failures)
            why = refusal or "the zygote has ended"
            self._console.warn(
                f"--prefork: {why}: starting another one{f' in {delay_s:g} s' if delay_s else ''};"
                " workers are started without it meanwhile"
            )
            await trio.sleep(delay_s)

    async def fork(
        self, worker_id: str, variables: Mapping[str, str], *, unless: trio.Event
    ) -> Child | None:
        """Have a worker forked; None if there is no zygote that can.

        Args:
            worker_id: its id.
            variables: of its environment, beside those of the zygote.
            unless: set when none is to start any more; one that is being forked comes all the same.
        """
        async with self._forking:
            if self._channel is None or unless.is_set():
                return None
            pid = 0
            try:
                pipes = _Pipes.make()
            except OSError as error:
                self._console.warn(f"--prefork: no worker can be forked ({describe(error)})")
                return None
            try:
                pid = await self._ask(self._channel, variables, pipes.of_worker)
                os.write(pipes.writers[2], GO)
            except _BROKEN as error:
                self._console.warn(f"--prefork: the zygote did not fork ({describe(error)})")
                pid = 0
            finally:
                if not pid:
                    self._end_zygote()  # a late answer would be taken for the next one's
                pipes.close(also_readers=not pid)
        if not pid:
            return None
        output, errors = (os.fdopen(reader, "rb") for reader in pipes.readers[:2])
        return Child(worker_id, ForkedProcess(pid, output, errors))

    def reap_orphans(self, workers: Collection[int]) -> None:
        """Reap what ended among the orphans that the launcher has adopted, but not `workers`."""
        if self.is_forking:
            return
        while (pid := ended_child()) is not None:
            if pid in workers or pid == self.pid:
                return  # whoever waits for it reaps it; the others come next time
            os.waitpid(pid, 0)

    async def _run_one(self) -> str:
        """Run a zygote to its end; returns why it was never ready, an empty text if it was.

        Raises:
            ConfigError, OSError: as `start_child`.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with trio.socket.from_stdlib_socket(ours) as channel:
            with theirs:
                child = self._child = self._start(theirs.fileno())
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(forward_output, child, partial(self._console.show, NAME))
                    refusal = await self._serve(child, channel)
            finally:
                self._end_zygote()
                child.process.wait()
                self._child = None
        last = f": {child.tail[-1]}" if child.tail else ""
        return f"{refusal}{last}" if refusal == ENDED_EARLY else refusal

    def _start(self, channel: int) -> Child:
        command = self._command
        config = {
            "command": command.to_dict(),
            "preload": self._preload,
            "channel": channel,
            "launcher": os.getpid(),
        }
        words = [command.interpreter, *command.options, "-c", _BOOT, json.dumps(config)]
        return start_child(NAME, words, self._environment, pass_fds=(channel,))

    async def _serve(self, child: Child, channel: trio.socket.SocketType) -> str:
        """Let others use the zygote until it ends; returns as `_run_one`."""
        refusal = await self._wait_until_ready(channel)
        if refusal:
            self._end_zygote()
        else:
            self._channel = channel
            if not self._was_ready:
                self._was_ready = True
                self._when_ready()
        await child.wait()
        self._channel = None
        return refusal

    async def _wait_until_ready(self, channel: trio.socket.SocketType) -> str:
        with trio.move_on_after(READY_WITHIN_S):
            try:
                reply = json.loads(await channel.recv(MAX_REQUEST_BYTES))
            except (OSError, ValueError):  # the latter for its end
                return ENDED_EARLY
            return str(reply.get("refused", ""))
        return f"the zygote was not ready within {READY_WITHIN_S:g} s"

    async def _ask(
        self,
        channel: trio.socket.SocketType,
        variables: Mapping[str, str],
        descriptors: tuple[int, ...],
    ) -> int:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        with trio.fail_after(FORK_WITHIN_S):
            await channel.sendmsg([json.dumps(dict(variables)).encode()], [rights])
            return int(json.loads(await channel.recv(MAX_REQUEST_BYTES))["forked"])

    def _end_zygote(self) -> None:
        self._channel = None
        if self._child is not None:
            self._child.signal_group(signal.SIGKILL)


def prepare_prefork(
    command: Sequence[str],
    preload: Collection[str],
    environment: Mapping[str, str],
    console: Console,
) -> Zygote:
    """Make a zygote for workers that run `command`; this process adopts orphans from now on.

    Raises:
        ConfigError: as `check_prefork`.
    """
    zygote = Zygote(check_prefork(command), preload, environment, console)
    adopt_orphans()
    return zygote


def check_prefork(command: Sequence[str]) -> PythonCommand:
    """Refuse a command, or a system, for which no zygote can be had.

    Raises:
        ConfigError: the command is no Python script, or the system is not Linux.
    """
    if platform.system() != "Linux":
        raise ConfigError(
            f"--prefork needs Linux, this is {platform.system()}", remedy="leave it out"
        )
    return parse_python_command(command)
