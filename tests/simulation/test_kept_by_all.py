"""Every order of events where all members keep small results."""

from ftcomm_chaos.explorer.search import explore
from ftcomm_chaos.explorer.workload import Script


def test_where_all_keep_small_results_one_of_two_may_die_whatever_is_stable() -> None:
    found = explore(Script("SBS", 2, 1, replicas=1, kept_by_all=True))
    assert (found.violation, found.path) == ("", ())
    assert found.states > 7000
