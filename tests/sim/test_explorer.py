"""Every order of events of small jobs."""

import pytest

from ftcomm_chaos.sim.explorer import explore
from ftcomm_chaos.sim.script import Script

# The letters: S a synchronising collective, B a broadcast, L load, C checkpoint, P the same
# with local states, E close.
SMALL = [("SB", 2, 1), ("BS", 2, 1), ("LC", 2, 1), ("LP", 2, 1), ("SE", 2, 1), ("S", 3, 1)]
LARGE = [  # in every run, beside the other tests
    pytest.param(*job, marks=pytest.mark.background("ftcomm_chaos.cli", "explore", *map(str, job)))
    for job in (("SB", 2, 2), ("SB", 3, 1))
]
LARGEST = [("BS", 2, 2), ("LCE", 2, 1)]


@pytest.mark.parametrize(("letters", "ranks", "crashes"), SMALL)
def test_every_order_of_a_small_job_keeps_the_rules(letters: str, ranks: int, crashes: int) -> None:
    found = explore(Script(letters, ranks, crashes))
    assert (found.violation, found.path) == ("", ())
    assert found.states > 1000
    assert found.ends > 0


@pytest.mark.timeout(1800)  # it may wait for the whole queue
@pytest.mark.parametrize(("letters", "ranks", "crashes"), LARGE)
def test_every_order_of_a_larger_job_keeps_the_rules(
    letters: str, ranks: int, crashes: int, background: tuple[int, str]
) -> None:
    status, output = background
    assert status == 0, output
    assert "all rules held" in output
    assert int(output.split("all rules held")[1].split()[0]) > 100_000  # states


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("letters", "ranks", "crashes"), LARGEST)
def test_every_order_of_the_largest_jobs_keeps_the_rules(
    letters: str, ranks: int, crashes: int
) -> None:
    found = explore(Script(letters, ranks, crashes), max_states=3_000_000)
    assert (found.violation, found.path) == ("", ())
