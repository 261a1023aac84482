"""Spares: who is not counted when the group forms, and who takes a lost worker's place."""

from ftcomm_tracker.core.events import ConnectionLost, GivenUp
from ftcomm_tracker.core.reporting.status import table
from ftcomm_tracker.core.roster import JobState
from tests.unit.tracker.roster_scenario import SETTINGS, ScenarioRun, hello


def formed(**workers: dict[str, str]) -> ScenarioRun:
    """A running group of two on hosts a and b, and spares that joined in this order."""
    scenario = ScenarioRun()
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
    ended = [scenario.roster.ended_as_spare(*process) for process in (("s", 10), ("t", 11))]
    assert (epoch, scenario.roster.durable.epoch, ended) == (1, 1, [True, False])


def test_a_process_that_came_back_as_a_spare_and_became_a_member_is_no_spare() -> None:
    scenario = formed(s={})
    scenario.tell(ConnectionLost(10, "reset"))
    scenario.joined(11, hello("s", spare=True, incarnation=1, group=10))
    scenario.tell(ConnectionLost(2, "reset"))
    assert (owners(scenario), scenario.roster.ended_as_spare("s", 10)) == (["w0", "s"], False)


def test_a_spare_that_is_given_up_ends_nothing() -> None:
    scenario = formed(s={})
    scenario.tell(GivenUp("s", "it died too often"))
    assert scenario.roster.state is not JobState.OVER
    assert SETTINGS.spares == 0


def test_status_lists_spares_and_says_how_many_are_missing() -> None:
    scenario = formed(s={"host": "b", "zone": "z1", "pid": 7}, t={"host": "c"})
    document = scenario.roster.snapshot(0.0)
    assert document["spares"] == [
        {"worker_id": "s", "host": "b", "zone": "z1", "pid": 7, "is_spare": True},
        {"worker_id": "t", "host": "c", "zone": "", "pid": 0, "is_spare": True},
    ]
    told = {"address": "a:1", "pid": 1, "uptime_s": 0, "state_dir": "d"}
    text = table({**document, **told, "spares_wanted": 3})
    assert text.splitlines()[-3:] == [
        "spare s (pid 7) on b, zone z1",
        "spare t (pid 0) on c",
        "2 of 3 spares are here",
    ]
