"""Workers that outlive their job, jobs that outlive worker and tracker, and last words."""

import contextlib
import logging
import os
import re
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from ftcomm.config.environment import process_environment
from ftcomm.errors import TrackerLostError
from ftcomm.protocol.operator_messages import WorkerStatusReply
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.events import JobEnded
from ftcomm_tracker.launcher import launcher as launch
from ftcomm_tracker.launcher import worker_output
from ftcomm_tracker.launcher.console import Console
from ftcomm_tracker.launcher.launcher import Launcher, LaunchOptions
from ftcomm_tracker.launcher.log_lines import LineFormat

pytestmark = [pytest.mark.process, pytest.mark.trio]


def heard(shown: int = logging.INFO) -> tuple[Console, list[bytes]]:
    """A console, and what it writes to the error stream."""
    said: list[bytes] = []

    def write(number: int, data: bytes | memoryview) -> None:
        if number == 2:
            said.append(bytes(data))

    line_format = LineFormat(as_json=False, clock=lambda: 0.0)
    return Console(line_format, write=write, shown=shown), said


def own_words(said: list[bytes]) -> list[str]:
    words = [line.partition(" ftcomm: ")[2] for line in b"".join(said).decode().splitlines()]
    return [line for line in words if " is process " not in line]


class LostJob:
    """A job that is over, badly, while its workers run."""

    detect_within_s = 5.0
    attempt = 0
    outcome: JobEnded | None = JobEnded(False, "JobStoppedError", "the job was stopped")

    def __init__(self) -> None:
        self.over = trio.Event()

    async def end(self) -> None:
        await trio.testing.wait_all_tasks_blocked()
        self.over.set()

    def post(self, event: object) -> None:
        pass

    async def catch_up(self) -> None:
        pass

    def has_closed(self, worker_id: str) -> bool:
        return False

    def is_connected(self, worker_id: str) -> bool:
        return True

    def misses(self, worker_id: str) -> bool:
        return False

    def had_rank(self, worker_id: str, pid: int) -> bool | None:
        return None

    def has_rank(self, worker_id: str) -> bool:
        return True

    def standing_of(self, worker_id: str, number: int) -> WorkerStatusReply:
        return WorkerStatusReply(number, True, False, False, START, "", 0, 5000, over=True)

    def progress(self) -> Position:
        return START

    def summary(self) -> str:
        return ""


async def test_a_worker_that_goes_on_after_the_end_is_named_and_then_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "STRAGGLERS_AFTER_S", 0.0)
    console, said = heard()
    options = LaunchOptions(("0",), ("sleep", "1000"), grace_s=0.1)
    job = LostJob()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(console.run)
        nursery.start_soon(job.end)
        status = await Launcher(options, job, console, {"PATH": "/bin:/usr/bin"}).run()
        console.close()
    assert status == 78
    assert own_words(said) == [
        "worker 0 still runs, though the job is over; it has 0.1 s to end by itself",
        "worker 0 was killed by SIGTERM",
    ]


class DoneJob(LostJob):
    """A job that ends well while its worker runs."""

    outcome = JobEnded(True)


async def test_a_worker_that_goes_on_after_a_good_end_is_named_and_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "STRAGGLERS_AFTER_S", 0.0)
    heard_all = trio.Event()

    class Heard(Console):
        def warn(self, text: str) -> None:
            said.append(text)
            heard_all.set()

    said: list[str] = []
    console = Heard(LineFormat(as_json=False, clock=lambda: 0.0), write=lambda *_: None)
    options = LaunchOptions(("0",), ("sleep", "1000"), grace_s=0.1)
    job = DoneJob()
    launcher = Launcher(options, job, console, {"PATH": "/bin:/usr/bin"})
    statuses = []

    async def run() -> None:
        statuses.append(await launcher.run())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        nursery.start_soon(job.end)
        await heard_all.wait()
        assert launcher.kill("0")  # it ran
    pattern = r"worker 0 \(pid \d+\) still runs, though the job has ended well: waiting for its end"
    assert (statuses, said[1:]) == ([0], ["worker 0 was killed by SIGKILL"])
    assert re.match(pattern, said[0])


class ForsakenJob(LostJob):
    """Its only worker here has closed; then its tracker has gone, for good."""

    detect_within_s = 0.0
    outcome = None

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def catch_up(self) -> None:
        self.asked += 1
        if self.asked > 2:  # at the worker's end, and before the wait for the others
            raise TrackerLostError("nobody answers")

    def has_closed(self, worker_id: str) -> bool:
        return True


async def test_the_end_of_a_job_is_not_awaited_from_a_tracker_that_is_gone() -> None:
    console, _ = heard()
    options = LaunchOptions(("0",), ("true",))
    launcher = Launcher(options, ForsakenJob(), console, {"PATH": "/bin:/usr/bin"})
    with pytest.RaisesGroup(TrackerLostError):
        await launcher.run()


class HeardLateJob(LostJob):
    """Its only worker has closed and ended; the tracker has yet to read that it has closed."""

    outcome = JobEnded(True)

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def catch_up(self) -> None:
        self.asked += 1
        if self.asked > 1:
            self.over.set()

    def has_closed(self, worker_id: str) -> bool:
        return self.asked > 0


async def test_what_a_worker_said_last_is_heard_before_its_end_is_judged() -> None:
    """It would count as dead, and be started again into a job that is done."""
    console, said = heard()
    options = LaunchOptions(("0",), ("true",))
    job = HeardLateJob()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(console.run)
        status = await Launcher(options, job, console, {"PATH": "/bin:/usr/bin"}).run()
        console.close()
    assert (status, own_words(said)) == (0, [])


class SlowConsole(Console):
    """Its reader takes the first line of a worker, and nothing more until `reads`."""

    def __init__(self) -> None:
        super().__init__(LineFormat(as_json=False, clock=lambda: 0.0), write=lambda *_: None)
        self.shown = b""
        self.process = 0
        self.begun = trio.Event()
        self.reads = trio.Event()

    def begin(self, worker_id: str, text: str) -> None:
        self.process = os.pidfd_open(int(text.rpartition(" ")[2]))

    async def show(self, worker_id: str, number: int, data: bytes) -> None:
        self.shown += data
        self.begun.set()
        await self.reads.wait()


LAST_WORDS = """
print("first", flush=True)
open(sys.argv[1]).read()
print("why it dies", flush=True)
"""
LEAVES_ITS_PIPES_TO_ANOTHER = """
if os.fork() == 0:
    os.setsid()
    open(sys.argv[2]).read()
    os._exit(0)
"""


@pytest.mark.parametrize("leaves", ["", LEAVES_ITS_PIPES_TO_ANOTHER])
async def test_a_slow_reader_gets_the_last_words_of_a_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, leaves: str
) -> None:
    monkeypatch.setattr(worker_output, "DRAIN_DEADLINE_S", 0.0)
    goes_on, other = tmp_path / "goes_on", tmp_path / "other"
    os.mkfifo(goes_on)
    os.mkfifo(other)
    script = f"import os, sys\n{leaves}{LAST_WORDS}"
    command = (sys.executable, "-c", script, str(goes_on), str(other))
    job, console = DoneJob(), SlowConsole()
    launcher = Launcher(LaunchOptions(("0",), command), job, console, process_environment())
    with contextlib.closing(other.open("r+b", buffering=0)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(launcher.run)
            await console.begun.wait()
            job.over.set()
            goes_on.write_bytes(b"")
            await trio.lowlevel.wait_readable(console.process)
            await trio.testing.wait_all_tasks_blocked()
            console.reads.set()
        os.close(console.process)
    assert console.shown == b"first\nwhy it dies\n"
