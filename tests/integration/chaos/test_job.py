"""A job as faults see it, of which we play the output and the processes."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ftcomm.config.process_identity import ProcessName
from ftcomm_chaos.faults.fault import Preparation
from ftcomm_chaos.faults.processes import JobProcess
from ftcomm_chaos.report.run_record import UNTOLD
from ftcomm_chaos.runner.job import JobSpec
from ftcomm_chaos.runner.launched_job import LaunchedJob

pytestmark = pytest.mark.trio
ENDED = ProcessName((1 << 22) + 1, 7)  # a number that the kernel gives to none


def job(folder: Path) -> LaunchedJob:
    nothing: Any = None
    spec = JobSpec("a job", folder, 2, ("true",), (), (), {})
    made = LaunchedJob(spec, Preparation(("0", "1"), nothing, nothing), lambda _: None)
    # they seem to run
    made.processes = [JobProcess(worker, 1, 100, 7, 0.0, pidfd=5) for worker in "01"]
    return made


async def test_processes_are_counted_from_one_for_each_worker(tmp_path: Path) -> None:
    there = job(tmp_path)
    there.processes = []
    async with trio.open_nursery() as nursery:
        for worker in "011":
            there.add_process(worker, ENDED, nursery)
    assert [str(process) for process in there.processes] == [
        "worker 0 (incarnation 1, process 4194305)",
        "worker 1 (incarnation 1, process 4194305)",
        "worker 1 (incarnation 2, process 4194305)",
    ]


@pytest.mark.process
async def test_the_end_of_a_child_that_says_nothing_is_news(tmp_path: Path) -> None:
    there = job(tmp_path)
    child = there.start("launcher", [sys.executable, "-c", "import sys; sys.stdin.read()"], {})
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(there.attend, child)
            nursery.start_soon(there.until, lambda _: not child.running)
            await trio.testing.wait_all_tasks_blocked()
            child.signal(signal.SIGKILL)


async def test_an_end_that_a_killed_launcher_has_not_told_is_not_that_of_a_later_process(
    tmp_path: Path,
) -> None:
    there = job(tmp_path)
    ends = [JobProcess("0", number, 100 + number, 7, 0.0, pidfd=-1) for number in (1, 2, 3, 4)]
    there.processes = ends[:3]
    there.hear("launcher", ["ftcomm: worker 0 was killed by SIGKILL: starting it again"])
    with trio.fail_after(30):
        await there.note_untold(there.processes)
    there.processes = ends
    there.hear("launcher", ["ftcomm: worker 0 exited with status 1: starting it again"])
    there.finish()
    assert [process.how for process in there.processes] == [
        "was killed by SIGKILL",
        UNTOLD,
        UNTOLD,
        "exited with status 1",
    ]


async def test_nobody_is_left_to_be_hit_once_all_have_closed(tmp_path: Path) -> None:
    there, left = job(tmp_path), []
    for line in ("ftcomm: worker 1 has closed", "ftcomm: all ranks have closed at version 3"):
        there.hear("launcher", [line])
        left.append(
            [process.who for process in map(there.process, there.workers) if process is not None]
        )
    assert left == [["0"], []]
    assert there.closed_at.keys() == {"0", "1"}
    assert there.closed_at["1"] <= there.closed_at["0"]
