"""A job that keeps no results: plain collectives, and what becomes of it when somebody dies."""

from typing import Any

import pytest

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan

pytestmark = pytest.mark.process

OFF = {"replay": "off"}
SCRIBBLER: dict[str, Any] = {"program": "scribbler"}


def test_a_death_right_after_a_checkpoint_is_recovered_from(bench: Bench) -> None:
    """There is no result to replay: the checkpoint is all that a new incarnation needs.

    The scribbler overwrites what it is given, which nothing else may be looking at.
    """
    bench.run(Plan(3, SCRIBBLER, ("1.1.0.0@enter",), OFF))


def test_calls_with_a_result_of_each_ranks_own_keep_no_input(bench: Bench) -> None:
    bench.run(Plan(3, {"program": "rank_result_forms"}, ("1.1.0.0@enter",), OFF))


def test_a_death_between_checkpoints_ends_the_job_for_all_and_the_setting_is_named(
    bench: Bench,
) -> None:
    """Seen to fail if results are logged all the same."""
    with bench.job(Plan(3, SCRIBBLER, ("1.1.4.0@enter",), OFF, exits=(71,) * 3)) as job:
        job.run()
        text = (job.folder / "0.0.log").read_text()
    assert "the result of collective 1.0 is needed and exists nowhere: this job runs with" in text
    assert "replay=off and keeps no results" in text


def test_a_death_before_the_own_close_is_as_with_replay(bench: Bench) -> None:
    """Others may have completed the close; that is kept, and has nothing that costs."""
    bench.run(Plan(3, SCRIBBLER, ("1.2.0.0@enter",), OFF))


@pytest.mark.parametrize("settings", [{}, OFF])
def test_a_link_that_breaks_inside_a_call_costs_no_job(
    bench: Bench, settings: dict[str, object]
) -> None:
    """Nobody has the result yet, and each has reduced a part; the input is intact all the same.

    Seen to fail if what is made in `out` is made there from an input that it overlaps.
    """
    faults = ("1.0.2.0@half_received#1=cut", "0.1.3.0@half_received#1=reset")
    bench.run(Plan(3, {"program": "in_place"}, faults, {**settings, "algorithm": "ring"}))
