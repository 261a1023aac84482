"""Spares: who is not counted when the group forms, and who takes a lost worker's place."""

from dataclasses import replace
from typing import Any

import pytest

from ftcomm.config.job_settings import JobSettings
from ftcomm.protocol.messages import Heartbeat
from ftcomm.protocol.position import START
from ftcomm.protocol.spares.prefetch_messages import Prefetch, Prefetched
from ftcomm_tracker.core.events import ConnectionLost, GivenUp
from ftcomm_tracker.core.parts.spares import RETRY_S
from ftcomm_tracker.core.reporting.status import table
from ftcomm_tracker.core.roster import JobState
from tests.unit.tracker.roster_scenario import SETTINGS, ScenarioRun, at, hello, report


def formed(settings: JobSettings = SETTINGS, **workers: dict[str, str]) -> ScenarioRun:
    """A running group of two on hosts a and b, and spares that joined in this order."""
    scenario = ScenarioRun(settings=settings)
    scenario.joined(1, hello("w0", host="a", zone="z1"))
    scenario.joined(2, hello("w1", host="b", zone="z2"))
    for number, (name, changes) in enumerate(workers.items(), 10):
        scenario.joined(number, hello(name, spare=True, group=number, **changes))
    return scenario


def owners(scenario: ScenarioRun) -> list[str]:
    return [place.worker_id for place in scenario.roster.durable.places]


def test_a_spare_that_comes_first_is_not_counted_when_the_group_forms() -> None:
    scenario = ScenarioRun()
    scenario.joined(9, hello("s", spare=True))
    scenario.joined(1, hello("w0"))
    before = scenario.roster.snapshot(0.0)
    scenario.joined(2, hello("w1"))
    assert (before["state"], before["waiting_for"], owners(scenario)) == (
        "FORMING",
        ["1 worker to join"],
        ["w0", "w1"],
    )


def test_a_spare_of_another_zone_is_best_then_one_of_another_host_then_the_oldest() -> None:
    near, host, zone = {"host": "b", "zone": "z2"}, {"host": "c", "zone": "z2"}, {"zone": "z1"}
    chosen = []
    for spares in (
        {"near": near, "host": host, "zone": {**zone, "host": "b"}},
        {"near": near, "host": host},
        {"near": near, "later": near},
        {"unknown": {"host": "b"}, "near": near},
    ):
        scenario = formed(**spares)
        scenario.tell(ConnectionLost(2, "reset"))
        chosen.append(owners(scenario))
    assert chosen == [["w0", "zone"], ["w0", "host"], ["w0", "near"], ["w0", "unknown"]]


def test_the_death_of_a_spare_changes_no_epoch_and_is_told_apart() -> None:
    scenario = formed(s={}, t={})
    epoch = scenario.roster.durable.epoch
    scenario.tell(ConnectionLost(10, "reset"))
    scenario.tell(ConnectionLost(2, "reset"))  # t takes the place, then dies as a member
    scenario.tell(ConnectionLost(11, "reset"))
    scenario.tell(ConnectionLost(1, "reset"))  # nobody takes this one
    processes = (("s", 10), ("t", 11), ("w0", hello("w0").group))
    ended = [scenario.roster.had_rank(*process) for process in processes]
    assert (epoch, ended) == (1, [False, True, True])


def test_a_process_that_came_back_as_a_spare_and_became_a_member_is_no_spare() -> None:
    scenario = formed(s={})
    scenario.tell(ConnectionLost(10, "reset"))
    scenario.joined(11, hello("s", spare=True, incarnation=1, group=10))
    scenario.tell(ConnectionLost(2, "reset"))
    assert (owners(scenario), scenario.roster.had_rank("s", 10)) == (["w0", "s"], None)


def test_a_spare_that_is_given_up_ends_nothing() -> None:
    scenario = formed(s={})
    scenario.tell(GivenUp("s", "it died too often"))
    assert scenario.roster.state is not JobState.OVER
    assert SETTINGS.spares == 0


def test_status_lists_spares_and_says_how_many_are_missing() -> None:
    scenario = formed(s={"host": "b", "zone": "z1", "pid": 7}, t={"host": "c"})
    scenario.said(10, Prefetched(4, 2_500_000))
    document = scenario.roster.snapshot(12.0)
    assert document["spares"] == [
        {
            "worker_id": "s",
            "host": "b",
            "zone": "z1",
            "pid": 7,
            "is_spare": True,
            "version": 4,
            "nbytes": 2_500_000,
            "age_s": 12.0,
        },
        {
            "worker_id": "t",
            "host": "c",
            "zone": "",
            "pid": 0,
            "is_spare": True,
            "version": -1,
            "nbytes": 0,
            "age_s": None,
        },
    ]
    told = {"address": "a:1", "pid": 1, "uptime_s": 0, "state_dir": "d"}
    text = table({**document, **told, "spares_wanted": 3})
    assert text.splitlines()[-3:] == [
        "spare s (pid 7) on b, zone z1, holds checkpoint 4 (12 s old), 2.5 MB",
        "spare t (pid 0) on c, holds no checkpoint yet",
        "2 of 3 spares are here",
    ]


def running(**workers: dict[str, str]) -> ScenarioRun:
    """The same, in its first epoch."""
    scenario = formed(**workers)
    for conn in (1, 2):
        scenario.said(conn, report(1))
    return scenario


def orders(sent: list[tuple[int, Any]]) -> list[tuple[int, int, int]]:
    """Spares that are sent, with the version and the rank."""
    return [(conn, m.version, m.rank) for conn, m in sent if isinstance(m, Prefetch)]


def beat(scenario: ScenarioRun, conn: int, version: int) -> list[tuple[int, int, int]]:
    return orders(scenario.said(conn, Heartbeat(1, 1, at(version, 1), None, 0)))


def test_each_heartbeat_that_names_a_newer_version_sends_one_spare_there() -> None:
    scenario = running(s={}, t={})
    sent = [beat(scenario, conn, version) for conn, version in ((1, 3), (2, 3), (1, 3), (1, 4))]
    scenario.said(10, Prefetched(3, 8))
    assert [*sent, beat(scenario, 2, 4)] == [[(10, 3, 0)], [(11, 3, 1)], [], [], [(10, 4, 1)]]


def test_a_member_that_has_not_loaded_yet_has_nothing_to_give() -> None:
    scenario = running(s={})
    assert orders(scenario.said(1, Heartbeat(1, 1, START, None, 0))) == []


def test_a_fetch_that_brought_nothing_is_tried_again_later_or_for_a_newer_version() -> None:
    scenario = running(s={})
    sent = [beat(scenario, 1, 3)]
    scenario.said(10, Prefetched(-1, 0))
    sent += [beat(scenario, 1, 3), beat(scenario, 2, 4)]
    scenario.said(10, Prefetched(-1, 0))
    sent += [beat(scenario, 1, 4)]
    for scenario.now in (RETRY_S / 2, RETRY_S):
        scenario.said(10, Heartbeat(1, 0, START, None, 0))
        sent += [beat(scenario, 1, 4)]
    assert sent == [[(10, 3, 0)], [], [(10, 4, 1)], [], [], [(10, 4, 0)]]


@pytest.mark.parametrize(("spares", "wanted"), [(0, False), (1, False), (2, True)])
def test_a_worker_whose_rank_a_spare_took_is_wanted_while_spares_lack(
    spares: int, *, wanted: bool
) -> None:
    scenario = formed(replace(SETTINGS, spares=spares), s={}, t={})
    for conn in (1, 2):
        scenario.said(conn, report(1))
    scenario.tell(ConnectionLost(2, "reset"))
    found = [scenario.roster.standing_of(name, 1).is_spare for name in ("w0", "w1")]
    assert found == [False, wanted]


def test_of_spares_that_are_as_far_away_the_one_with_the_newest_checkpoint_is_taken() -> None:
    scenario = running(s={}, t={}, u={"host": "b"})
    for conn, version in ((10, 3), (11, 4), (12, 5)):
        scenario.said(conn, Prefetched(version, 8))
    scenario.tell(ConnectionLost(2, "reset"))
    assert owners(scenario) == ["w0", "t"]
