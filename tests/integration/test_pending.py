"""Nonblocking calls in flight when something ends: the job, an incarnation, a wait."""

import re
import subprocess
import sys
from typing import Any

import pytest

from tests.conformance.bench import Bench
from tests.conformance.harness import Job
from tests.conformance.plans import WALL_S, Plan, worker_environment
from tests.conformance.scenario import all_at_gate, said_by_all

pytestmark = pytest.mark.process


@pytest.mark.smoke
def test_another_op_is_the_same_mismatch_for_all_that_is_pending_and_for_all_ranks(
    bench: Bench,
) -> None:
    with bench.job(Plan(3, {"program": "unlike_pending", "odd": 1}, exits=(72,) * 3)) as job:
        job.run()
        assert job.tracker_status() == 72
        texts = {event["text"] for event in job.of("mismatch")}
        assert sorted(event["rank"] for event in job.of("mismatch")) == [0, 1, 2]
    (text,) = texts
    assert text.count("at pending_programs.py:") == 2  # the user's line, not one of the library


def test_a_calls_own_limit_ends_the_job_for_all(bench: Bench) -> None:
    program: dict[str, Any] = {
        "program": "timed_pending",
        "deadline": 0.6,
        "gates": {"2:0.1": "gate"},
    }
    with bench.job(Plan(3, program, exits=(80,) * 3)) as job:
        job.start_tracker()
        job.start_all()
        job.wait_for("tracker", text="CollectiveTimeoutError")
        job.open_gate("gate")
        job.finish()
        assert job.tracker_status() == 80
        text = (job.folder / "0.0.log").read_text()
    assert "it was waiting for rank 2" in text or "it was waiting for rank 1" in text
    assert "at pending_programs.py:" in text


@pytest.mark.smoke
def test_a_queued_calls_own_limit_ends_the_job_while_an_earlier_call_is_blocked(
    bench: Bench,
) -> None:
    program: dict[str, Any] = {
        "program": "behind_blocked",
        "deadline": 0.6,
        "gates": {"1:0.1": "gate"},
    }
    with bench.job(Plan(2, program, exits=(80,) * 2)) as job:
        job.start_tracker()
        job.start_all()
        job.wait_for("tracker", text="CollectiveTimeoutError")
        job.open_gate("gate")
        job.finish()
        said = said_by_all(job, "CollectiveTimeoutError", 2)
        assert job.tracker_status() == 80
    assert "rank 0 gave barrier() at pending_programs.py:" in said
    assert "it was waiting for its turn behind earlier calls: allreduce(op=sum, float64[3])" in said
    assert " was waiting for rank 1" in said


def test_a_call_whose_time_is_over_by_its_turn_ends_the_job_for_all(bench: Bench) -> None:
    plan = Plan(2, {"program": "late_turn", "deadline": 0.3}, exits=(80,) * 2)
    with bench.job(plan) as job:
        job.run()
        said = said_by_all(job, "CollectiveTimeoutError", 2)
        assert job.tracker_status() == 80
    assert "rank 0 gave barrier() at pending_programs.py:" in said
    assert "it took longer; it was waiting for its turn behind earlier calls" in said


@pytest.mark.parametrize(("how", "status"), [("exception", 1), ("input", 1), ("exit", 3)])
def test_who_leaves_with_calls_in_flight_is_a_failure_at_once_and_the_next_process_goes_on(
    bench: Bench, how: str, status: int
) -> None:
    """Rank 0 is held back, so that the calls of rank 1 are blocked when it leaves."""
    program = {"program": "left_while_pending", "how": how, "gates": {"0:1.0": "gate"}}
    reference = bench.reference(Plan(3, {"program": "left_while_pending", "how": "never"}))
    with bench.job(Plan(3, program, exits=(status,))) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "gate", 1)
        job.wait_for("leaving", rank=1)
        if how != "input":  # its turn comes behind those that are blocked
            job.wait_for("exit", worker="1", status=status)
        job.open_gate("gate")
        job.finish()
        job.check_against(reference)
        assert _status_of(job, "1") == [status, 0]


ENDLESS = """
import threading
import ftcomm, ftcomm.nonblocking.queue
ftcomm.nonblocking.queue.LEAVE_WITHIN_S = 0.1
comm = ftcomm.init("none")
entered = threading.Event()
def x():
    entered.set()
    threading.Event().wait()
handle = comm.iallreduce(x)
entered.wait()
print("the script ends")
"""


def test_a_script_that_ends_with_a_call_in_flight_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS],
        env=worker_environment(),
        capture_output=True,
        text=True,
        timeout=WALL_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the script ends\n", "")


@pytest.mark.parametrize("how", ["nonblocking", "mixed"])
def test_histories_say_of_nonblocking_calls_what_they_say_of_others(bench: Bench, how: str) -> None:
    """Recorded or not, half of all plans are; these are the ones that are."""
    programs = ({"program": "pending", "how": how, "steps": steps} for steps in range(9, 30))
    plans = (Plan(3, program) for program in programs)
    plan = next(plan for plan in plans if plan.is_recorded)
    with bench.job(plan) as job:
        job.run()
        processes = [path.read_text() for path in sorted(job.history.glob("*.jsonl"))]
    returned = [re.findall(r'"event": ?"return".*"kind": ?"(\w+)"', text) for text in processes]
    # of 7 calls before the load, then twice the steps, 5 more and a checkpoint, and the close
    assert [len(kinds) for kinds in returned] == [
        7 + 1 + 2 * (plan.program["steps"] + 5 + 1) + 1
    ] * plan.n
    assert len({tuple(kinds) for kinds in returned}) == 1


def _status_of(job: Job, worker: str) -> list[int]:
    return [event["status"] for event in job.of("exit") if event["worker"] == worker]
