"""Scenarios of a worker whose tracker has lost its journal: what it says, and whom it follows."""

from dataclasses import replace
from typing import Any

import pytest

from ftcomm.protocol.codec import encode
from ftcomm.protocol.field_types import MAX_CONTROL_FRAME
from ftcomm.protocol.messages import AskRoster, KnownRoster, Member, Revoke, RosterEntry, Welcome
from ftcomm.protocol.position import START
from ftcomm.recovery.events import Attached, Detached, Effect, Redial, SendControl
from ftcomm.recovery.machine import Identity, MachineLimits, WorkerMachine
from tests.unit.recovery.worker_scenario import NONCE, a_member, hear, members


def answers(effects: list[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, SendControl)]


def test_a_member_says_what_it_knows() -> None:
    named = tuple(replace(member, nonce=NONCE) for member in members(1))
    core = a_member(members=named)
    assert answers(hear(core, AskRoster(7, b"new"))) == [
        KnownRoster(
            7, "job", 2, (), 1, (0, 0), -1, START, -1, (), 0,
            (RosterEntry("w0", 1, NONCE, "h", True), RosterEntry("w1", 1, NONCE, "h", False)),
        )
    ]  # fmt: skip


def test_the_largest_roster_travels_in_parts_that_fit_their_frames() -> None:
    large = tuple(
        Member(r, f"{r:064}", 2**32 - 1, "h" * 64, "a" * 255, 1, True, b"n" * 32)
        for r in range(2048)
    )
    core = a_member()
    core.view.members, core.view.grouping = large, tuple(range(2048))
    core.contact.settings = (("s" * 64, "v" * 1024),) * 64
    core.contact.world_size = 2048
    for generation in range(9):
        core.contact.dialled = f"{generation:0255}"
        core.contact.follow(generation, b"t")
    parts = answers(hear(core, AskRoster(10, b"new")))
    assert sum(len(part.entries) for part in parts) == 2048
    assert max(len(encode(part)) for part in parts) <= MAX_CONTROL_FRAME


@pytest.mark.parametrize(
    ("generation", "tracker", "follows"),
    [(6, b"old", False), (7, b"other", False), (7, b"new", True), (8, b"other", True)],
)
def test_a_member_follows_no_older_tracker(generation: int, tracker: bytes, follows: bool) -> None:
    core = a_member()
    hear(core, AskRoster(7, b"new"))
    welcome = Welcome("job", generation, 1, 2, 1, (), tracker)
    for message in (AskRoster(generation, tracker), welcome):
        effects = hear(core, message)
        assert (effects == [Redial()]) is not follows
    assert core.contact.tracker == (tracker if follows else b"new")


@pytest.mark.parametrize("before", [3, 2])
def test_a_process_that_no_plan_has_named_begins_anew_with_any_tracker(before: int) -> None:
    """The later one that welcomed it may have left nothing, and be gone."""
    limits = MachineLimits()
    core = WorkerMachine(Identity("w0", NONCE, "h", "127.0.0.1", 1000), limits, now=0.0)
    for generation, tracker in ((before, b"gone"), (2, b"here")):
        core.handle(Attached(), now=0.0)
        assert Redial() not in hear(core, Welcome("job", generation, 1, 2, 4, (), tracker))
        core.handle(Detached("it has gone"), now=0.0)
    assert (core.contact.generation, core.contact.tracker) == (2, b"here")


def test_a_member_names_the_trackers_that_it_has_lost() -> None:
    """The one that welcomed it may be stopped; another without a journal may wait for it."""
    core = a_member()
    core.contact.dialled = "old:1"
    hear(core, Welcome("job", 2, 1, 2, 1, (), b"old"))
    named = []
    for generation, address in enumerate(("one:1", "two:1", "one:1"), 7):
        core.contact.dialled = address
        [answer] = answers(hear(core, AskRoster(generation, address.encode())))
        named.append(answer.lost)
    assert named == [("old:1",), ("old:1", "one:1"), ("old:1", "two:1")]


def test_the_next_hello_says_whom_the_worker_follows() -> None:
    core = a_member()
    hear(core, AskRoster(7, b"new"))
    core.handle(Detached("gone"), now=0.0)
    (hello,) = answers(core.handle(Attached(), now=0.0))
    assert (hello.job_id, hello.generation, hello.tracker) == ("job", 7, b"new")


def test_a_worker_without_a_plan_joins_the_job_that_begins_anew() -> None:
    limits = MachineLimits()
    core = WorkerMachine(Identity("w0", NONCE, "h", "127.0.0.1", 1000), limits, now=0.0)
    hear(core, Welcome("job", 6, 1, 2, 0, (), b"old"))
    hear(core, Revoke(1, "the group is complete"))
    hear(core, AskRoster(7, b"new"))
    hear(core, Welcome("other", 1, 3, 2, 0, (), b"first"))
    assert (core.contact.job_id, core.contact.incarnation, core.contact.generation) == (
        "other", 3, 1,
    )  # fmt: skip
