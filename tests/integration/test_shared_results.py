"""Large results lie in a shared window, and outlive every process that dies over them."""

import pytest

from tests.conformance.bench import Bench
from tests.conformance.harness import Job
from tests.conformance.plans import Plan

pytestmark = pytest.mark.process

PROGRAM = {"program": "in_common"}
WALL_S = 120.0


def in_common(job: Job, *, epoch: int = 1) -> set[bool]:
    """Report where an epoch's sums lay, except the first, before which memory is still set up."""
    made = [event for event in job.of("place") if event["epoch"] == epoch and event["call"] > 0]
    return {event["common"] for event in made}


@pytest.mark.parametrize("n", [2, 3, 4])
def test_after_the_first_call_results_are_made_in_common(bench: Bench, n: int) -> None:
    assert in_common(bench.run(Plan(n, PROGRAM, wall_s=WALL_S))) == {True}


def test_else_every_rank_makes_its_own(bench: Bench) -> None:
    program, settings = {"program": "in_common", "alone": True}, {"transport": "tcp"}
    assert in_common(bench.run(Plan(2, program, settings=settings, wall_s=WALL_S))) == {False}


@pytest.mark.parametrize(
    ("n", "faults"),
    [
        # two ranks: a reduction, then one round of headers
        (2, ("1.0.4.0@half_received#0", "0.1.6.0@half_sent#1")),
        (2, ("0.0.5.0@half_received#1", "1.1.4.0@done")),
        (2, ("0.0.6.0@half_sent#0=cut", "1.1.6.0@half_received#1=reset")),
        # a ring of three: two of each
        (3, ("2.0.4.0@half_received#1", "1.1.7.0@half_sent#2", "0.2.4.0@enter")),
        (3, ("0.0.7.0@half_sent#3", "1.0.7.0@half_received#2")),
        # halving and doubling of four, whose steps are numbered from one
        (4, ("3.0.4.0@half_received#2", "0.1.6.0@half_received#3")),
        (4, ("1.0.5.0@half_sent#4", "2.0.9.0@half_received#1=cut", "0.2.5.0@done")),
    ],
)
def test_whoever_dies_wherever_results_are_the_same_and_views_stay(
    bench: Bench, n: int, faults: tuple[str, ...]
) -> None:
    """Restart a worker that fetches others' results out of memory that dead processes made."""
    job = bench.run(Plan(n, PROGRAM, faults, wall_s=WALL_S))
    assert in_common(job) == {True}


@pytest.mark.smoke
def test_a_rank_that_stops_in_a_call_and_comes_back_changes_no_result(bench: Bench) -> None:
    """It goes on in memory of an epoch that is over, where nobody has completed that call."""
    faults = ("2.0.6.0@half_received#1=stop",)
    settings = {"detect_within": 1}
    bench.run(Plan(3, PROGRAM, faults, settings=settings, resume=True, wall_s=WALL_S))
