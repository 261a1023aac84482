"""Random schedules of deaths and stops, F24."""

from collections.abc import Iterable, Iterator

from tests.conformance.bench import Bench
from tests.conformance.scenario import Run, Scenario
from tests.conformance.schedules import random_plan

SEEDS = 200
SEEDS_A_ROW = 5  # a minute on two cores that have ten times as much to do
QUICK = 4  # of them in the default run


def schedules(seeds: Iterable[int]) -> Run:
    """Compare every result under random kills and stops with the run without faults.

    Each plan's deaths, stops and fired faults are counted.  Seen to fail when nobody keeps stable
    results.
    """

    def run(bench: Bench) -> None:
        for seed in seeds:
            bench.run(random_plan(seed))

    return run


def _scenarios() -> Iterator[Scenario]:
    yield Scenario("F24-few", schedules(range(QUICK)), quick=True)
    for first in range(0, SEEDS, SEEDS_A_ROW):
        seeds = range(first, first + SEEDS_A_ROW)
        yield Scenario(f"F24-{first:03}", schedules(seeds))


SCENARIOS = tuple(_scenarios())
