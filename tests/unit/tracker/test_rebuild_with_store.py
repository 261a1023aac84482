"""Scenarios of a tracker without a journal, of a job with a store: what its chain decides."""

from dataclasses import replace
from typing import Any

import pytest

from ftcomm.durable.records import EpochRecord
from ftcomm.errors import ConfigError
from ftcomm.protocol.durable.store_messages import NextDigest
from ftcomm.protocol.messages import AllClosed, AskRoster, KnownRoster, RosterEntry, Welcome
from ftcomm.protocol.position import START, Position
from ftcomm_tracker.core.durable.chain_facts import ChainFacts, RecordedAttempt, RecordedVersion
from ftcomm_tracker.core.durable.store_facts import ExpectedDigest
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    ChainRead,
    ConnectionLost,
    Disconnect,
    Effect,
    Joined,
    Note,
    PutNextDigest,
    PutSeries,
    ReadStore,
    RefuseRebuild,
    Said,
    StartAttempt,
    TakeGeneration,
)
from ftcomm_tracker.core.rebuild.decision import KnownStore, Rebuild
from ftcomm_tracker.core.rebuild.stored_job import attempt_to_hear
from ftcomm_tracker.core.roster import JobState, Roster
from tests.unit.tracker.roster_scenario import SETTINGS, ScenarioRun, hello, sends

STORE = "/shared/run7"
STORED = replace(SETTINGS, checkpoint=STORE)
ENTRIES = tuple(RosterEntry(f"w{rank}", 1, f"w{rank}-a".encode(), "h", True) for rank in range(2))
CHAIN = ChainFacts(
    length=6,
    series="run7",
    world_size=2,
    grouping=(0, 0),
    attempts=(RecordedAttempt(1, 0, b"1"), RecordedAttempt(2, 3, b"2")),
    versions=(RecordedVersion(3, 1, 4), RecordedVersion(6, 2, 7, written_at=9_000_000)),
    first_nonce=b"1",
)


def member(rank: int, **changes: Any) -> Any:
    fields = {"incarnation": 1, "plan_epoch": 7, "revoke_epoch": 7, "job_id": "run7.2"}
    return hello(f"w{rank}", **{**fields, "generation": 4, "tracker": b"old", **changes})


def known(**changes: Any) -> KnownRoster:
    fields: dict[str, Any] = {
        "generation": 5,
        "job_id": "run7.2",
        "world_size": 2,
        "settings": STORED.to_wire(),
        "epoch": 7,
        "grouping": (0, 0),
        "prelude_length": -1,
        "frontier": START,
        "version": 6,
        "lost": (),
        "first": 0,
        "entries": ENTRIES,
    }
    return KnownRoster(**{**fields, **changes})


def without_journal(rebuild: Rebuild, settings: Any = SETTINGS, **group: Any) -> ScenarioRun:
    scenario = ScenarioRun(2, Durable.fresh("new", 2, settings.to_wire()))
    scenario.roster = Roster(
        settings,
        scenario.journalled,
        generation=1,
        now=0.0,
        tracker=b"me",
        rebuild=rebuild,
        **group,
    )
    return scenario


def rebuilding() -> ScenarioRun:
    """A tracker that was started with --rebuild."""
    return without_journal(Rebuild(b"me", is_asked=True))


def hearing() -> ScenarioRun:
    """A tracker that was started with --checkpoint on an empty directory."""
    store = KnownStore("run7.2", until=30.0)
    return without_journal(Rebuild(b"me", 2, store=store), STORED)


def come(scenario: ScenarioRun, *ranks: int, **changes: Any) -> list[Effect]:
    """These members come and say what they know."""
    effects = []
    for rank in ranks:
        effects += scenario.tell(Joined(rank + 1, member(rank)))
        effects += scenario.tell(Said(rank + 1, known(**changes)))
    return effects


def read(scenario: ScenarioRun, chain: ChainFacts = CHAIN) -> list[Effect]:
    return scenario.tell(ChainRead(chain, 10_000_000, b"drawn"))


def of(effects: list[Effect], *kinds: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kinds)]


@pytest.mark.parametrize("begin", [rebuilding, hearing])
def test_a_job_is_taken_up_with_its_store(begin: Any) -> None:
    scenario = begin()
    asked = come(scenario, 0, 1)
    assert of(asked, ReadStore) == [ReadStore("run7.2", STORED)]
    assert {type(message) for _, message in sends(asked)} == {AskRoster}
    welcomed = [conn for conn, message in sends(read(scenario)) if isinstance(message, Welcome)]
    assert welcomed == [1, 2]
    roster, durable = scenario.roster, scenario.journalled
    assert (roster.state, roster.epochs.in_force) == (JobState.RUNNING, 7)
    assert (durable.job_id, durable.attempt, durable.attempt_nonce) == ("run7.2", 2, b"2")
    assert (durable.restore, durable.version, durable.epoch) == (3, 7, 1007)
    assert durable.in_store
    assert roster.snapshot(0.0)["store"]["newest"] == 7


def test_the_attempt_before_has_committed_what_its_members_have_to_commit() -> None:
    """That one's digest lies in the store; the journal that is lost had nothing of it."""
    scenario = rebuilding()
    come(scenario, 0, 1)
    expected = ExpectedDigest(5, b"d", 1, is_binding=False)
    read(scenario, replace(CHAIN, versions=CHAIN.versions[:1], expected=expected))
    effects = scenario.tell(Said(1, NextDigest(5, b"other")))
    assert of(effects, PutNextDigest) == [PutNextDigest(2, 5, b"other")]
    (warned,) = of(effects, Note)
    assert (warned.level, warned.text.split(" has other")[0]) == ("warning", "checkpoint 5")


@pytest.mark.parametrize(("seqno", "is_known"), [(0, True), (1, False)])
def test_where_nothing_was_completed_since_the_store_was_read_nothing_is_lost(
    seqno: int, *, is_known: bool
) -> None:
    """The attempt began from version 4; a member that read it may have taken no plan."""
    scenario = rebuilding()
    come(scenario, 0, 1, frontier=Position(0, 4, seqno))
    read(scenario)
    nonces = tuple(entry.nonce if is_known else b"" for entry in ENTRIES)
    assert scenario.journalled.first_nonces == nonces


def test_nothing_is_taken_up_before_the_store_is_read() -> None:
    scenario = rebuilding()
    come(scenario, 0, 1)
    scenario.tell(ConnectionLost(2, "gone"))
    assert not sends(read(scenario))  # it was asked for what is old by now
    again = come(scenario, 1)
    assert of(again, ReadStore)
    assert scenario.journalled == Durable.fresh("new", 2, SETTINGS.to_wire())


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (replace(CHAIN, series="other"), "the store /shared/run7 has job other"),
        (
            replace(CHAIN, attempts=(*CHAIN.attempts, RecordedAttempt(3, 6, b"3"))),
            "attempt 3 of the workers' job run7.2 has begun from /shared/run7",
        ),
        (replace(CHAIN, attempts=CHAIN.attempts[:1]), "has no record of the workers' job run7.2"),
        (ChainFacts(), "has no record of the workers' job run7.2"),
        (replace(CHAIN, epochs=(EpochRecord(2, 4, 7, ()),)), "was started with --standby"),
    ],
    ids=["series", "later", "earlier", "empty", "standby"],
)
def test_a_chain_that_does_not_fit_is_refused_in_words(chain: ChainFacts, said: str) -> None:
    scenario = rebuilding()
    come(scenario, 0, 1)
    [refused] = read(scenario, chain)
    assert isinstance(refused, RefuseRebuild)
    assert isinstance(refused.error, ConfigError)
    assert said in refused.error.cause
    assert (scenario.roster.state, scenario.roster.next_deadline()) == (JobState.OVER, None)


def test_a_finished_job_is_told_to_its_members() -> None:
    scenario = rebuilding()
    scenario.tell(Joined(1, member(0, closed=True)))
    scenario.tell(Joined(2, member(1, closed=True)))
    scenario.tell(Said(1, known()))
    scenario.tell(Said(2, known()))
    told = sends(read(scenario, replace(CHAIN, finished=8)))
    assert [message for _, message in told if isinstance(message, AllClosed)] == [AllClosed(8)] * 2
    assert scenario.journalled.final_version == 8


def test_an_attempt_without_a_record_gets_one() -> None:
    scenario = rebuilding()
    come(scenario, 0, 1, job_id="run7.1")
    effects = read(scenario, ChainFacts())
    assert scenario.journalled.attempt_nonce == b"drawn"
    [put] = of(effects, PutSeries)
    assert put.nonce == b"drawn"
    assert effects.index(of(effects, TakeGeneration)[0]) < effects.index(put)


def test_a_first_record_that_is_there_names_the_nonce_of_the_other() -> None:
    scenario = rebuilding()
    come(scenario, 0, 1, job_id="run7.1")
    read(scenario, ChainFacts(length=1, series="run7", world_size=2, first_nonce=b"1"))
    assert (scenario.journalled.attempt, scenario.journalled.attempt_nonce) == (1, b"1")


def test_a_worker_of_an_earlier_attempt_does_not_count() -> None:
    """Epochs of another state directory begin anew: its plan may have the higher one."""
    scenario = without_journal(Rebuild(b"me", is_asked=True))
    old = member(0, nonce=b"w0-z", plan_epoch=900, revoke_epoch=900, job_id="run7.1")
    scenario.tell(Joined(9, old))
    entries = (replace(ENTRIES[0], nonce=b"w0-z"), ENTRIES[1])
    scenario.tell(Said(9, known(job_id="run7.1", epoch=900, version=50, entries=entries)))
    assert of(come(scenario, 0, 1), ReadStore)
    told = [(conn, type(message).__name__) for conn, message in sends(read(scenario))]
    assert (9, "Fenced") in told
    assert scenario.journalled.version == 7


def test_no_attempt_begins_while_members_may_come() -> None:
    scenario = hearing()
    assert (scenario.roster.state, scenario.roster.next_deadline()) == (JobState.REBUILDING, 30.0)
    assert not of(scenario.tick(29.9), StartAttempt)
    assert of(scenario.tick(30.0), StartAttempt) == [StartAttempt()]
    assert scenario.roster.next_deadline() is None


def test_the_next_attempt_begins_at_once_if_all_workers_are_new() -> None:
    scenario = hearing()
    assert not of(scenario.tell(Joined(1, hello("w0"))), StartAttempt)
    assert not of(scenario.tell(Joined(2, hello("s0", spare=True))), StartAttempt)
    assert of(scenario.tell(Joined(3, hello("w1"))), StartAttempt) == [StartAttempt()]
    assert not scenario.tell(Joined(4, hello("w2")))[1:]


def test_a_member_waits_for_the_others_as_long_as_for_a_replacement() -> None:
    scenario = hearing()
    come(scenario, 0)
    assert not of(scenario.tick(59.9), StartAttempt)
    begun = scenario.tick(60.0)
    assert of(begun, TakeGeneration, StartAttempt) == [TakeGeneration(5, ()), StartAttempt()]


def test_a_member_that_is_away_again_is_heard_for_longer() -> None:
    scenario = hearing()
    come(scenario, 0)
    scenario.tick(50.0)
    scenario.tell(ConnectionLost(1, "gone"))
    assert not of(scenario.tick(79.9), StartAttempt)
    assert of(scenario.tick(80.0), StartAttempt)


@pytest.mark.parametrize(("members", "heard_s"), [((), 30.0), ((0,), 60.0)])
def test_a_stop_of_the_tracker_is_no_time_in_which_members_are_heard(
    members: tuple[int, ...], heard_s: float
) -> None:
    scenario = hearing()
    come(scenario, *members)
    scenario.tick(10.0)
    assert not of(scenario.stall(90.0), StartAttempt)
    until = heard_s + 90.0 + SETTINGS.detect_within
    assert not of(scenario.tick(until - 0.1), StartAttempt)
    assert of(scenario.tick(until), StartAttempt)


def test_a_worker_of_another_attempt_is_no_member() -> None:
    scenario = hearing()
    away = scenario.tell(Joined(1, member(0, job_id="run7.1")))
    assert of(away, Disconnect) == [Disconnect(1, "it is a member of run7.1")]
    assert of(scenario.tick(30.0), StartAttempt)


@pytest.mark.parametrize(
    ("before", "chain", "job_id"),
    [
        (0, CHAIN, "run7.2"),
        (0, ChainFacts(length=1, series="run7"), "run7.1"),
        (1, CHAIN, ""),
        (0, ChainFacts(), ""),
        (0, replace(CHAIN, finished=8), ""),
    ],
    ids=["attempt", "first", "journalled", "empty", "finished"],
)
def test_whose_members_are_heard_first(before: int, chain: ChainFacts, job_id: str) -> None:
    durable = replace(Durable.fresh("new", 2), attempt=before)
    assert attempt_to_hear(durable, chain) == job_id


def test_status_says_what_is_awaited() -> None:
    scenario = hearing()
    alone = scenario.roster.snapshot(0.0)["rebuild"]["needs"]
    assert alone.startswith("members of run7.2 may live; if none comes")
    come(scenario, 0)
    assert scenario.roster.snapshot(0.0)["rebuild"]["needs"] == (
        "worker w1 of job run7.2 has not come; in the end the next attempt begins from the store"
    )


def test_by_rebuild_the_operator_is_told_how_the_next_attempt_begins() -> None:
    scenario = rebuilding()
    come(scenario, 0)
    [refused] = of(scenario.tick(60.0), RefuseRebuild)
    assert refused.error.remedy == (
        "start the tracker with -n 2 --checkpoint /shared/run7, without --rebuild, and all workers"
        " anew: the next attempt begins from the newest checkpoint"
    )
