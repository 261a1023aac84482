"""The harness itself can fail: a suite whose kills never fired is how others were deceived."""

import dataclasses
import signal

import pytest

from tests.conformance.bench import Bench
from tests.conformance.plans import BrokenError, Plan

pytestmark = pytest.mark.process

PEACE = Plan(2, {"program": "one_op", "count": 10})


def test_a_fault_that_never_fires_fails_the_job(bench: Bench) -> None:
    with pytest.raises(BrokenError, match="faults fired"):
        bench.run(dataclasses.replace(PEACE, faults=("1.0.7.0@enter=cut",)))


def test_a_death_that_nobody_planned_fails_the_job(bench: Bench) -> None:
    program = {**PEACE.program, "gates": {"1.0": "gate"}}
    with bench.job(dataclasses.replace(PEACE, program=program)) as job:
        job.start_tracker()
        job.start_all()
        job.wait_for("gate", worker="1")
        job.kill(1, signal.SIGKILL)
        with pytest.raises(BrokenError, match="nobody planned this"):
            job.finish()


def test_an_exit_status_that_nobody_planned_fails_the_job(bench: Bench) -> None:
    plan = dataclasses.replace(PEACE, faults=("1.1.0.0@enter=raise",))
    with pytest.raises(BrokenError, match="nobody planned this"):
        bench.run(plan)


def test_every_tenth_worker_is_a_fresh_interpreter(bench: Bench) -> None:
    """Start each tenth worker as a new interpreter; the rows under `run` have no other workers."""
    job = bench.run(dataclasses.replace(PEACE, n=10))
    assert sum(event["fresh"] for event in job.of("started")) == 1


def test_one_different_result_fails_the_job(bench: Bench) -> None:
    reference = {**bench.reference(PEACE), "1.0": "another digest"}
    with bench.job(PEACE) as job:
        job.run()
        with pytest.raises(BrokenError, match=r"1\.0: got"):
            job.check_against(reference)


def test_a_job_that_does_not_end_fails_at_its_wall_limit(bench: Bench) -> None:
    program = {**PEACE.program, "gates": {"1.0": "gate"}}
    plan = dataclasses.replace(PEACE, program=program, wall_s=1.0)
    with bench.job(plan) as job, pytest.raises(BrokenError, match="not done within 1 s"):
        job.run()
    assert not job.running


def test_a_worker_that_was_ordered_when_the_job_ended_is_left_behind_by_nobody(
    bench: Bench,
) -> None:
    """Its late end would be taken for that of another job's worker."""
    with bench.job(PEACE) as job:
        job.start_tracker()
        job._order("0")
    assert [event["status"] for event in job.of("exit")] == [-signal.SIGKILL]


def test_a_stop_that_never_happens_fails_the_job(bench: Bench) -> None:
    with pytest.raises(BrokenError, match="stops: 0, planned 1"):
        bench.run(dataclasses.replace(PEACE, stopped=1))
