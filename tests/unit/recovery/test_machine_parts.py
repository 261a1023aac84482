"""The recovery machine is one object that owns small ones, each with its own invariants."""

import math

import pytest

from ftcomm.recovery.archive.archive import Archive
from ftcomm.recovery.epoch_view import EpochView
from ftcomm.recovery.states import Checkpoint, Identity, MachineLimits, WorkerState
from ftcomm.recovery.tracker_contact import TrackerContact
from tests.unit.recovery.worker_scenario import a_member, members, plan

MAX_MEMBERS = 35  # of one object: methods, properties and attributes


def test_the_machine_and_its_parts_are_small_and_inherit_from_nothing() -> None:
    core = a_member()
    objects = (core, *vars(core).values())
    members_of = {
        type(one).__name__: len([n for n in dir(one) if not n.startswith("__")]) for one in objects
    }
    assert {name: count for name, count in members_of.items() if count > MAX_MEMBERS} == {}
    assert [type(one).__mro__[1:] for one in objects] == [(object,)] * len(objects)


def a_view(*, epoch: int = 1) -> EpochView:
    view = EpochView()
    view.revoke(epoch)
    view.take_plan(plan(epoch), now=0.0)
    view.start_fetches(frozenset())
    return view


def test_an_epoch_goes_on_from_its_plan_to_its_end() -> None:
    view = EpochView()
    seen = [(view.state, view.is_frozen)]
    view.revoke(1)
    seen.append((view.state, view.is_frozen))
    view.take_plan(plan(1), now=0.0)
    view.start_fetches(frozenset({1}))
    seen.append((view.state, view.is_frozen))
    assert view.end_fetch(1)
    seen.append((view.state, view.is_frozen))
    view.check_invariants()
    assert seen == [
        (WorkerState.DETACHED, True),
        (WorkerState.STOPPED, True),
        (WorkerState.CATCHING_UP, False),
        (WorkerState.RUNNING, False),
    ]
    assert (view.epoch, view.caught_up, view.members) == (1, 1, members())


def test_a_lost_link_ends_what_the_epoch_allows_until_the_next_plan() -> None:
    view = a_view()
    assert view.allows_completion(1)
    assert not view.allows_completion(0)
    assert view.suspect(1, 1)
    assert not view.suspect(1, 1), "it is known"
    assert not view.suspect(0, 0), "it is stale"
    assert (view.suspects, view.is_frozen, view.allows_completion(1)) == ((1,), True, False)
    view.revoke(2)
    view.take_plan(plan(2), now=0.0)
    view.start_fetches(frozenset())
    assert (view.suspects, view.allows_completion(2)) == ((), True)


def test_a_change_of_state_that_is_no_edge_is_refused() -> None:
    with pytest.raises(AssertionError):
        EpochView().enter("Plan", WorkerState.RUNNING)


def a_contact() -> TrackerContact:
    identity = Identity("w0", b"n" * 16, "h", "127.0.0.1", 1000)
    return TrackerContact(identity, MachineLimits(detect_within=4.0), now=0.0)


def test_who_did_not_run_for_a_while_is_confirmed_by_an_answer_to_a_later_heartbeat() -> None:
    contact = a_contact()
    half = contact.limits.detect_within / 2
    assert (contact.beat(1.0, 0), contact.confirm_after) == (1, 1.0 + half)
    assert (contact.beat(9.0, 0), contact.confirm_after) == (2, -math.inf)
    assert (contact.acknowledge(1), contact.confirm_after) == (False, -math.inf)
    assert (contact.acknowledge(2), contact.confirm_after) == (True, 9.0 + half)


def test_new_limits_hold_for_the_next_gap() -> None:
    contact = a_contact()
    contact.set_limits(MachineLimits(detect_within=20.0))
    assert contact.confirm_after == 10.0


def test_a_checkpoint_is_loadable_once_it_is_committed_and_ones_own_local_state_is_here() -> None:
    store = Archive()
    store.offer(Checkpoint(1, "w1", b"d"), 0, "mine")
    assert (store.committed_version, store.tentative_version, store.digest) == (-1, 1, b"d")
    assert store.keep_local(1, 1, "theirs")
    assert not store.keep_local(2, 1, "theirs"), "nobody has offered version 2"
    assert store.loadable(1, 0) is None
    assert store.commit_tentative() == (1, [])
    assert (store.committed_version, store.tentative_version, store.digest) == (1, -1, b"")
    assert store.loadable(1, 0) == Checkpoint(1, "w1", b"d")
    assert store.loadable(1, 2) is None, "the local state of rank 2 is not here"
