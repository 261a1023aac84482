"""Large groups: work that the tracker batches is done for every worker."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ftcomm.protocol.messages import AskCalls, Blocked, Heartbeat, HeartbeatAck, Hello, Welcome
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import ConnectionLost, Effect, Joined, Said, Send, Tick
from ftcomm_tracker.core.group_state import SMALL_GROUP
from ftcomm_tracker.core.mismatch_inquiry import ANSWER_WITHIN_S, MOST_ASKED
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.server.roster_loop import RosterLoop
from ftcomm_tracker.server.state_dir_watch import StateDirWatch
from ftcomm_tracker.server.token_file import TokenFile
from tests.unit.tracker.roster_scenario import SETTINGS, at, hello, report

MANY = SMALL_GROUP + 6


def joined(count: int) -> Roster:
    roster = Roster(SETTINGS, Durable.fresh("job", count), generation=1, now=0.0)
    for conn in range(count):
        roster.handle(Joined(conn, hello(f"w{conn}")), now=0.0)
    return roster


def running(count: int) -> Roster:
    roster = joined(count)
    for conn in range(count):
        roster.handle(Said(conn, report(1)), now=0.0)
    return roster


def blocked(signature: bytes) -> Heartbeat:
    return Heartbeat(1, 1, at(-1, 0), Blocked(signature * 40, "train.py:1", (0,), 100))


def said(roster: Roster, conn: int, message: Any, now: float) -> list[Any]:
    return sent(roster.handle(Said(conn, message), now=now))


def sent(effects: list[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def test_who_is_blocked_elsewhere_is_found_at_the_next_look() -> None:
    """In a large group not every heartbeat is a reason to look at all who are blocked."""
    roster = running(MANY)
    assert said(roster, 1, blocked(b"a"), now=1.0) == [HeartbeatAck(1)]
    assert said(roster, 2, blocked(b"b"), now=1.001) == [HeartbeatAck(1)]
    due = roster.next_deadline()
    assert due is not None
    assert 1.001 < due < 1.1
    asked = said(roster, 3, Heartbeat(1, 1, at(-1, 0)), now=due)
    assert asked == [HeartbeatAck(1), *[AskCalls(-1)] * MOST_ASKED]
    told = sent(roster.handle(Tick(), now=due + ANSWER_WITHIN_S))
    assert [message.error for message in told] == ["CollectiveMismatchError"] * MANY


def test_a_look_that_is_due_is_had_though_the_group_has_become_small() -> None:
    """Else its time stays in the past, and the tracker is due again and again."""
    roster = running(MANY)
    for conn, now in ((1, 1.0), (2, 1.001)):
        said(roster, conn, blocked(b"a"), now=now)
    due = roster.next_deadline()
    for conn in range(SMALL_GROUP, MANY):
        roster.handle(ConnectionLost(conn, "killed"), now=1.002)
    assert due is not None
    assert roster.next_deadline() == due
    roster.handle(Tick(), now=due)
    after = roster.next_deadline()
    assert after is not None
    assert after > due + SETTINGS.detect_within / 4


def test_a_job_that_joins_at_once_is_journalled_once_and_before_anyone_is_told(
    tmp_path: Path,
) -> None:
    course: list[Any] = []
    journal: Any = SimpleNamespace(
        path=tmp_path / "journal",
        repair=lambda: False,
        write=lambda document: course.append((document["epoch"], len(document["incarnations"]))),
    )
    roster = Roster(SETTINGS, Durable.fresh("job", 4), generation=1, now=0.0)
    state_dir = StateDirWatch(journal, TokenFile(tmp_path / "token", b"key"))

    def perform(effect: Effect) -> None:
        if isinstance(effect, Send):
            course.append(type(effect.message))

    hellos: list[Hello] = [hello(f"w{number}") for number in range(4)]
    loop = RosterLoop(roster, journal, state_dir, perform)
    loop.hear([(Joined(conn, words), None) for conn, words in enumerate(hellos)], 0.0)
    welcomes = [Welcome] * 4
    assert course[:5] == [(1, 4), *welcomes]


def test_processes_are_found_and_numbered_in_any_order_of_ids() -> None:
    durable = Durable.fresh("job", 4)
    for worker_id, process in (("b", 1), ("a", 1), ("c", 1), ("b", 2)):
        processes = durable.with_incarnation(worker_id, process)
        durable = Durable("job", 4, incarnations=processes)
    assert durable.incarnations == (("a", 1), ("b", 2), ("c", 1))
    assert [durable.incarnation_of(name) for name in ("", "a", "b", "bb", "c", "d")] == [
        0,
        1,
        2,
        0,
        1,
        0,
    ]
