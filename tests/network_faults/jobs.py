"""A job of real processes on an impaired network: `ftcomm-tracker serve` and its workers.

Every rank says at which step it is.  At each gate rank 0 waits for a word, so that a test makes its
impairments while the job stands at a place that it knows.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import trio
import trio.testing

from tests.conformance.plans import ROOT, worker_environment
from tests.helpers.forker import die_with_parent

Reference = Callable[[int], Awaitable[str]]

PATIENCE_S = 60.0  # far above what any of these jobs needs
SCRIPT = """
import hashlib, os, sys
print("pid", os.getpid(), flush=True)
import numpy as np
import ftcomm
gates = {int(text) for text in sys.argv[1].split(",") if text}
with ftcomm.init() as comm:
    first, state = comm.load_checkpoint(default=np.zeros(20_000))
    for step in range(4 * first, 12):
        print("step", step, flush=True)
        if step in gates and os.environ["FTCOMM_WORKER_ID"] == "0":
            print("gate", step, flush=True)
            sys.stdin.readline()
        x = np.random.default_rng([step, comm.rank]).standard_normal(20_000)
        state = state * 0.5 + comm.allreduce(x)
        state += comm.broadcast(state, root=step % comm.world_size)
        if step % 4 == 3:
            comm.checkpoint(state)
print("model", hashlib.sha256(state.tobytes()).hexdigest(), comm.epoch, flush=True)
"""


# Each rank needs a message of each other one, and nothing else for some steps.
MESSAGES = """
import hashlib, os, sys
print("pid", os.getpid(), flush=True)
import numpy as np
import ftcomm
gates = {int(text) for text in sys.argv[1].split(",") if text}
with ftcomm.init() as comm:
    first, state = comm.load_checkpoint(default=np.zeros(2_000))
    others = [rank for rank in range(comm.world_size) if rank != comm.rank]
    for step in range(8 * first, 16):
        print("step", step, flush=True)
        if step in gates and os.environ["FTCOMM_WORKER_ID"] == "0":
            print("gate", step, flush=True)
            sys.stdin.readline()
        x = np.random.default_rng([step, comm.rank]).standard_normal(2_000)
        for other in others:
            comm.send(x, other)
        state = state * 0.5 + x
        for other in others:
            state += comm.recv(other)
        if step % 8 == 7:
            state = comm.allreduce(state)
            comm.checkpoint(state)
print("model", hashlib.sha256(state.tobytes()).hexdigest(), comm.epoch, flush=True)
"""


class Voice:
    """The lines of one output so far, and a way to wait for more."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._more = trio.Event()

    def hear(self, line: str) -> None:
        self.lines.append(line)
        self._more.set()
        self._more = trio.Event()

    async def wait_for(self, *texts: str) -> str:
        """The first line that contains one of `texts`, once it is there."""
        while True:
            for line in self.lines:
                if any(text in line for text in texts):
                    return line
            await self._more.wait()


class Job:
    """The processes of one job, and what they say."""

    def __init__(
        self, nursery: trio.Nursery, n: int, folder: Path, gates: Sequence[int], script: str
    ) -> None:
        self.n = n
        self.script = script
        self.folder = folder
        self.tracker = Voice()
        self.workers = [Voice() for _ in range(n + 2)]  # and spares
        self.statuses: list[tuple[str, int]] = []
        self._nursery = nursery
        self._gates = ",".join(map(str, gates))
        self._processes: dict[str, Process] = {}
        self.ready: dict[str, str] = {}

    async def serve(self, *options: str, prefix: Sequence[str] = ()) -> tuple[str, int]:
        """Start the tracker; returns its address."""
        command = [
            *prefix,
            sys.executable,
            "-m",
            "ftcomm_tracker",
            "serve",
            "-v",
            "-n",
            str(self.n),
        ]
        command += ["--state-dir", str(self.folder / "state"), "--transport", "tcp", *options]
        await self._start("tracker", command, self.tracker, {})
        line = await self.tracker.wait_for("ftcomm-tracker ready")
        self.ready = dict(word.split("=", 1) for word in line.split() if "=" in word)
        host, _, port = self.ready["address"].rpartition(":")
        return host, int(port)

    async def start(
        self, worker: int, *, prefix: Sequence[str] = (), supervised: bool = False, **env: str
    ) -> None:
        """Start an incarnation of a worker, or a supervisor that does."""
        variables = {
            "FTCOMM_TRACKER": self.ready["address"],
            "FTCOMM_TOKEN_FILE": self.ready["token_file"],
            "FTCOMM_WORKER_ID": str(worker),
            "FTCOMM_LOG": "info",
            **env,
        }
        command = [*prefix, sys.executable]
        if supervised:
            command += ["-m", "ftcomm_tracker", "supervise", "-v", "--", sys.executable]
        command += ["-c", self.script, self._gates]
        await self._start(str(worker), command, self.workers[worker], variables)

    async def gate(self, step: int) -> None:
        """Wait until rank 0 stands at a gate, and all others have said that they are near."""
        await self.workers[0].wait_for(f"gate {step}")

    async def open_gate(self) -> None:
        """Let rank 0 go on."""
        await self._processes["0"].stdin.send_all(b"\n")

    def kill(self, name: str) -> None:
        """SIGKILL for a worker or the tracker."""
        self._processes[name].popen.kill()

    def pid(self, name: str) -> int:
        return self._processes[name].popen.pid

    async def end_of(self, name: str) -> int:
        """Exit status of the newest process of that name."""
        return await self._processes[name].wait()

    async def models(self) -> set[str]:
        """Wait for the end of all processes; the models that the workers say."""
        for process in list(self._processes.values()):
            await process.wait()
        await trio.testing.wait_all_tasks_blocked()  # until what they said last is heard
        return {model for model, _ in self._ends()}

    def _ends(self) -> list[tuple[str, int]]:
        """Model and epoch of all who have said them."""
        said = [line.partition("model ") for voice in self.workers for line in voice.lines]
        ends = [words.split() for _, model, words in said if model]
        return [(model, int(epoch)) for model, epoch in ends]

    @property
    def epoch(self) -> int:
        """The highest epoch that a worker ended in."""
        return max(epoch for _, epoch in self._ends())

    def scenario(self) -> str:
        """Join the output of all processes, for a failure's text."""
        voices = {"tracker": self.tracker, **{str(i): v for i, v in enumerate(self.workers)}}
        return "\n".join(f"{name}: {line}" for name, v in voices.items() for line in v.lines)

    async def _start(
        self, name: str, command: Sequence[str], voice: Voice, env: Mapping[str, str]
    ) -> None:
        process = self._processes[name] = Process(command, env)
        for stream in process.outputs:
            self._nursery.start_soon(_listen, stream, voice.hear)
        self._nursery.start_soon(self._note_end, name, process)

    async def _note_end(self, name: str, process: "Process") -> None:
        self.statuses.append((name, await process.wait()))

    async def clear(self) -> None:
        """Leave nothing behind."""
        with trio.CancelScope(shield=True):
            for process in self._processes.values():
                process.popen.kill()
                await process.wait()
                for stream in (process.stdin, *process.outputs):
                    await stream.aclose()


class Process:
    """A process that ends with the thread that started it: the kernel ties it to the thread.

    (`trio.lowlevel.open_process` starts it from another thread, which ends when it is idle.)
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.popen = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**worker_environment(), **env},
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the child runs one line of its own
        )
        streams = []
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            assert pipe is not None
            streams.append(trio.lowlevel.FdStream(os.dup(pipe.fileno())))
            pipe.close()
        self.stdin, *self.outputs = streams

    async def wait(self) -> int:
        pidfd = os.pidfd_open(self.popen.pid) if self.popen.poll() is None else -1
        if pidfd >= 0:
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
        return self.popen.wait()


@contextlib.asynccontextmanager
async def job(
    folder: Path,
    n: int = 3,
    gates: Sequence[int] = (),
    *,
    script: str = SCRIPT,
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Job]:
    """A job that is not there any more when the block is left."""
    async with trio.open_nursery() as nursery:
        made = Job(nursery, n, folder, gates, script)
        try:
            with trio.move_on_after(patience_s) as scope:
                yield made
            assert not scope.cancelled_caught, f"not done in {patience_s:g} s\n{made.scenario()}"
        finally:
            await made.clear()
            nursery.cancel_scope.cancel()


async def peace(folder: Path, n: int, script: str = SCRIPT) -> str:
    """The model of a run without faults."""
    async with job(folder, n, script=script) as quiet:
        await quiet.serve()
        for worker in range(n):
            await quiet.start(worker)
        models = await quiet.models()
        assert (len(models), quiet.epoch) == (1, 1), quiet.scenario()
    return models.pop()


async def _listen(stream: trio.abc.ReceiveStream, hear: Callable[[str], None]) -> None:
    rest = b""
    with contextlib.suppress(trio.ClosedResourceError):
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                hear(line.decode(errors="replace"))


in_thread = partial(trio.to_thread.run_sync, abandon_on_cancel=False)
