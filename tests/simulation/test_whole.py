"""The whole simulator: one trio run, a virtual kernel, and processes that die at any instant."""

import contextlib
import functools
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import trio
from click.testing import CliRunner

from ftcomm.control import thread
from ftcomm.control.links.manager import Listener
from ftcomm.errors import ProtocolError
from ftcomm.protocol.handshake import NONCE_BYTES, ClientHandshake
from ftcomm_chaos.cli import main
from ftcomm_chaos.whole import guards, seams, trio_internals
from ftcomm_chaos.whole.faults import KINDS, DueFault
from ftcomm_chaos.whole.job import TrainingScript, WholeJob
from ftcomm_chaos.whole.network import VirtualKernel
from ftcomm_chaos.whole.threads import VirtualEvent, VirtualLock, VirtualThread, block
from ftcomm_chaos.whole.world import StuckError, VirtualProcess, VirtualWorld, current
from ftcomm_tracker.server.connections.authentication import authenticate

SERVER = ("10.0.0.1", 7000)


def test_trio_has_the_private_names_that_a_world_needs() -> None:
    assert trio_internals.missing() == []


async def receive(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await stream.receive_some()
        if not more:
            raise trio.BrokenResourceError
        data += more
    return data


class Echo:
    """A server and its clients, over trio's own streams."""

    def __init__(self, seed: int, clients: int = 3) -> None:
        self.world = VirtualWorld(seed, tracing=True)
        self.kernel = VirtualKernel(self.world)
        self.clients = clients
        self.answers: dict[str, list[bytes]] = {}
        self.ends: list[str] = []

    def run(self, *faults: tuple[float, Callable[["Echo"], object]], until: float = 10) -> str:
        async def main() -> None:
            trio.socket.set_custom_socket_factory(self.kernel)
            self.server = self.process("server", SERVER[0], self.serve)
            for number in range(self.clients):
                self.process(f"client {number}", f"10.0.1.{number}", self.ask)
            for when, fault in faults:
                self.world.at(when, fault, self)
            await self.world.elapse(until)

        guards.install()
        self.world.run(main)
        return self.world.digest

    def process(
        self, name: str, host: str, body: Callable[[], Awaitable[object]]
    ) -> VirtualProcess:
        process = VirtualProcess(self.world, name, host)
        process.start(body)
        return process

    def cut_after(self, count: int) -> None:
        for end in self.kernel.connections:
            end.left = count

    async def serve(self) -> None:
        async def echo(stream: trio.SocketStream) -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                async for data in stream:
                    await stream.send_all(data)

        await trio.serve_tcp(echo, SERVER[1], host=SERVER[0])

    async def ask(self) -> None:
        answers = self.answers.setdefault(current().name, [])
        try:
            stream = await trio.open_tcp_stream(*SERVER)
            for number in range(5):
                data = f"{current().name} {number}".encode() * 1000
                await stream.send_all(data)
                answers.append(await receive(stream, len(data)))
            self.ends.append("well")
        except (trio.BrokenResourceError, OSError) as error:
            self.ends.append(type(error).__name__)


def test_streams_of_trio_run_over_the_virtual_kernel() -> None:
    echo = Echo(1)
    echo.run()
    assert echo.ends == ["well"] * 3
    assert {len(answers) for answers in echo.answers.values()} == {5}


@pytest.mark.parametrize(
    ("fault", "ends"),
    [
        (lambda echo: echo.server.kill(), {"BrokenResourceError"}),
        (lambda echo: [end.cut() for end in echo.kernel.connections], {"BrokenResourceError"}),
        (lambda echo: [end.silence() for end in echo.kernel.connections], set()),
        (lambda echo: echo.server.stop(5), {"well"}),
        (lambda echo: echo.cut_after(9), {"BrokenResourceError"}),
    ],
    ids=["killed", "cut", "silent", "stopped", "cut at a byte"],
)
def test_a_fault_has_the_end_that_a_kernel_gives_it(
    fault: Callable[[Echo], object], ends: set[str]
) -> None:
    echo = Echo(2)
    echo.run((0.03, fault))
    assert set(echo.ends) == ends


def test_the_same_seed_is_the_same_run() -> None:
    def fault(echo: Echo) -> None:
        echo.server.stop(0.5)
        echo.kernel.connections[0].cut()

    digests = [Echo(seed).run((0.05, fault)) for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("stopped_s", [0.0, 1.0])
def test_who_hung_up_while_the_tracker_was_stopped_is_not_answered(stopped_s: float) -> None:
    echo, errors = Echo(5, clients=0), []

    async def answer(stream: trio.SocketStream) -> None:
        try:
            await authenticate(stream, b"key")
        except (trio.BrokenResourceError, ProtocolError) as error:
            errors.append(type(error))

    async def leave_soon() -> None:
        stream = await trio.open_tcp_stream(*SERVER)
        handshake = ClientHandshake(b"key", role="operator", context=b"", nonce=bytes(NONCE_BYTES))
        await stream.send_all(handshake.hello())
        await echo.world.elapse(0.5)
        await stream.aclose()

    async def serve() -> None:
        await trio.serve_tcp(answer, SERVER[1], host=SERVER[0])

    async def main() -> None:
        trio.socket.set_custom_socket_factory(echo.kernel)
        server = echo.process("server", SERVER[0], serve)
        echo.process("client", "10.0.1.0", leave_soon)
        if stopped_s:
            echo.world.at(0.001, server.stop, stopped_s)
        await echo.world.elapse(10)

    echo.world.run(main)
    assert errors == [ProtocolError if stopped_s else trio.BrokenResourceError]


def world_of(world: VirtualWorld, body: Callable[[], object]) -> None:
    """Run a world with one process, whose body is a thread."""

    async def main() -> None:
        async def run() -> None:
            thread = VirtualThread(target=body)
            thread.start()
            await thread.over.wait()
            if thread.error is not None:
                raise thread.error

        VirtualProcess(world, "process", "10.0.0.1").start(run)
        await world.elapse(10)

    guards.install()
    world.run(main)


def test_a_stopped_process_sees_its_timers_late() -> None:
    world, woken = VirtualWorld(0), []

    async def main() -> None:
        async def sleep() -> None:
            await world.elapse(1)
            woken.append(world.now)

        process = VirtualProcess(world, "process", "10.0.0.1")
        process.start(sleep)
        world.at(0.5, process.stop, 3.0)
        await world.elapse(10)

    world.run(main)
    assert woken == [3.5]


def test_no_finally_of_a_killed_process_runs_before_the_world_is_over() -> None:
    world, seen = VirtualWorld(0), []

    async def main() -> None:
        async def sleep() -> None:
            try:
                await trio.sleep_forever()
            finally:
                seen.append(world.is_over)

        process = VirtualProcess(world, "process", "10.0.0.1")
        process.start(sleep)
        world.at(0.5, process.kill)
        await world.elapse(10)
        assert seen == []

    world.run(main)
    assert seen == [True]


def test_threads_run_one_at_a_time_in_virtual_time() -> None:
    lock, steps = VirtualLock(), []

    def body() -> None:
        event = VirtualEvent()

        def other() -> None:
            with lock:
                steps.append("other")
            event.wait()
            steps.append("told")

        thread = VirtualThread(target=other)
        with lock:
            thread.start()
            block(functools.partial(current().world.elapse, 1.0))
            steps.append("first")
        block(functools.partial(current().world.elapse, 1.0))
        event.set()
        thread.join()
        steps.append("joined")

    world_of(VirtualWorld(0), body)
    assert steps == ["first", "other", "told", "joined"]


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (trio.current_time, RuntimeError),
        (trio.lowlevel.current_trio_token, RuntimeError),
        (socket.socket, guards.RealEffectError),
        (lambda: Path("/tmp/of-a-virtual-process").write_text("x"), guards.RealEffectError),
    ],
    ids=["time", "token", "socket", "file"],
)
def test_what_a_users_thread_may_not_do_is_refused(
    act: Callable[[], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        world_of(VirtualWorld(0), act)


def test_tasks_that_wait_for_no_time_are_stuck() -> None:
    world = VirtualWorld(0)

    async def main() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(StuckError):
        world.run(main)


def test_a_real_thread_of_a_virtual_process_is_refused() -> None:
    """Python 3.11 tells no audit hook of it."""
    world = VirtualWorld(0)
    with (
        seams.virtual(VirtualKernel(world)),
        pytest.raises(guards.RealEffectError, match="thread"),
    ):
        world_of(world, threading.Thread(target=print).start)


@pytest.mark.parametrize("seed", range(6))
def test_a_job_of_real_drivers_ends_with_the_results_of_its_script(seed: int) -> None:
    job = WholeJob(seed, plan=[]).run()
    assert job.ending == "finished"
    assert job.finished == {f"w{number}" for number in range(job.script.size)}
    assert job.counters["results"] == len(job.script.expected)
    assert job.counters["epochs"] == 1


def test_a_seed_of_a_job_is_one_run() -> None:
    """Nothing may depend on what ran before in this process, nor on the clock."""
    digests = [WholeJob(seed).run().world.digest for seed in (2, 4, 4, 2)]
    assert digests[:2] == digests[:1:-1]
    assert digests[0] != digests[1]


def test_the_product_has_its_own_modules_again_behind_a_run() -> None:
    WholeJob(0).run()
    assert (thread.trio, thread.threading, thread.time) == (trio, threading, time)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_job_survives_one_fault_of_each_kind(kind: str) -> None:
    """Their processes tell where they are, so that there are points to die at.

    Not each seed comes to the point, or has the process, that its fault waits for.
    """

    def job_of(seed: int) -> WholeJob:
        job = WholeJob(seed, plan=[DueFault(100, kind)])
        job.has_points = True
        return job.run()

    job = next(job for job in map(job_of, range(6, 12)) if job.faults.fired)
    assert job.faults.fired == [kind]
    assert job.ending in {"finished", "JobLostError"}


def test_a_crash_is_survived_by_what_the_others_have() -> None:
    job = WholeJob(3, plan=[DueFault(150, "crash")]).run()
    assert (job.ending, job.counters["processes"]) == ("finished", job.script.size + 1)
    assert job.counters["fetched"] > 0


def test_the_rules_hold_in_seeds() -> None:
    done = CliRunner().invoke(main, ["whole", "--seeds", "0:24"])
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "all rules held"), done.output


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("share", range(6))
def test_the_rules_hold_in_many_seeds(share: int) -> None:
    seeds = f"{100 * share + 24}:{100 * share + 124}"
    done = CliRunner().invoke(main, ["whole", "--seeds", seeds])
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "all rules held"), done.output


def test_a_broken_rule_is_told_with_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with another result stands for a defect of the product."""
    monkeypatch.setattr(TrainingScript, "call", lambda *_: np.ones(3))
    done = CliRunner().invoke(main, ["whole", "--seeds", "3", "--stop-after", "1"])
    lines = done.output.splitlines()
    assert done.exit_code == 1
    assert any(re.fullmatch(r"[0-9.]+ result 0 0 \d \d+", line) for line in lines)
    assert "  again with: ftcomm-chaos whole --seeds 3 --trace" in lines
    assert lines[-1].startswith("seed 3: Violation: ")


def test_an_exception_that_is_logged_and_survived_breaks_a_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Listener, "bind", lambda *_: logging.getLogger("ftcomm").no_such_name)
    with pytest.raises(AttributeError, match="no_such_name"):
        WholeJob(3, plan=[]).run()


@pytest.mark.parametrize("seeds", ["0:0", "x", "3:y"])
def test_seeds_that_show_nothing_are_refused(seeds: str) -> None:
    assert CliRunner().invoke(main, ["whole", "--seeds", seeds]).exit_code in {2, 3}


@pytest.mark.smoke
@pytest.mark.process
def test_a_seed_is_one_run_under_every_hash_seed() -> None:
    command = [sys.executable, "-m", "ftcomm_chaos", "whole", "--seeds", "0:4", "--digest"]
    path = os.pathsep.join(part for part in sys.path if part)
    digests = {
        subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.partition("digest:")[2]
        for seed in ("0", "4711")
    }
    assert len(digests) == 1
