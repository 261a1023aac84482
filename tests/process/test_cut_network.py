"""A network that swallows packets between two of three hosts, by the kernel's own means (R12).

Each worker and the tracker have a network namespace of their own, joined by a bridge.  Cut is a
pair of them by a wrong hardware address on both sides: packets leave, and reach nobody.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.conformance.forker import die_with_parent
from tests.conformance.plans import worker_environment

pytestmark = pytest.mark.process

WORKERS = 3
NOBODY = "02:00:00:00:00:99"  # a hardware address that no interface has
SCRIPT = """
import hashlib, sys
import numpy as np
import ftcomm
with ftcomm.init() as comm:
    _, state = comm.load_checkpoint(default=np.zeros(20_000))
    for step in range(12):
        if step == 6 and comm.rank == 0:
            print("gate", flush=True)
            sys.stdin.readline()
        x = np.random.default_rng([step, comm.rank]).standard_normal(20_000)
        state = state * 0.5 + comm.allreduce(x)
        state += comm.broadcast(state, root=step % comm.world_size)
        if step == 8:
            comm.checkpoint(state)
print(hashlib.sha256(state.tobytes()).hexdigest(), comm.epoch, flush=True)
"""


def missing() -> str:
    """What this machine lacks for the test; empty if nothing."""
    tools = [tool for tool in ("ip", "unshare", "nsenter") if shutil.which(tool) is None]
    if tools:
        return f"needs {', '.join(tools)}"
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    tried = subprocess.run(
        ["unshare", "-n", "ip", "link", "add", "br0", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"cannot make a bridge in a namespace: {tried.stderr.strip()}" * bool(tried.returncode)


class Namespaces:
    """One namespace for the tracker and a bridge, one for each worker."""

    def __init__(self, processes: contextlib.ExitStack) -> None:
        self._processes = processes
        self.hub = self._hold()
        self._ip(self.hub, "link add br0 type bridge")
        self._ip(self.hub, "addr add 10.9.0.1/24 dev br0")
        self._ip(self.hub, "link set br0 up")
        self.workers = [self._hold() for _ in range(WORKERS)]
        for index, holder in enumerate(self.workers):
            self._ip(self.hub, f"link add v{index} type veth peer name eth0 netns {holder}")
            self._ip(self.hub, f"link set v{index} master br0 up")
            self._ip(holder, f"addr add {self.address(index)}/24 dev eth0")
            self._ip(holder, "link set eth0 up")

    @staticmethod
    def address(worker: int) -> str:
        return f"10.9.0.{10 + worker}"

    def cut(self, one: int, other: int) -> None:
        """Let nothing pass between two workers."""
        for here, there in ((one, other), (other, one)):
            where = f"{self.address(there)} lladdr {NOBODY} dev eth0 nud permanent"
            self._ip(self.workers[here], f"neigh replace {where}")

    def _hold(self) -> int:
        """A process whose namespace is a new one, for as long as the test runs."""
        holder = self.start("unshare", "-n", "sh", "-c", "ip link set lo up; echo up; exec cat")
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        return holder.pid

    @staticmethod
    def _ip(holder: int, command: str) -> None:
        subprocess.run(["nsenter", "-t", str(holder), "-n", "ip", *command.split()], check=True)

    def python(self, holder: int, *arguments: str, **env: str) -> "subprocess.Popen[str]":
        """Start Python in a namespace."""
        return self.start("nsenter", "-t", str(holder), "-n", sys.executable, *arguments, **env)

    def start(self, *command: str, **env: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**worker_environment(), **env},
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the test has one thread
        )
        self._processes.callback(_end, process)
        return process


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    with contextlib.ExitStack() as processes:
        yield Namespaces(processes)


def run_job(
    namespaces: Namespaces, folder: Path, *, cut: bool = False
) -> tuple[set[str], int, str]:
    """Digests of the final states, the highest epoch, and the tracker's log."""
    options = ["-n", str(WORKERS), "--host", "10.9.0.1", "--state-dir", str(folder)]
    options += ["--detect-within", "1", "--transport", "tcp"]
    tracker = namespaces.python(namespaces.hub, "-m", "ftcomm_tracker.cli", "serve", *options)
    ready = dict(word.split("=", 1) for word in _line(tracker.stdout).split() if "=" in word)
    workers = [
        namespaces.python(
            holder,
            *("-c", SCRIPT),
            FTCOMM_TRACKER=ready["address"],
            FTCOMM_TOKEN_FILE=ready["token_file"],
            FTCOMM_WORKER_ID=str(index),
        )
        for index, holder in enumerate(namespaces.workers)
    ]
    assert _line(workers[0].stdout) == "gate\n"
    if cut:
        namespaces.cut(0, 1)
    outputs = [worker.communicate("\n" * (index == 0)) for index, worker in enumerate(workers)]
    assert [worker.returncode for worker in workers] == [0] * WORKERS, outputs
    _, log = tracker.communicate()
    ends = [out.split() for out, _ in outputs]
    return {end[0] for end in ends}, max(int(end[1]) for end in ends), log


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


@pytest.mark.slow
def test_two_hosts_between_which_packets_vanish_work_on_through_the_third(
    namespaces: Namespaces, tmp_path: Path
) -> None:
    """First while the job runs; what is cut stays so, and the next job can never connect there."""
    digests, epoch, _ = run_job(namespaces, tmp_path / "peace")
    assert (len(digests), epoch) == (1, 1)
    for name, cut in (("during", True), ("before", False)):
        again, epoch, log = run_job(namespaces, tmp_path / name, cut=cut)
        assert (again, epoch) == (digests, 3), log
        assert "ranks 0 and 1 cannot reach each other: relayed by rank 2" in log
