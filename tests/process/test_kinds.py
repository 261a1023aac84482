"""Every kind of collective, with kills in each: everybody gets what a run in peace gives."""

import pytest

from tests.conformance.bench import Bench
from tests.conformance.kinds import KINDS
from tests.conformance.plans import Plan

pytestmark = pytest.mark.process

PROGRAM = {"program": "every_kind"}


@pytest.mark.parametrize("point", ["enter", "half_sent", "half_received", "done"])
def test_each_kind_is_executed_again_and_replayed_whoever_dies_in_it(
    bench: Bench, point: str
) -> None:
    """One dies in each collective of version 1, another one each time, so each replays them all."""
    faults = [f"{i % 3}.1.{i}.{i // 3}@{point}" for i in range(len(KINDS))]
    bench.run(Plan(3, PROGRAM, tuple(faults)))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_two_ranks_die_between_the_stages_of_one_collective(bench: Bench, transport: str) -> None:
    stage = 1 << 20  # the frames of a collective's second stage are numbered from here
    leaf = stage + 1  # a leaf of the tree receives in the second round
    faults = (f"1.1.0.0@half_sent#{stage}", f"2.1.3.0@half_received#{leaf}")
    bench.run(Plan(4, PROGRAM, faults, {"transport": transport}))
