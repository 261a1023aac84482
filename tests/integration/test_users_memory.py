"""Isolation of the user's arrays: neither side's writes reach the other."""

import pytest

from tests.conformance.bench import Bench
from tests.conformance.plans import Plan

pytestmark = pytest.mark.process


@pytest.mark.smoke
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_results_are_overwritten_and_inputs_compared_while_ranks_die(
    bench: Bench, transport: str
) -> None:
    """Rank 1 replays what the others have overwritten; all run again what rank 2 has cut short.

    Seen to fail if a result is the log's own memory, or made in the user's array, and if work is
    done in the input.
    """
    faults = ("2.0.3.0@half_received", "1.0.9.0@enter", "0.1.3.0@half_sent")
    bench.run(Plan(3, {"program": "scribbler"}, faults, {"transport": transport}))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_nobody_can_write_to_what_was_handed_out_without_a_copy(
    bench: Bench, transport: str
) -> None:
    """Results are executed, repeated, fetched and replayed; allreduces in the segment of a host.

    Seen to fail if a view of the log's own array is handed out.
    """
    faults = ("2.0.40.0@half_received", "1.1.50.0@enter", "0.1.90.0@done")
    bench.run(Plan(3, {"program": "prying"}, faults, {"transport": transport}))


def test_a_link_that_breaks_inside_a_call_in_place_costs_no_job(bench: Bench) -> None:
    """Nobody has the result yet, and each has reduced a part; the input is intact all the same."""
    faults = ("1.0.2.0@half_received#1=cut", "0.1.3.0@half_received#1=reset")
    bench.run(Plan(3, {"program": "in_place"}, faults, {"algorithm": "ring"}))
