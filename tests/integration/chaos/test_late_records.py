"""Records of faults that are read late: of who has ended, while another has its place."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from ftcomm.config.process_identity import start_of
from ftcomm.diagnostics.fault_record import FaultRecord
from ftcomm_chaos.faults.fault import Preparation
from ftcomm_chaos.report.run_record import RunRecord
from ftcomm_chaos.report.verdict import RunExit, Verdict, judge
from ftcomm_chaos.runner.fault_plan import check_plan
from ftcomm_chaos.runner.fault_scheduler import FaultScheduler
from ftcomm_chaos.runner.job import JobSpec, make_folders
from ftcomm_chaos.runner.launched_job import LaunchedJob
from ftcomm_chaos.runner.process_announcements import Announcements
from ftcomm_chaos.runner.runner import ChaosRunOptions, record_of
from tests.integration.chaos import scenarios

pytestmark = [
    pytest.mark.trio,
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the runner needs pidfds"),
]
WAITS = "import sys; sys.stdin.read()"


@dataclass
class Stage:
    """A job whose processes, output and notes the test plays; every process is real."""

    job: LaunchedJob
    schedule: FaultScheduler
    notes: Announcements
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def begin(self, worker: str) -> "subprocess.Popen[bytes]":
        """An incarnation begins, and its note is in the pipe."""
        process = subprocess.Popen(
            [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, start_new_session=True
        )
        self.processes.append(process)
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        self.write(f"started {worker} {stat.rstrip()}")
        return process

    def write(self, line: str) -> None:
        with self.notes.path.open("a") as pipe:
            pipe.write(f"{line}\n")

    def record(self, fault: str, process: "subprocess.Popen[bytes]") -> str:
        """Return the line that the process records of a fault that hits it."""
        pid, at = process.pid, self.job.began_monotonic + 1.0
        return str(FaultRecord(fault, pid, start_of(pid) or 0, pid, 1, 1, at))

    def dies(self, process: "subprocess.Popen[bytes]", worker: str) -> None:
        """It is killed, and the launcher says so."""
        process.kill()
        process.wait()
        self.job.hear("launcher", [f"ftcomm: worker {worker} was killed by SIGKILL: again"])

    async def play(self) -> None:
        """Only now does the runner come to look at the pipe; then the run is over."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.schedule.deliver, self.job)
            await trio.testing.wait_all_tasks_blocked()
            for note in self.notes.take():
                self.job.take_note(note, nursery)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    def verdict(self) -> tuple[RunRecord, Verdict]:
        self.job.finish()
        record = record_of(self.job.spec, self.job, self.schedule, ChaosRunOptions(), 0, 9.0)
        record.result = "5af3"
        missed = [str(entry) for entry in self.schedule.missed()]
        return record, judge(scenarios.run("without faults"), [record], missed=missed)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        self.notes.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


async def staged(folder: Path, *entries: dict[str, Any]) -> Stage:
    nothing: Any = None
    spec = JobSpec("run 1 with faults", folder, 2, ("true",), (), (), {})
    make_folders(spec)
    schedule = FaultScheduler(check_plan(list(entries), 2), seed=1, run=0, stop_after_s=100.0)
    job = LaunchedJob(spec, Preparation(("0", "1"), nothing, nothing), schedule.hear)
    return Stage(job, schedule, Announcements(folder))


@pytest.fixture
def stages() -> Iterator[list[Stage]]:
    made: list[Stage] = []
    yield made
    for stage in made:
        stage.close()


async def test_a_record_read_after_the_restart_is_of_who_died(
    folder: Path, stages: list[Stage]
) -> None:
    stage = await staged(folder, {"at": {"position": "0.1.0.0@enter"}, "kind": "sigkill"})
    stages.append(stage)
    first = stage.begin("0")
    stage.write(stage.record("0.1.0.0@enter=kill", first))
    stage.dies(first, "0")
    second = stage.begin("0")
    await stage.play()
    record, verdict = stage.verdict()
    (delivery,) = record.deliveries
    assert verdict == Verdict(RunExit.PASSED)
    assert (delivery.dies, round(delivery.at_s, 6)) == ((first.pid,), 1.0)
    assert delivery.what == f"SIGKILL for worker 0 (incarnation 1, process {first.pid})"
    assert [process.pid for process in record.processes] == [first.pid, second.pid]


async def test_a_member_whose_rank_a_spare_has_when_its_record_is_read_was_no_spare(
    folder: Path, stages: list[Stage]
) -> None:
    stage = await staged(folder, {"at": {"position": "0.1.0.0@enter"}, "kind": "sigkill"})
    stages.append(stage)
    first = stage.begin("0")
    stage.write(stage.record("0.1.0.0@enter=kill", first))
    stage.dies(first, "0")
    stage.job.hear("launcher", ["ftcomm: spare spare-0 takes the place of rank 0"])
    await stage.play()
    record, _ = stage.verdict()
    assert [(delivery.workers, delivery.spares) for delivery in record.deliveries] == [(("0",), ())]


async def test_a_recovery_that_is_over_when_the_record_is_read_is_not_awaited(
    folder: Path, stages: list[Stage]
) -> None:
    stage = await staged(folder, {"at": {"position": "0.1.0.0@enter"}, "kind": "sigkill"})
    stages.append(stage)
    first = stage.begin("0")
    stage.job.hear("launcher", ["ftcomm: epoch 1 runs: frontier -1.0 (rank 0 stands at -1.0)"])
    stage.write(stage.record("0.1.0.0@enter=kill", first))
    stage.job.hear("launcher", ["ftcomm: epoch 2: lost worker 0: its connection ended (rank 0)"])
    stage.dies(first, "0")
    stage.begin("0")
    stage.job.hear("launcher", ["ftcomm: recovered, epoch 2: lost worker 0; 3 ms"])
    await stage.play()
    assert stage.job.output.is_quiescent


async def test_a_fault_for_who_reached_an_address_does_not_hit_who_has_its_place(
    folder: Path, stages: list[Stage]
) -> None:
    stage = await staged(folder, {"at": {"position": "0.1.0.0@enter"}, "kind": "sigterm"})
    stages.append(stage)
    first = stage.begin("0")
    stage.write(stage.record("0.1.0.0@enter=note", first))
    stage.dies(first, "0")
    second = stage.begin("0")
    await stage.play()
    failed = [delivery.failed for delivery in stage.schedule.deliveries]
    assert (failed, second.poll()) == (["the process that reached it has ended"], None)


async def test_a_trackers_record_read_after_its_restart_is_of_the_tracker_that_died(
    folder: Path, stages: list[Stage]
) -> None:
    stage = await staged(folder, {"at": {"position": "1.2@plan_sent"}, "kind": "tracker_kill"})
    stages.append(stage)
    first = stage.begin("tracker")
    record = stage.record("1.2@plan_sent#1", first)
    stage.dies(first, "tracker")
    stage.begin("tracker")  # of a tracker that we start we know at once, whatever is in the pipe
    stage.write(f"tracker {record}")
    await stage.play()
    assert [delivery.dies for delivery in stage.schedule.deliveries] == [(first.pid,)]


async def test_a_record_of_the_last_moment_counts_though_the_run_is_over(
    folder: Path, stages: list[Stage]
) -> None:
    stage = await staged(folder, {"at": {"position": "0.1.0.0@enter"}, "kind": "sigkill"})
    stages.append(stage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.schedule.deliver, stage.job)
        await trio.testing.wait_all_tasks_blocked()
        first = stage.begin("0")
        stage.write(stage.record("0.1.0.0@enter=kill", first))
        stage.dies(first, "0")
        for note in stage.notes.take():
            stage.job.take_note(note, nursery)
        nursery.cancel_scope.cancel()
    assert stage.verdict()[1] == Verdict(RunExit.PASSED)


async def test_a_fault_in_a_child_of_a_worker_is_not_taken_for_the_workers_own_end(
    folder: Path, stages: list[Stage]
) -> None:
    stage = await staged(folder, {"at": {"position": "0.1.0.0@enter"}, "kind": "sigkill"})
    stages.append(stage)
    shell = stage.begin("0")
    stage.write(str(FaultRecord("0.1.0.0@enter=kill", 1, 2, shell.pid, 1, 1, 5.0)))
    await stage.play()
    (delivery,) = stage.schedule.deliveries
    assert (delivery.workers, delivery.dies, delivery.failed) == (("0",), (), "")


async def test_a_record_of_a_process_that_nobody_started_is_no_delivery(
    folder: Path, stages: list[Stage]
) -> None:
    stage = await staged(folder, {"at": {"position": "0.1.0.0@enter"}, "kind": "sigkill"})
    stages.append(stage)
    stage.begin("0")
    stage.write(str(FaultRecord("0.1.0.0@enter=kill", 1, 2, 3, 1, 1, 5.0)))
    await stage.play()
    failed = [delivery.failed for delivery in stage.schedule.deliveries]
    assert failed == ["process 1, which reached it, is unknown"]
