"""``ftcomm-chaos run`` with real jobs: what it calls a pass, a violation, or nothing."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ftcomm.config.process_identity import read_proc_stat
from ftcomm_chaos.commands.run import REPORT
from ftcomm_chaos.report.run_record import RunRecord
from ftcomm_chaos.report.verdict import judge
from ftcomm_chaos.runner.fault_scheduler import FaultScheduler
from ftcomm_chaos.runner.job import JobSpec
from ftcomm_chaos.runner.runner import ChaosRunOptions, run_once
from tests.conformance.plans import ROOT, worker_environment
from tests.helpers.forker import die_with_parent
from tests.integration.chaos.scripts import (
    ENDLESS,
    GOOD,
    LINGERS,
    LOST_UPDATE,
    SKIPS,
    UNSEEDED,
    WRITES,
)

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd"),
]
WALL_S = 110.0  # a session takes about four seconds on two idle cores
KILL: list[dict[str, Any]] = [{"at": {"position": "1.5.1.0@enter"}, "kind": "sigkill"}]


def command(folder: Path, script: str, *options: str, arguments: tuple[str, ...] = ()) -> list[str]:
    path = folder / "train.py"
    path.write_text(script)
    kept = ["--keep", str(folder / "kept")]
    chaos = [sys.executable, "-m", "ftcomm_chaos", "run", "-n", "2", *kept, *options]
    return [*chaos, "--", sys.executable, str(path), *arguments]


def with_plan(folder: Path, plan: object) -> list[str]:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    return ["--plan", str(path)]


def environment() -> dict[str, str]:
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tracker", ROOT / "chaos")))
    return {**worker_environment(), "PYTHONPATH": paths}


def chaos(
    folder: Path, script: str, plan: object, *options: str, arguments: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any], str]:
    """Run a script through a plan; returns the status, the report, and what was said."""
    return output(command(folder, script, *with_plan(folder, plan), *options, arguments=arguments))


def output(line: list[str]) -> tuple[int, dict[str, Any], str]:
    """Run a command; returns the status, the report, and what was said."""
    done = subprocess.run(
        line,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WALL_S,
        check=False,
        preexec_fn=die_with_parent,
    )
    path = Path(line[line.index("--keep") + 1]) / REPORT
    report = json.loads(path.read_text()) if path.exists() else {}
    return done.returncode, report, done.stderr


def test_a_job_whose_workers_and_tracker_are_killed_returns_the_same(tmp_path: Path) -> None:
    plan = [
        *KILL,
        {"at": {"position": "0.7.0.0@done"}, "kind": "sigstop", "for": 0.2},
        {"at": {"position": "1.2@plan_sent"}, "kind": "tracker_kill", "for": 0.1},
        {"at": {"position": "0.-1.0.0@connected"}, "kind": "sigkill"},
    ]
    html = tmp_path / "report.html"
    status, report, said = chaos(tmp_path, GOOD, plan, "--html", str(html))
    assert status == 0, said + json.dumps(report)
    (run,) = report["runs"]
    whats = sorted(delivery["what"].split(" (")[0] for delivery in run["deliveries"])
    assert whats == [
        "SIGKILL for worker 0",
        "SIGKILL for worker 1",
        "SIGSTOP for worker 0",
        "tracker_kill at 1.2@plan_sent#1",
    ]
    ends = [process["how"] for process in run["processes"] if process["who"] == "1"]
    assert ends[0] == "was killed by SIGKILL"
    ET.fromstring(html.read_text().removeprefix("<!DOCTYPE html>"))


def test_random_kills_come_until_the_time_is_over(tmp_path: Path) -> None:
    options = ("--seed", "7", "--kill-every", "1s", "--duration", "6s")
    # Longer than two recoveries on a busy machine: each is awaited before the next fault.
    status, report, said = output(command(tmp_path, GOOD.replace("0.02", "0.6"), *options))
    assert status == 0, said + json.dumps(report)
    kinds = {delivery["kind"] for run in report["runs"] for delivery in run["deliveries"]}
    assert kinds == {"sigkill", "lose_all"}


def test_a_loss_of_everything_comes_without_being_asked_for(tmp_path: Path) -> None:
    """It alone shows what all ranks forget alike."""
    script = LOST_UPDATE.replace("seen += 1", "seen += 1; time.sleep(0.3)")
    line = command(tmp_path, f"import time\n{script}", "--kill-every", "60s")
    status, report, said = output(line)
    assert status == 1, said + json.dumps(report["reasons"])
    assert any("the last result differs" in reason for reason in report["reasons"])
    kinds = [delivery["kind"] for run in report["runs"] for delivery in run["deliveries"]]
    assert kinds == ["lose_all"]


def test_the_file_that_the_script_names_is_compared(tmp_path: Path) -> None:
    plan = [{"at": {"position": "0.3.0.0@enter"}, "kind": "sigkill"}]
    options = ("--compare", "model")
    status, report, said = chaos(tmp_path, WRITES, plan, *options, arguments=("{out}/model",))
    assert (status, report["compared"]) == (0, "model"), said
    assert report["runs"][0]["result"] == report["reference"]["result"] != ""
    assert report["runs"][0]["incidents"][0]["victims"] == ["0"]


@pytest.mark.parametrize(
    ("script", "reasons"),
    [
        pytest.param(
            UNSEEDED,
            ["the last result differs", "does not compute the same twice"],
            id="unseeded",
        ),
        pytest.param(
            LOST_UPDATE, ["the last result differs"], id="lost-update", marks=pytest.mark.slow
        ),
        pytest.param(
            SKIPS, ["status 72 (CollectiveMismatchError)"], id="skips", marks=pytest.mark.slow
        ),
    ],
)
def test_a_script_with_a_mutant_is_a_violation(
    tmp_path: Path, script: str, reasons: list[str]
) -> None:
    status, report, said = chaos(tmp_path, script, KILL)
    assert status == 1, said
    for reason in reasons:
        assert any(reason in found for found in report["reasons"]), report["reasons"]


def test_a_run_in_which_no_fault_was_delivered_is_no_pass(tmp_path: Path) -> None:
    plan = [{"at": {"seconds": 600}, "kind": "sigkill"}]
    status, report, said = chaos(tmp_path, WRITES, plan, arguments=("{out}/model",))
    assert status == 2, said
    assert report["reasons"][0] == "not delivered: fault 1: sigkill for random at 600 s"


def test_a_process_that_outlives_its_rank_is_nobody_to_kill(tmp_path: Path) -> None:
    plan = [{"at": {"seconds": 2}, "kind": "sigkill", "target": rank} for rank in (0, 1)]
    status, report, said = chaos(tmp_path, LINGERS, plan)
    assert status == 2, said
    assert {delivery["failed"] for delivery in report["runs"][0]["deliveries"]} == {
        "all ranks had closed"
    }
    assert report["runs"][0]["closed_s"].keys() == {"0", "1"}


def test_a_trace_of_machines_takes_workers_and_gives_them_back(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("0,add,a\n0,add,b\n1200,remove,b\n1400,add,c\n")
    script = GOOD.replace("0.02", "0.2")
    options = ["--trace", str(trace), "--trace-speed", "2"]
    status, report, said = output(command(tmp_path, script, *options))
    assert status == 0, said
    (run,) = report["runs"]
    assert [delivery["what"] for delivery in run["deliveries"]] == ["b goes, and worker 1 with it"]
    ends = [process["how"] for process in run["processes"] if process["who"] == "1"]
    assert ends[0] == "was killed by SIGKILL"


@contextlib.contextmanager
def endless_session(
    folder: Path, *options: str
) -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """A session whose workers go on for ever, and pidfds of both workers."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    line = command(folder, ENDLESS, "--kill-every", "2s", arguments=(str(pipe),))
    with subprocess.Popen(
        line,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - the test has one thread
    ) as session:
        workers: list[int] = []
        try:
            while len(workers) < 2:
                with pipe.open() as notes:
                    workers += [os.pidfd_open(int(note)) for note in notes]
            yield session, workers
        finally:
            session.kill()
            for pidfd in workers:
                os.close(pidfd)


def all_gone(pidfds: list[int]) -> bool:
    """True once every process has ended; it is waited for."""
    return all(select.select([pidfd], [], [], WALL_S)[0] for pidfd in pidfds)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),  # the way of SIGINT
        (signal.SIGKILL, -9),
    ],
)
def test_no_process_outlives_the_one_that_began_it(
    tmp_path: Path, number: int, status: int
) -> None:
    with endless_session(tmp_path) as (session, workers):
        session.send_signal(number)
        assert session.wait(WALL_S) == status
        assert all_gone(workers)
        assert session.stdout is not None
        reported = "without faults: cut short by a signal" in session.stdout.read()
        assert reported == (number != signal.SIGKILL)


@pytest.mark.smoke
def test_a_job_that_does_not_end_is_ended_and_is_a_violation(tmp_path: Path) -> None:
    """Its time is over once both workers train, however long they take to start."""
    script = tmp_path / "train.py"
    script.write_text(ENDLESS)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = (sys.executable, str(script), str(pipe))
    job = JobSpec("endless", tmp_path / "run", 2, command, (), (), environment())
    clock = MockClock(rate=1.0)

    def hear_of_both() -> None:
        heard = 0
        while heard < 2:
            with pipe.open() as notes:
                heard += len(notes.readlines())

    async def run() -> RunRecord:
        async with trio.open_nursery() as nursery:

            async def end_its_time() -> None:
                await trio.to_thread.run_sync(hear_of_both)
                clock.jump(WALL_S)

            nursery.start_soon(end_its_time)
            return await run_once(job, FaultScheduler(), ChaosRunOptions(limit_s=WALL_S))

    record = trio.run(run, clock=clock)
    looks = [read_proc_stat(process.pid) for process in record.processes]
    assert [look for look in looks if look is not None and look.state != "Z"] == []
    assert len(looks) == 2
    assert judge(record, []).reasons[0].startswith("endless: no end within 110 s")
