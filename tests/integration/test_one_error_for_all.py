"""Fatal finding of one rank: every rank raises the same error with the same text."""

from typing import Any

import pytest

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan
from tests.conformance.scenario import said_by_all

pytestmark = pytest.mark.process

TIMED: dict[str, Any] = {"program": "timed", "deadline": 0.6}


@pytest.mark.smoke
def test_a_call_that_takes_too_long_ends_the_job_for_all_and_names_who_was_waited_for(
    bench: Bench,
) -> None:
    """Rank 2 stays before the collective; it hears of it when it comes there."""
    plan = Plan(3, {**TIMED, "gates": {"2:0.1": "gate"}}, exits=(80,) * 3)
    with bench.job(plan) as job:
        job.start_tracker()
        job.start_all()
        job.wait_for("tracker", text="CollectiveTimeoutError")
        job.open_gate("gate")
        job.finish()
        said = said_by_all(job, "CollectiveTimeoutError", 3)
        assert job.tracker_status() == 80
    assert "gave allreduce(op=sum, float64[3]) at " in said
    assert " a deadline of 0.6 s, and it took longer; it was waiting for rank " in said
    assert "there and waiting for nobody: rank 2 [" in said
    assert "position 0.1]" in said


def test_waiting_for_a_dead_ranks_replacement_counts_too(bench: Bench) -> None:
    plan = Plan(3, {**TIMED, "deadline": 1.5}, ("1.0.1.0@enter",), exits=(80,) * 2, restart=False)
    with bench.job(plan) as job:
        job.run()
        said = said_by_all(job, "CollectiveTimeoutError", 2)
    assert "it was waiting for the group to form again in epoch 2; absent: rank 1" in said


@pytest.mark.parametrize(
    ("call", "position", "spec", "settings"),
    [
        ("load_checkpoint", "-1.0", {"deadline": 0.6}, {}),
        ("checkpoint", "0.0", {"deadline": 0.6}, {}),
        ("close", "0.0", {"deadline": 0.6}, {}),
        ("barrier", "0.0", {}, {"call_deadline": 0.6}),
        ("close", "0.0", {}, {"call_deadline": 0.6}),
    ],
)
def test_every_call_has_a_deadline_of_its_own_or_the_jobs(
    bench: Bench, call: str, position: str, spec: dict[str, Any], settings: dict[str, object]
) -> None:
    program = {"program": "timed_call", "call": call, **spec, "gates": {f"1:{position}": "gate"}}
    with bench.job(Plan(2, program, settings=settings, exits=(80,) * 2)) as job:
        job.start_tracker()
        job.start_all()
        job.wait_for("tracker", text="CollectiveTimeoutError")
        job.open_gate("gate")
        job.finish()
        said = said_by_all(job, "CollectiveTimeoutError", 2)
        assert job.tracker_status() == 80
    name = "load" if call == "load_checkpoint" else call
    assert f"rank 0 gave {name}() at kinds.py:" in said
    assert " a deadline of 0.6 s, and it took longer; it was waiting for rank 1;" in said
    assert f"position {position}]" in said
    assert "raise the deadline if they were busy" in said


def test_the_deadline_of_a_close_holds_until_all_have_closed(bench: Bench) -> None:
    program = {"program": "timed_call", "call": "close", "deadline": 1.5}
    plan = Plan(2, program, ("1.0.0.0@done",), exits=(80,), restart=False)
    with bench.job(plan) as job:
        job.run()
        said = said_by_all(job, "CollectiveTimeoutError", 1)
    assert "rank 0 gave close() at kinds.py:" in said
    assert "it had closed and was waiting for others to close; absent: rank 1" in said


def test_a_call_in_time_is_as_without_a_deadline(bench: Bench) -> None:
    bench.run(Plan(3, {**TIMED, "deadline": 60}, ("1.0.1.0@half_received",)))


@pytest.mark.smoke
def test_the_log_is_full_for_all_when_only_the_run_knows_the_sizes(bench: Bench) -> None:
    with bench.job(
        Plan(3, {"program": "too_much"}, (), {"log_limit": 50_000}, exits=(74,) * 3)
    ) as job:
        job.run()
        said = said_by_all(job, "LogLimitError", 3)
        assert job.tracker_status() == 74
    assert "the limit is 50000" in said


def test_a_process_that_computes_another_input_is_found_out_where_inputs_are_verified(
    bench: Bench,
) -> None:
    """Collective 0.2 was fetched from others with its digests; 0.5 stops the second incarnation."""
    program = {"program": "unsteady", "at": 1}
    plan = Plan(3, program, ("1.0.5.0@enter",), {"verify": "inputs"}, exits=(72,) * 3)
    with bench.job(plan) as job:
        job.run()
        said = said_by_all(job, "CollectiveMismatchError", 3)
        assert job.tracker_status() == 72
    assert "rank 1 replays collective 0.2, allreduce(op=sum, float64[3]) at kinds.py:" in said
    assert (
        "this process computed another input for it than its earlier one; the usual cause is a"
        in said
    )


def test_the_same_inputs_pass_where_they_are_verified(bench: Bench) -> None:
    bench.run(Plan(3, {"program": "unsteady", "at": 99}, ("1.0.5.0@enter",), {"verify": "inputs"}))
    faults = ("1.1.4.0@half_received", "0.1.7.0@done", "2.1.9.0@enter")
    bench.run(Plan(3, {"program": "every_kind"}, faults, {"verify": "inputs"}))
