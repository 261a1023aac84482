"""Results that a worker holds: all small ones, and its share of the large ones."""

import pytest

from tests.conformance.bench import Bench
from tests.conformance.kept_programs import CALLS, SIZES
from tests.conformance.plans import Plan

pytestmark = pytest.mark.process

LARGE = set(range(SIZES.index(max(SIZES)), CALLS, len(SIZES)))


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("settings", "by_all"),
    [({}, set(range(CALLS)) - LARGE), ({"keep_by_all": 0}, set())],
    ids=["default", "by replica holders alone"],
)
def test_small_results_are_with_every_worker(
    bench: Bench, settings: dict[str, object], by_all: set[int]
) -> None:
    job = bench.run(Plan(4, {"program": "kept"}, settings=settings))
    held = {event["rank"]: set(event["seqnos"]) for event in job.of("held")}
    newest = {CALLS - 1}  # nobody knows yet that others have it
    keeps = {rank: set(range(rank % 2, CALLS, 2)) for rank in range(4)}
    assert held == {rank: by_all | keeps[rank] | newest for rank in range(4)}
