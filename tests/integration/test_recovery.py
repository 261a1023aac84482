"""Recovery of real processes, where the list of scenarios leaves off."""

from typing import Any

import pytest

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan
from tests.conformance.scenario import all_at_gate

pytestmark = pytest.mark.process

MANY: dict[str, Any] = {"program": "many", "steps": 12}


@pytest.mark.smoke
def test_a_restarted_worker_replays_the_prelude_and_the_version_it_missed(bench: Bench) -> None:
    program = {**MANY, "prelude": 5}
    job = bench.run(Plan(3, program, ("1.0.3.0@enter",)))
    (killed,) = [event["pid"] for event in job.of("exit") if event["status"] < 0]
    second = [e["pos"] for e in job.of("result") if e["worker"] == "1" and e["pid"] != killed]
    replayed = ["-1.0", "-1.1", "-1.2", "-1.3", "-1.4", "0.load", "0.0", "0.1", "0.2"]
    assert second[:10] == [*replayed, "0.3"]
    (incident,) = job.incidents()
    assert (incident["replayed"], incident["victims"]) == (len(replayed), ["1"])


def test_death_inside_the_prelude(bench: Bench) -> None:
    program = {**MANY, "prelude": 5}
    bench.run(Plan(3, program, ("2.-1.2.0@half_received", "0.-1.5.0@done")))


def test_all_but_one_die_after_saving_before_anyone_has_committed(bench: Bench) -> None:
    """Rank 0 may not have saved yet; then all is replayed, for which it must hold everything."""
    faults = tuple(f"{rank}.0.12.0@saved" for rank in (1, 2, 3))
    bench.run(Plan(4, MANY, faults))


@pytest.mark.smoke
def test_all_ranks_are_told_that_a_needed_result_is_lost(bench: Bench) -> None:
    """With one copy of each result, the replica holder of 0.3 takes it along."""
    settings = {"replicas": 1, "keep_by_all": 0}
    plan = Plan(4, MANY, ("3.0.10.0@enter",), settings, exits=(71,) * 4)
    with bench.job(plan) as job:
        job.run()
        texts = [(job.folder / f"{worker}.{worker}.log").read_text() for worker in range(3)]
    for text in texts:
        assert "JobLostError" in text
        assert "the result of collective 0.3 is needed and exists nowhere" in text
        assert "its replica holders were 3 (rank 3)" in text


@pytest.mark.smoke
def test_who_has_closed_serves_a_rank_that_lags(bench: Bench) -> None:
    """Rank 2 has every last result but one; the others have closed and hold it."""
    broadcasts = {**MANY, "kinds": "broadcast", "versions": 1}
    bench.run(Plan(3, broadcasts, ("2.1.0.0@half_received", "0.1.0.0@done")))


@pytest.mark.parametrize("fault", ["1.2.0.0@enter", "1.3.1.0@done"])
def test_parts_of_a_state_that_are_one_object_stay_one(bench: Bench, fault: str) -> None:
    bench.run(Plan(2, {"program": "tied_weights"}, (fault,)))


def test_a_call_that_was_executed_but_not_completed_can_be_made_again(bench: Bench) -> None:
    """Another has completed it and goes on: the second attempt is served what that one has.

    The third rank, if its last bytes were still on their way, is served beside it.
    """
    job = bench.run(Plan(3, {"program": "unlogged"}))
    (incident,) = job.incidents()
    assert incident["reason"] == "rank 1 needs new links: a call was cut short by MemoryError()"
    assert (incident["replayed"], incident["fetched"]) in {(1, 1), (2, 2)}


@pytest.mark.parametrize("how", ["call", "wait", "message"])
def test_ctrl_c_in_a_call_ends_this_rank_s_part(bench: Bench, how: str) -> None:
    program = {"program": "interrupted", "how": how, "gates": {"0:0.1": "gate"}}
    settings = {"replace_within": 0}
    with bench.job(Plan(2, program, settings=settings, exits=(1, 73), restart=False)) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "gate", 1)
        said = job.wait_for("interrupted", rank=1)
        job.open_gate("gate")
        job.finish()
        assert (said["is_over"], said["left"]) == (True, [])
        text = (job.folder / "0.0.log").read_text()
    assert "RankLostError" in text
    assert "KeyboardInterrupt" in text


@pytest.mark.smoke
def test_an_error_of_the_job_is_raised_again_and_the_process_can_go_on(bench: Bench) -> None:
    program = {"program": "again", "how": "dtype", "odd": 1}
    with bench.job(Plan(3, program, exits=(72,) * 3)) as job:
        job.run()
        assert [event["same"] for event in job.of("again")] == [True] * 3
        assert [event["sum"] for event in job.of("alone")] == [3.0] * 3


def test_a_restarted_script_that_does_something_else_is_found_out_in_replay(bench: Bench) -> None:
    program = {"program": "unlike", "how": "replay"}
    with bench.job(Plan(3, program, ("1.0.1.0@enter",), exits=(72,) * 3)) as job:
        job.run()
        text = (job.folder / "0.0.log").read_text()
    assert "allreduce(op=max, float64[3]) at recorder.py:" in text
    assert "the earlier process of rank 1 called allreduce(op=sum, float64[3]) at " in text


@pytest.mark.parametrize("how", ["state", "prelude", "close", "load"])
def test_what_is_not_one_program_ends_alike_everywhere(bench: Bench, how: str) -> None:
    with bench.job(Plan(3, {"program": "unlike", "how": how}, exits=(72,) * 3)) as job:
        job.run()
        assert job.tracker_status() == 72
        logs = [(job.folder / f"{worker}.{worker}.log").read_text() for worker in range(3)]
    causes = {
        line.partition(": ")[2]
        for log in logs
        for line in log.splitlines()
        if line.startswith("ftcomm.errors.CollectiveMismatchError")
    }
    (cause,) = causes  # on every rank the same words
    assert cause.count(".py:") == 2 or how == "state"
