"""Stories of one worker's local states: offered, copied, committed, fetched, reported."""

from typing import Any

from ftcomm.protocol.messages import Fetch, LocalFetch, LocalStates, Revoke
from ftcomm.protocol.position import PositionRange
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.recovery.events import (
    CheckpointFetched,
    FetchEnded,
    LocalFetched,
    StartFetch,
    Wake,
)
from ftcomm.recovery.fetch_orders import fetch_orders
from ftcomm.recovery.machine import Checkpoint, Completion, NextStep, WorkerMachine
from tests.unit.recovery.worker_scenario import LOAD, a_member, at, execute, hear, plan

CHECKPOINT = Signature(Kind.CHECKPOINT, count=1).encode()


def held(core: WorkerMachine) -> tuple[LocalStates, ...]:
    return core.progress.report().locals


def saved(version: int = 1) -> WorkerMachine:
    """Rank 0 of two, in version 0, with its own part of version 1 saved."""
    core = a_member()
    core.progress.begin_load(LOAD, "t.py:1")
    assert core.progress.complete_load(1, "w0", b"", now=0.0) is Completion.DONE
    execute(core, "g")
    assert core.progress.offer_checkpoint("w1", b"d", "mine") == version
    return core


def test_own_and_copies_of_others_are_committed_together() -> None:
    core = saved()
    assert held(core) == (LocalStates(1, (0,)),)
    assert core.progress.keep_local(1, 1, 1, "theirs")
    assert held(core) == (LocalStates(1, (0, 1)),)
    assert core.progress.complete_checkpoint(1, now=0.0)[0] is Completion.DONE
    assert (held(core), core.archive.locals.get(1, 0)) == ((LocalStates(1, (0, 1)),), "mine")


def test_the_copies_of_an_old_version_go_when_the_next_is_committed() -> None:
    core = saved()
    core.progress.complete_checkpoint(1, now=0.0)
    core.progress.offer_checkpoint("w2", b"e", "newer")
    assert held(core) == (LocalStates(1, (0,)), LocalStates(2, (0,)))
    core.progress.complete_checkpoint(1, now=0.0)
    assert held(core) == (LocalStates(2, (0,)),)


def test_a_version_without_local_states_ends_them() -> None:
    core = saved()
    core.progress.complete_checkpoint(1, now=0.0)
    core.progress.offer_checkpoint("w2", b"e")
    core.progress.complete_checkpoint(1, now=0.0)
    assert held(core) == ()


def test_a_copy_that_comes_after_the_report_or_in_another_epoch_is_refused() -> None:
    core = saved()
    hear(core, Revoke(2, "rank 1 died"))
    assert not core.progress.keep_local(1, 1, 1, "late")
    hear(core, plan(2, at(0, 1)))
    assert not core.progress.keep_local(1, 1, 1, "stale")
    assert held(core) == (LocalStates(1, (0,)),)


def test_a_plan_that_does_not_commit_takes_the_copies_away() -> None:
    """Another process of rank 1 may save something else; then both would be held for one state."""
    core = saved()
    core.progress.keep_local(1, 1, 1, "theirs")
    hear(core, Revoke(2, "rank 1 died"))
    assert held(core) == (LocalStates(1, (0, 1)),)
    hear(core, plan(2, at(0, 1)))
    assert held(core) == (LocalStates(1, (0,)),)


def test_a_plan_that_commits_has_the_missing_copies_fetched() -> None:
    core = saved()
    hear(core, Revoke(2, "rank 1 died"))
    effects = hear(core, plan(2, at(1, 0), commit=1, locals=(LocalFetch(1, 1),)))
    assert effects == [StartFetch(2, 1, -1, (), 1, (1,)), Wake()]
    assert core.handle(LocalFetched(2, 1, 1, "theirs"), now=0.0) == []
    assert held(core) == (LocalStates(1, (0, 1)),)


def test_nothing_is_committed_while_one_is_still_fetching() -> None:
    """Its source would released what was asked for."""
    core = saved()
    hear(core, Revoke(2, "rank 1 died"))
    hear(core, plan(2, at(1, 0), commit=1, locals=(LocalFetch(1, 1),)))
    execute(core, "h")
    core.progress.offer_checkpoint("w2", b"e", "newer")
    assert core.progress.begin(CHECKPOINT, "t.py:1") is NextStep.WAIT
    core.handle(LocalFetched(2, 1, 1, "theirs"), now=0.0)
    core.handle(FetchEnded(2, 1), now=0.0)
    assert core.progress.begin(CHECKPOINT, "t.py:1") is NextStep.EXECUTE


def a_replacement(**changes: Any) -> WorkerMachine:
    return a_member(at(4, 0), load=4, load_from=(1,), prelude_length=0, **changes)


def test_load_waits_for_ones_own_local_state() -> None:
    core = a_replacement(locals=(LocalFetch(1, 0), LocalFetch(1, 1)))
    assert core.view.known_version == 4
    core.handle(CheckpointFetched(1, 4, "w4"), now=0.0)
    assert core.progress.begin_load(LOAD, "t.py:1") is NextStep.WAIT
    assert core.handle(LocalFetched(1, 4, 0, "mine"), now=0.0) == [Wake()]
    assert core.progress.begin_load(LOAD, "t.py:1") == Checkpoint(4, "w4")
    assert held(core) == (LocalStates(4, (0,)),)


def test_a_local_state_may_come_before_its_checkpoint() -> None:
    core = a_replacement(locals=(LocalFetch(1, 0),))
    core.handle(LocalFetched(1, 4, 0, "mine"), now=0.0)
    assert held(core) == (LocalStates(4, (0,)),)
    core.handle(CheckpointFetched(1, 4, "w4"), now=0.0)
    assert core.progress.begin_load(LOAD, "t.py:1") == Checkpoint(4, "w4")


def test_what_was_fetched_for_an_old_plan_is_dropped() -> None:
    """And what a stale fetch brings is not believed, whatever it is of."""
    core = a_replacement(locals=(LocalFetch(1, 0),))
    core.handle(LocalFetched(1, 4, 1, "theirs"), now=0.0)
    hear(core, Revoke(2, "rank 1 died"))
    core.handle(LocalFetched(1, 4, 0, "late"), now=0.0)
    hear(core, plan(2, at(5, 0), load=5, load_from=(1,), locals=(LocalFetch(1, 0),)))
    core.handle(LocalFetched(1, 5, 0, "stale"), now=0.0)
    assert held(core) == (LocalStates(5, ()),)


def test_one_source_is_asked_once_for_everything() -> None:
    order = plan(
        3,
        at(4, 2),
        load=4,
        load_from=(1,),
        fetches=(Fetch(1, PositionRange(4, 0, 2)), Fetch(2, PositionRange(-1, 0, 1))),
        locals=(LocalFetch(2, 0), LocalFetch(2, 1)),
    )
    assert fetch_orders(order) == [
        StartFetch(3, 1, 4, (PositionRange(4, 0, 2),)),
        StartFetch(3, 2, -1, (PositionRange(-1, 0, 1),), 4, (0, 1)),
    ]


def test_another_holder_of_the_checkpoint_is_asked_in_the_next_epoch() -> None:
    """One that has no memory to pack it would be asked again, and again, by the same rule."""
    orders = [plan(epoch, at(4, 0), load=4, load_from=(1, 2)) for epoch in (2, 3)]
    assert [[start.source for start in fetch_orders(order)] for order in orders] == [[1], [2]]


def test_the_version_is_not_known_before_anyone_has_loaded() -> None:
    assert a_member().view.known_version is None
