"""Tests of the check that a whole run of the tests has killed and stopped enough."""

from types import SimpleNamespace

import pytest

from tests.conformance.sums import JUDGED, LEAST_KILLS, LEAST_STOPS, Sums

ALL = pytest.Config.ArgsSource.TESTPATHS
SOME = pytest.Config.ArgsSource.ARGS


def sums_of(
    kills: int, stops: int, *, source: pytest.Config.ArgsSource = ALL, **options: object
) -> Sums:
    """The sums of a run with these figures, from the reports of two tests."""
    option = SimpleNamespace(
        **{"keyword": "", "markexpr": JUDGED[0], "collectonly": False, **options}
    )
    sums = Sums(SimpleNamespace(args_source=source, option=option))  # type: ignore[arg-type]  # what it reads
    for properties in ([("kills", kills), ("stops", 0), ("other", 9)], [("stops", stops)]):
        for when in ("call", "teardown"):  # counted once
            sums.pytest_runtest_logreport(SimpleNamespace(when=when, user_properties=properties))
    return sums


@pytest.mark.parametrize(
    ("kills", "stops", "status"),
    [
        (LEAST_KILLS, LEAST_STOPS, pytest.ExitCode.OK),
        (LEAST_KILLS - 1, LEAST_STOPS, pytest.ExitCode.TESTS_FAILED),
        (LEAST_KILLS, LEAST_STOPS - 1, pytest.ExitCode.TESTS_FAILED),
    ],
)
def test_a_whole_run_with_too_few_real_faults_fails(kills: int, stops: int, status: int) -> None:
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    sums_of(kills, stops).pytest_sessionfinish(session, pytest.ExitCode.OK)
    assert session.exitstatus == status


@pytest.mark.parametrize("narrow", [{"source": SOME}, {"keyword": "x"}, {"markexpr": "not slow"}])
def test_a_part_of_the_tests_is_not_judged(narrow: dict[str, object]) -> None:
    assert not sums_of(0, 0, **narrow).too_few
