import pytest

from tests.conformance.bench import Bench
from tests.conformance.scenario import Scenario
from tests.conformance.scenarios import SCENARIOS


def cases() -> list[object]:
    return [
        pytest.param(
            scenario,
            id=scenario.id,
            marks=[pytest.mark.conformance, *([] if scenario.quick else [pytest.mark.slow])],
        )
        for scenario in SCENARIOS
    ]


@pytest.mark.parametrize("scenario", cases())
def test_the_job_goes_on_as_if_nothing_had_happened(bench: Bench, scenario: Scenario) -> None:
    scenario.run(bench)
