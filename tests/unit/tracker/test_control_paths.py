"""Scenarios: workers on several machines, some of which would have the others dial loopback."""

from typing import Any

import pytest

from ftcomm.protocol.messages import Refused
from ftcomm_tracker.core.control_paths import ControlPath, ControlPaths
from ftcomm_tracker.core.events import ConnectionLost, Disconnect, Joined, Note, Send
from tests.unit.tracker.roster_scenario import ScenarioRun, hello, names, report, running, sends

# A worker on the tracker's machine, by loopback and by that machine's own address; two elsewhere.
HOME = ControlPath("127.0.0.1", "127.0.0.1:4711", is_local=True)
OUTSIDE = ControlPath("10.0.0.5", "10.0.0.5:4711", is_local=True)
AWAY = ControlPath("10.0.0.6", "10.0.0.5:4711", is_local=False)
FURTHER = ControlPath("10.0.0.7", "10.0.0.5:4711", is_local=False)

REMEDY = "set its FTCOMM_BIND, or FTCOMM_ADVERTISE, to an address that others can dial"
CAUSE = (
    "worker w1 on h advertises loopback ({}) to worker w0, which comes from another machine or"
    " network (h, 10.0.0.6): "
)
START_ANEW = "start worker w1 with FTCOMM_TRACKER=10.0.0.5:4711, or "


def came(
    scenario: ScenarioRun, conn: int, worker: str, path: ControlPath, address: str, **more: Any
) -> list[Any]:
    return scenario.tell(Joined(conn, hello(worker, address=address, **more), path))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1", "localhost", "0.0.0.0", "::"])
def test_a_worker_that_others_cannot_dial_is_refused_by_name(address: str) -> None:
    scenario = ScenarioRun(2)
    came(scenario, 1, "w0", AWAY, "10.0.0.6")
    refusal = Refused("ConfigError", f"{CAUSE.format(address)}{START_ANEW}{REMEDY}")
    assert came(scenario, 2, "w1", HOME, address) == [
        Send(2, refusal),
        Disconnect(2, refusal.reason),
        Note("warning", f"refused a worker: {refusal.reason}"),
    ]


def test_while_no_group_has_formed_those_that_came_before_are_refused_too() -> None:
    """Both that advertise loopback, and not the one that shows it: its address is good."""
    scenario = ScenarioRun(4)
    for conn in (1, 2):
        came(scenario, conn, f"w{conn}", HOME, "127.0.0.1")
    sent = sends(came(scenario, 3, "w0", AWAY, "10.0.0.6"))
    assert names(sent) == [(1, "Refused"), (2, "Refused"), (3, "Welcome")]
    for conn in (4, 5):  # what they are told makes them come by another address
        again = came(scenario, conn, f"w{conn - 3}", OUTSIDE, "10.0.0.5", incarnation=1)
        assert names(sends(again)) == [(conn, "Welcome")]


def test_a_group_of_one_machine_refuses_a_worker_of_another() -> None:
    scenario = ScenarioRun(2)
    for conn in (1, 2):
        came(scenario, conn, f"w{conn}", HOME, "127.0.0.1")
    for conn in (1, 2):
        scenario.said(conn, report(1))
    sent = sends(came(scenario, 3, "w0", AWAY, "10.0.0.6"))
    assert names(sent) == [(3, "Refused")]
    assert sent[0][1].reason.startswith(f"{CAUSE.format('127.0.0.1')}{START_ANEW}")


@pytest.mark.parametrize(
    ("path", "address"),
    [
        (HOME, "127.0.0.1"),
        (OUTSIDE, "10.0.0.5"),  # by loopback and by an own address: one machine
        (None, "10.0.0.6"),  # nothing is known of its connection
    ],
)
def test_workers_of_one_machine_may_advertise_loopback(path: Any, address: str) -> None:
    scenario = ScenarioRun(2)
    came(scenario, 1, "w1", HOME, "127.0.0.1")
    sent = sends(scenario.tell(Joined(2, hello("w0", address=address), path)))
    assert names(sent)[0] == (2, "Welcome")


def test_workers_behind_a_forwarder_of_their_machine_may_advertise_loopback() -> None:
    """All are on one machine, and the tracker is on another."""
    scenario = ScenarioRun(2)
    for conn in (1, 2):
        sent = sends(came(scenario, conn, f"w{conn}", AWAY, "127.0.0.1"))
    assert names(sent)[0] == (2, "Welcome")


@pytest.mark.parametrize("path", [FURTHER, OUTSIDE])
def test_a_worker_whose_settings_say_loopback_is_told_to_change_them(path: ControlPath) -> None:
    """It has dialled another address of the tracker: to do so again is no remedy.

    The tracker cannot know that two networks of one machine are one: names of hosts prove nothing.
    """
    scenario = ScenarioRun(2)
    came(scenario, 1, "w0", AWAY, "10.0.0.6")
    ((_, refused),) = sends(came(scenario, 2, "w1", path, "127.0.0.1"))
    assert refused == Refused("ConfigError", f"{CAUSE.format('127.0.0.1')}{REMEDY}")


def test_a_newer_process_of_a_worker_may_come_from_another_machine() -> None:
    scenario = ScenarioRun(2)
    came(scenario, 1, "w1", HOME, "127.0.0.1")
    sent = sends(came(scenario, 2, "w1", AWAY, "10.0.0.6", nonce=b"w1-b"))
    assert names(sent) == [(1, "Fenced"), (2, "Welcome")]


def test_a_connection_that_has_ended_keeps_nobody_away() -> None:
    scenario = ScenarioRun(2)
    came(scenario, 1, "w0", AWAY, "10.0.0.6")
    scenario.tell(ConnectionLost(1, "its connection ended"))
    assert scenario.roster._group.paths == ControlPaths()
    assert names(sends(came(scenario, 2, "w1", HOME, "127.0.0.1"))) == [(2, "Welcome")]


def test_a_member_that_comes_back_is_not_judged() -> None:
    """It has its links, and a restarted tracker does not end the work that they carry."""
    scenario = ScenarioRun(2, running(2).journalled)
    for conn, path in ((1, AWAY), (2, HOME)):
        member = hello(f"w{conn - 1}", incarnation=1, plan_epoch=1, revoke_epoch=1)
        sent = sends(scenario.tell(Joined(conn, member, path)))
        assert names(sent)[0] == (conn, "Welcome")
