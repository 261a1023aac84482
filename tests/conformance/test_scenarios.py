import pytest

from tests.conformance.bench import Bench
from tests.conformance.scenario import Scenario
from tests.conformance.scenarios import SCENARIOS, SMOKE


def tier(scenario: Scenario) -> list[pytest.MarkDecorator]:
    if scenario.id in SMOKE:
        return [pytest.mark.smoke]
    return [] if scenario.quick else [pytest.mark.slow]


@pytest.mark.process
@pytest.mark.parametrize("scenario", [pytest.param(s, id=s.id, marks=tier(s)) for s in SCENARIOS])
def test_the_job_goes_on_as_if_nothing_had_happened(bench: Bench, scenario: Scenario) -> None:
    scenario.run(bench)


def test_those_of_every_run_are_scenarios() -> None:
    assert {scenario.id for scenario in SCENARIOS} >= SMOKE
