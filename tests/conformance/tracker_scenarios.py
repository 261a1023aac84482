"""The tracker dies: F17."""

import functools
from collections.abc import Iterator
from typing import Any

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan
from tests.conformance.scenario import QUIET, Run, Scenario, all_at_gate, expect, has_results

GATED = {"program": "many", "gates": {"1.10": "gate"}}


def tracker_dies_in_steady_state(bench: Bench) -> None:
    """It costs no step: the same epoch goes on, before, while and after it is away."""
    reference = bench.reference(Plan(4, QUIET))
    program = {**QUIET, "gates": {"0.10": "first", "1.10": "second"}}
    with bench.job(Plan(4, program)) as job:
        job.start_tracker()
        job.start_all()
        all_at_gate(job, "first")
        job.kill_tracker()
        job.open_gate("first")  # collectives go on without a tracker, checkpoints too
        all_at_gate(job, "second")
        job.start_tracker()
        job.wait_for("tracker", text="all workers are back in epoch 1")
        job.open_gate("second")
        job.finish()
        job.check_against(reference)
        expect("epochs", {event["epoch"] for event in job.of("result")}, {1})


def tracker_dies_before_anyone_joined(bench: Bench) -> None:
    """Workers wait for a tracker that is not there yet."""
    reference = bench.reference(Plan(4, QUIET))
    with bench.job(Plan(4, QUIET)) as job:
        job.start_tracker()
        job.kill_tracker()
        job.start_all()
        for worker in range(4):
            job.wait_for("began", worker=str(worker))
        job.start_tracker()
        job.finish()
        job.check_against(reference)


def tracker_dies_in_recovery(stage: str) -> Run:
    """A worker dies, the tracker says `stage` and dies too; both come back."""

    def run(bench: Bench) -> None:
        reference = bench.reference(Plan(4, QUIET))
        plan = Plan(4, GATED, ("1.1.10.0@enter",), restart=False)
        with bench.job(plan) as job:
            job.start_tracker()
            job.start_all()
            all_at_gate(job, "gate")
            job.open_gate("gate")
            job.wait_for("exit", worker="1")
            job.wait_for("tracker", text="epoch 2: ")
            if stage == "stopped":
                job.kill_tracker()
                job.start(1)
                job.start_tracker()
            else:  # the plan may have reached none, some or all
                job.start(1)
                job.wait_for("tracker", text="epoch 2 runs")
                job.kill_tracker()
                job.start_tracker()
            job.finish()
            job.check_against(reference)

    return run


def tracker_dies_at(*addresses: str, program: dict[str, Any] | None = None) -> Run:
    """Between a decision, its journal and its messages to some of the members."""

    def run(bench: Bench) -> None:
        if program is not None:  # it ends with an error, and everyone must hear of it
            with bench.job(Plan(4, program, tracker_faults=addresses, exits=(72,) * 4)) as job:
                job.run()
                expect("ranks that heard", len(job.of("mismatch")), 4)
                return
        bench.run(Plan(4, QUIET, ("1.1.10.0@enter",), tracker_faults=addresses))

    return run


def tracker_dies_again_and_again(bench: Bench) -> None:
    """Three times, at any moment of the work and of a recovery."""
    reference = bench.reference(Plan(4, QUIET))
    with bench.job(Plan(4, QUIET, ("2.1.3.0@half_sent", "3.1.12.0@enter"))) as job:
        job.start_tracker()
        job.start_all()
        for seen in (2, 30, 90):
            job.wait(functools.partial(has_results, job, seen))
            job.kill_tracker()
            job.start_tracker()
        job.finish()
        job.check_against(reference)


def _scenarios() -> Iterator[Scenario]:
    yield Scenario("F17-steady", tracker_dies_in_steady_state, quick=True)
    yield Scenario("F17-empty", tracker_dies_before_anyone_joined)
    yield Scenario("F17-stopped", tracker_dies_in_recovery("stopped"), quick=True)
    yield Scenario("F17-planned", tracker_dies_in_recovery("planned"))
    for place in (
        ("1.0@accepted#2",),
        ("1.2@accepted#1",),
        ("1.1@epoch_journalled#1",),
        ("1.2@epoch_journalled#1",),
        ("1.1@revoke_sent#2",),
        ("1.2@revoke_sent#2",),
        ("1.1@plan_sent#2",),
        ("1.2@plan_sent#1",),
        ("1.2@plan_sent#3",),
        ("1.2@all_closed_journalled#1",),
        ("1.2@revoke_sent#1", "2.3@plan_sent#2"),
    ):
        quick = place == ("1.2@plan_sent#3",)
        yield Scenario(f"F17-{'-'.join(place)}", tracker_dies_at(*place), quick=quick)
    verdict = tracker_dies_at(
        "1.1@verdict_journalled#1", program={"program": "mismatch", "how": "op", "odd": 2}
    )
    yield Scenario("F17-1.1@verdict_journalled#1", verdict)
    yield Scenario("F17-thrice", tracker_dies_again_and_again)


SCENARIOS = tuple(_scenarios())
