"""Simulated jobs whose ranks send each other messages between their collectives (R21)."""

from collections import Counter
from typing import Any

import pytest

from ftcomm.recovery.messages.sent_log import SentLog
from ftcomm_chaos.sim.simulation import Simulation
from ftcomm_chaos.sim.world import Violation

pytestmark = pytest.mark.timeout(600)  # it computes for long, beside whatever else runs


def run_all(seeds: range, **changes: Any) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        simulation = Simulation(seed, messages=True, **changes)
        seen[simulation.run().fatal_decision] += 1
        seen.update(simulation.counters)
    return seen


@pytest.mark.parametrize("seeds", [range(50), pytest.param(range(50, 150), marks=pytest.mark.slow)])
def test_each_message_is_received_once_and_in_order_whoever_is_lost(seeds: range) -> None:
    seen = run_all(seeds)
    assert seen["messages"] > 6 * len(seeds)
    assert seen["finished"] > len(seeds) // 2
    assert seen["messages sent as they were logged"] > len(seeds) // 8
    assert seen["messages missed"] > len(seeds) // 40  # a link came to one not copied yet


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 300), marks=pytest.mark.slow)])
def test_a_network_that_loses_packets_stops_no_group_for_ever(seeds: range) -> None:
    """Pairs fall silent under open links of messages, and large packets vanish (rule R12)."""
    seen = run_all(seeds, lossy=True)
    assert seen["finished"] > len(seeds) // 2
    assert seen["messages"] > 6 * len(seeds)


@pytest.mark.slow
def test_so_it_is_with_inputs_of_each_rank_stores_and_spares() -> None:
    assert run_all(range(20), contributed=True)["finished"] > 8
    assert run_all(range(20), durable=True)["attempts"] > 25
    assert run_all(range(30_000, 30_020), spares=2)["finished"] > 6


def test_a_message_that_is_not_sent_again_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that forgets what it has sent."""

    def none(*_: object) -> Any:
        return 0, []

    monkeypatch.setattr(SentLog, "behind", none)
    with pytest.raises(Violation, match="does not end"):
        run_all(range(10), faulty=False)
