"""Ranks of a host exchange through a segment, and go on whoever dies wherever."""

import pytest

from ftcomm.collectives.schedules.direct import ACROSS_TAG, SPREAD_TAG
from tests.conformance.bench import Bench
from tests.conformance.plans import Plan

pytestmark = pytest.mark.process

PROGRAM = {"program": "on_one_host"}
WALL_S = 120.0


def spread(n: int) -> int:
    """Return the step that first spreads a result: behind the two gathers of n - 1 steps."""
    return 3 * (n - 1)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("core", ["auto", "python"])
def test_results_are_the_same_by_each_core_and_over_links(
    bench: Bench, core: str, transport: str
) -> None:
    settings = {"transport": transport}
    bench.run(Plan(3, {**PROGRAM, "core": core}, settings=settings, wall_s=WALL_S))


@pytest.mark.parametrize(
    ("n", "faults"),
    [
        (2, ("1.0.4.0@enter", "0.1.6.0@done")),
        (3, ("0.0.7.0@enter", "1.0.7.0@done", "2.1.18.0@saved")),
        (4, ("3.0.4.0@enter", "0.1.6.0@enter", "1.2.18.0@committed")),
        # these need links, over which blocks are exchanged, folded, and spread as another half
        (2, ("1.0.5.0@half_received#0", f"0.1.6.0@half_sent#{spread(2)}")),
        (3, ("2.0.3.0@half_received#1", f"1.1.8.0@half_sent#{spread(3) + 1}", "0.2.4.0@enter")),
        (4, ("0.0.6.0@half_sent#2=cut", f"2.1.6.0@half_received#{spread(4)}=reset")),
    ],
)
def test_whoever_dies_wherever_results_are_the_same_and_views_stay(
    bench: Bench, n: int, faults: tuple[str, ...]
) -> None:
    bench.run(Plan(n, PROGRAM, faults, wall_s=WALL_S))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("hosts", ["aabb", "abab", "abba", "aaab", "abb"])
def test_on_several_hosts_results_are_folds_host_by_host(
    bench: Bench, hosts: str, transport: str
) -> None:
    settings = {"transport": transport}
    bench.run(Plan(len(hosts), {**PROGRAM, "hosts": hosts}, settings=settings, wall_s=WALL_S))


@pytest.mark.parametrize(
    ("hosts", "faults"),
    [
        ("aabb", ("1.0.4.0@enter", "0.1.6.0@done", "2.2.7.0@enter")),
        ("abba", ("3.0.3.0@enter", "0.1.4.0@enter", "2.2.6.0@done")),
        ("aaab", ("0.0.4.0@enter", "3.1.3.0@enter", "1.2.18.0@saved")),
        # these need links, within the host too; the other host has its segment
        ("aabb", ("1.0.3.0@half_received#0", f"2.1.6.0@half_sent#{ACROSS_TAG}")),
        ("abab", (f"2.0.3.0@half_received#{ACROSS_TAG + 3}", f"3.1.6.0@half_sent#{SPREAD_TAG}")),
        ("aabb", (f"2.0.4.0@half_sent#{ACROSS_TAG}", f"1.1.4.0@half_received#{SPREAD_TAG}")),
        (
            "aabb",
            (f"0.0.3.0@half_received#{ACROSS_TAG}=cut", f"3.1.6.0@half_sent#{SPREAD_TAG}=reset"),
        ),
    ],
)
def test_of_several_hosts_whoever_dies_at_whatever_stage_results_are_the_same(
    bench: Bench, hosts: str, faults: tuple[str, ...]
) -> None:
    """A dead rank comes back on another host, whose segment is not used then."""
    bench.run(Plan(len(hosts), {**PROGRAM, "hosts": hosts}, faults, wall_s=WALL_S))


@pytest.mark.smoke
@pytest.mark.parametrize("hosts", ["aaa", "aabb"])
def test_a_rank_that_stops_in_a_call_and_comes_back_changes_no_result(
    bench: Bench, hosts: str
) -> None:
    """It goes on in the segment of an epoch that is over."""
    settings = {"detect_within": 1}
    faults = ("2.0.6.0@enter=stop",)
    bench.run(
        Plan(
            len(hosts),
            {**PROGRAM, "hosts": hosts},
            faults,
            settings=settings,
            resume=True,
            wall_s=WALL_S,
        )
    )
