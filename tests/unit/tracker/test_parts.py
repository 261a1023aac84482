"""Parts of a group: ends that they hold, and the keys that they add to `status`."""

import ast
import inspect
from types import ModuleType
from typing import Any, ClassVar

import pytest

from ftcomm.protocol.messages import Heartbeat
from ftcomm.protocol.position import START
from ftcomm_tracker.core import admission, ending, epochs, group_state, plan, roster
from ftcomm_tracker.core.all_parts import PARTS
from ftcomm_tracker.core.ending import PendingEnd, release_end
from ftcomm_tracker.core.events import ConnectionLost, StopAsked
from ftcomm_tracker.core.group_state import GroupState, Peer
from ftcomm_tracker.core.part import Part
from ftcomm_tracker.core.roster import JobState, Roster
from tests.unit.tracker.roster_scenario import SETTINGS, ScenarioRun, decisions, hello, report


class Holder(Part):
    """Holds the first end until the time has come."""

    def __init__(self) -> None:
        self.until = 1.0
        self.held: list[PendingEnd] = []
        self.looked = 0

    @property
    def has_end(self) -> bool:
        return bool(self.held)

    def on_end(self, group: GroupState, end: PendingEnd) -> PendingEnd | None:
        self.held.append(end)
        return None

    def on_time(self, group: GroupState) -> None:
        self.looked += 1
        if self.held and group.now >= self.until and group.state is not JobState.OVER:
            release_end(group, self, self.held.pop())


class Overwriting(Part):
    """Claims a key of the core."""

    def rows(self, group: GroupState, now: float) -> dict[str, Any]:
        return {"epoch": 7}


class HeartbeatCount(Part):
    """Counts heartbeats, and shows their number."""

    hears: ClassVar[tuple[type, ...]] = (Heartbeat,)

    def __init__(self) -> None:
        self.count = 0

    def on_message(self, group: GroupState, peer: Peer, message: Heartbeat) -> None:
        self.count += 1

    def rows(self, group: GroupState, now: float) -> dict[str, Any]:
        return {"heartbeats": self.count}


class Witness(Part):
    """Notes who is given a rank and who is gone, and offers the first worker without a rank."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int | None]] = []

    def candidate(self, group: GroupState, rank: int) -> Peer | None:
        return next((peer for peer in group.members.peers.values() if peer.rank is None), None)

    def on_seated(self, group: GroupState, peer: Peer) -> None:
        self.seen.append(("seated", peer.conn, peer.rank))

    def on_gone(self, group: GroupState, peer: Peer) -> None:
        self.seen.append(("gone", peer.conn, peer.rank))


def running_with(*parts: Part) -> ScenarioRun:
    scenario = ScenarioRun()
    durable = scenario.roster.durable
    scenario.roster = Roster(SETTINGS, durable, generation=1, now=0.0, parts=lambda: parts)
    scenario.joined(1, hello("w0"))
    scenario.joined(2, hello("w1"))
    return scenario


def test_an_end_that_is_released_goes_to_the_parts_behind() -> None:
    first, second = Holder(), Holder()
    second.until = 2.0
    scenario = running_with(first, second)
    assert decisions(scenario.tell(StopAsked("lunch"))) == {}
    assert (first.has_end, second.has_end) == (True, False)
    assert decisions(scenario.tick(1.0)) == {}
    assert (first.has_end, second.has_end) == (False, True)
    assert decisions(scenario.tick(2.0))[1].error == "JobStoppedError"


def test_parts_behind_the_one_that_ends_the_job_are_looked_at_too() -> None:
    first, second = Holder(), Holder()
    second.until = 0.0  # it has nothing to wait for
    scenario = running_with(first, second)
    scenario.tell(StopAsked("lunch"))
    looked = second.looked
    assert decisions(scenario.tick(1.0))[1].error == "JobStoppedError"
    assert second.looked == looked + 1


def test_a_part_overwrites_no_key_of_the_core() -> None:
    scenario = running_with(Overwriting())
    with pytest.raises(AssertionError, match="epoch has another owner"):
        scenario.roster.snapshot(0.0)


def test_a_new_part_hears_messages_and_shows_a_row_without_a_line_of_the_core() -> None:
    scenario = running_with(HeartbeatCount())
    scenario.said(1, Heartbeat(1, 1, START))
    scenario.said(1, report(2))  # which it does not hear
    scenario.said(2, Heartbeat(1, 1, START))
    assert scenario.roster.snapshot(0.0)["heartbeats"] == 2


def test_the_first_candidate_takes_an_empty_place_and_each_part_hears_of_it() -> None:
    first, second = Witness(), Witness()
    scenario = running_with(Part(), first, second)
    for conn, name in ((10, "s"), (11, "t")):
        scenario.joined(conn, hello(name, spare=True))
    first.seen.clear()
    scenario.tell(ConnectionLost(2, "reset"))
    assert first.seen == second.seen[-2:] == [("gone", 2, 1), ("seated", 10, 1)]
    scenario.tell(ConnectionLost(11, "reset"))
    assert first.seen[-1] == ("gone", 11, None)


@pytest.mark.parametrize("core", [admission, ending, epochs, group_state, plan, roster])
def test_the_core_names_no_part(core: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(core))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert names.isdisjoint(part.__name__ for part in PARTS)
