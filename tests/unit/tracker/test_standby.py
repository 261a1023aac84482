"""Two trackers of one job: what is recorded before it is told, and when the second one leads."""

from dataclasses import replace
from typing import Any

import pytest

from ftcomm.config.job_settings import JobSettings
from ftcomm.durable.records import EndedRecord, EpochMember, EpochRecord
from ftcomm.protocol.durable.store_messages import NextDigest
from ftcomm.protocol.messages import AllClosed, AskRoster, Closed, KnownRoster, RosterEntry
from ftcomm.protocol.position import START
from ftcomm_tracker.core.durable.chain_facts import (
    ChainFacts,
    RecordedAttempt,
    RecordedVersion,
)
from ftcomm_tracker.core.durable.store_facts import ExpectedDigest, StoreFacts
from ftcomm_tracker.core.durable_state import Durable, RankOwner
from ftcomm_tracker.core.events import (
    Claimed,
    ConnectionLost,
    Disconnect,
    Effect,
    EndedPut,
    EpochPut,
    FinishedPut,
    JobEnded,
    Joined,
    Note,
    Overtaken,
    PutClaim,
    PutEnded,
    PutEpoch,
    PutFinished,
    Said,
    Stalled,
    StartAttempt,
    StepDown,
    StopAsked,
    StoreSeen,
    TakeGeneration,
    Tick,
)
from ftcomm_tracker.core.rebuild.decision import Rebuild
from ftcomm_tracker.core.reporting.explain import explain
from ftcomm_tracker.core.roster import JobState, Roster
from ftcomm_tracker.core.standby.group_permits import CUT_OFF_S
from ftcomm_tracker.core.standby.watch import CALLING_S, RECORD_COUNTS_S, Standby, journalled_roster
from tests.unit.tracker.roster_scenario import (
    SETTINGS,
    ScenarioRun,
    decisions,
    hello,
    names,
    report,
    sends,
)

STORED = replace(SETTINGS, checkpoint="/shared/run7")
WIRE = STORED.to_wire()
EVERYONE = ("w0", "w1")


def kinds(effects: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def only(effects: list[Effect], kind: type) -> Any:
    (found,) = [effect for effect in effects if isinstance(effect, kind)]
    return found


def leader(settings: JobSettings = STORED, **facts: Any) -> ScenarioRun:
    """The first tracker, with all workers, that has asked for the record of epoch 1."""
    durable = replace(Durable.fresh("job.1", 2, settings.to_wire()), attempt=1)
    store = StoreFacts(attempt=1, prelude=(), is_begun=True, has_standby=True, **facts)
    scenario = ScenarioRun(2, durable, settings=settings, store=store)
    for rank, name in enumerate(EVERYONE):
        scenario.joined(rank + 1, hello(name))
    return scenario


def recorded(scenario: ScenarioRun) -> list[Effect]:
    """Take the record that was asked for; return what follows."""
    put = scenario.tell_said(1, report(scenario.roster.durable.epoch))
    put += scenario.tell_said(2, report(scenario.roster.durable.epoch))
    return scenario.tell(EpochPut(only(put, PutEpoch).record))


def test_a_plan_waits_for_the_record_of_its_epoch() -> None:
    scenario = leader()
    assert scenario.said(1, report(1)) == []
    put = scenario.tell_said(2, report(1))
    roster = (EpochMember("w0", 1, b"w0-a", True), EpochMember("w1", 1, b"w1-a", True))
    assert put == [PutEpoch(EpochRecord(1, 1, 1, roster))]
    assert scenario.roster.state is JobState.COLLECTING
    followed = scenario.tell(EpochPut(only(put, PutEpoch).record))
    assert names(sends(followed))[:2] == [(1, "Plan"), (2, "Plan")]


def test_another_roster_needs_another_record() -> None:
    scenario = leader()
    first = scenario.tell_said(1, report(1)) + scenario.tell_said(2, report(1))
    scenario.tell(ConnectionLost(2, "gone"))
    scenario.joined(3, hello("w1", "b"))
    assert "PutEpoch" not in kinds(scenario.tell_said(3, report(1)))  # one is on its way
    again = scenario.tell(EpochPut(only(first, PutEpoch).record))
    assert only(again, PutEpoch).record.roster[1] == EpochMember("w1", 2, b"w1-b", True)
    assert "Plan" in [name for _, name in names(sends(scenario.tell(EpochPut(again[-1].record))))]


def test_an_end_is_told_once_it_is_recorded_and_the_first_sticks() -> None:
    scenario = leader()
    recorded(scenario)
    asked = scenario.tell(StopAsked("enough"))
    put = only(asked, PutEnded).record
    assert (put.attempt, put.generation, put.error) == (1, 1, "JobStoppedError")
    assert not decisions(asked)
    assert scenario.tell(StopAsked("more")) == []
    assert scenario.roster.next_deadline() == SETTINGS.replace_within
    told = decisions(scenario.tell(EndedPut()))
    assert {conn: each.cause for conn, each in told.items()} == {1: put.cause, 2: put.cause}


def test_a_stop_beside_the_record_of_a_lost_attempt_is_handed_on() -> None:
    scenario = leader()
    recorded(scenario)
    for rank, name in enumerate(EVERYONE):
        scenario.tell(ConnectionLost(rank + 1, "killed"))
        scenario.joined(rank + 3, hello(name, "b"))
    said = report(scenario.roster.durable.epoch, caught_up=0)
    put = scenario.tell_said(3, said) + scenario.tell_said(4, said)
    ended = scenario.tell(EpochPut(only(put, PutEpoch).record))
    assert only(ended, PutEnded).record.error == "RolledBackError"
    assert scenario.tell(StopAsked("enough")) == []
    assert scenario.roster.handed_on == StopAsked("enough")


def test_after_a_stop_of_the_tracker_a_record_is_awaited_on() -> None:
    scenario = leader()
    scenario.tell_said(1, report(1))
    scenario.tell_said(2, report(1))
    assert scenario.stall(100.0) == []
    until = 100.0 + SETTINGS.detect_within + SETTINGS.replace_within
    assert "StepDown" not in kinds(scenario.tick(until - 0.1))
    late = scenario.tick(until)
    assert "the store took no record for 60 s" in only(late, StepDown).reason


def test_no_plan_follows_an_end_that_waits_for_its_record() -> None:
    scenario = leader()
    put = scenario.tell_said(1, report(1)) + scenario.tell_said(2, report(1))
    scenario.tell(StopAsked("enough"))
    assert sends(scenario.tell(EpochPut(only(put, PutEpoch).record))) == []
    scenario.tell(ConnectionLost(2, "gone"))
    assert scenario.roster.durable.fatal_decision is None


def test_a_tracker_whose_store_is_away_ends_and_tells_nothing() -> None:
    scenario = leader()
    scenario.tell_said(1, report(1))
    scenario.tell_said(2, report(1))
    for now in range(1, int(SETTINGS.replace_within)):
        scenario.now = float(now)
        for conn in (1, 2):
            scenario.tell_said(conn, report(1))
    ended = scenario.tick(SETTINGS.replace_within)
    assert "took no record for 60 s" in only(ended, StepDown).reason
    assert sends(ended) == []


def test_all_closed_is_never_told_without_its_record() -> None:
    scenario = leader()
    recorded(scenario)
    closed = scenario.tell_said(1, Closed(0)) + scenario.tell_said(2, Closed(0))
    assert "PutFinished" in kinds(closed)
    late = scenario.tick(SETTINGS.replace_within)
    assert kinds(late) == ["StepDown"]
    scenario = leader()
    recorded(scenario)
    closed = scenario.tell_said(1, Closed(0)) + scenario.tell_said(2, Closed(0))
    assert only(closed, PutFinished).version == 0
    told = sends(scenario.tell(FinishedPut()))
    assert [type(message) for _, message in told] == [AllClosed, AllClosed]


def test_one_that_is_overtaken_by_a_tracker_fences_nobody() -> None:
    scenario = leader()
    recorded(scenario)
    ended = scenario.tell(Overtaken("a tracker of generation 2 leads", by_tracker=True))
    assert ended == [StepDown("a tracker of generation 2 leads")]


def test_a_worker_of_a_later_attempt_ends_the_tracker_of_an_earlier_one() -> None:
    scenario = leader()
    recorded(scenario)
    came = scenario.tell(Joined(7, hello("w9", plan_epoch=3, job_id="job.2", incarnation=1)))
    assert "another tracker leads" in only(came, StepDown).reason
    scenario = leader()
    recorded(scenario)
    came = scenario.tell(Joined(7, hello("w9", plan_epoch=3, job_id="job.0", incarnation=1)))
    assert names(sends(came)) == [(7, "Fenced")]


def test_a_tracker_without_any_worker_is_cut_off_after_a_while() -> None:
    scenario = leader()
    recorded(scenario)
    scenario.tell(ConnectionLost(1, "gone"))
    scenario.tell(ConnectionLost(2, "gone"))
    assert not scenario.roster.is_cut_off(CUT_OFF_S - 1)
    assert scenario.roster.is_cut_off(CUT_OFF_S)
    scenario.joined(3, hello("w0", "b"))
    assert not scenario.roster.is_cut_off(CUT_OFF_S)


# --- a tracker that waits -----------------------------------------------------------------------

ROSTER = tuple(EpochMember(name, 1, f"{name}-a".encode(), True) for name in EVERYONE)
EPOCH = EpochRecord(1, 1, 4, ROSTER)
CHAIN = ChainFacts(
    length=3,
    series="job",
    world_size=2,
    grouping=(0, 0),
    tables=b"t",
    attempts=(RecordedAttempt(1, 0, b"n"),),
    epochs=(replace(EPOCH, epoch=1), EPOCH),
)


class Waiting:
    """A tracker that waits beside one that leads."""

    def __init__(self) -> None:
        rebuild = Rebuild(b"two", 2, standby=Standby(0.0, floor=1))
        fresh = Durable.fresh("waiting", 2, WIRE)
        self.roster = Roster(STORED, fresh, generation=1, now=0.0, tracker=b"two", rebuild=rebuild)
        self.now = 0.0

    def tell(self, event: Any) -> list[Effect]:
        return self.roster.handle(event, now=self.now)

    def sees(self, chain: ChainFacts = CHAIN, *, silent: bool = False) -> list[Effect]:
        return self.tell(StoreSeen(chain, "process 7 on a", silent))

    def answer(self, conn: int, name: str, epoch: int = 4) -> list[Effect]:
        entries = tuple(
            RosterEntry(m.worker_id, m.incarnation, m.nonce, "host", True) for m in ROSTER
        )
        known = KnownRoster(2, "job.1", 2, WIRE, epoch, (0, 0), 3, START, 1, ("a:1",), 0, entries)
        assert name
        return self.tell(Said(conn, known))


def member(name: str, **changes: Any) -> Any:
    fields = {"plan_epoch": 4, "revoke_epoch": 4, "job_id": "job.1", "incarnation": 1}
    return hello(name, **{**fields, **changes})


def test_while_the_other_beats_workers_are_sent_back_to_it() -> None:
    waiting = Waiting()
    waiting.sees()
    assert waiting.tell(Joined(1, member("w0"))) == [Disconnect(1, "another tracker leads the job")]
    assert "PutClaim" not in kinds(waiting.sees())


def test_before_it_has_read_the_store_it_holds_nobody_back() -> None:
    waiting = Waiting()
    assert waiting.tell(Joined(1, member("w0"))) == [Disconnect(1, "another tracker leads the job")]


def test_a_rank_that_has_closed_is_there_in_the_record_of_a_restarted_tracker() -> None:
    """It waits for the others, and says so again; who was absent before is not awaited."""
    places = (RankOwner("w0", 1, b"a", "h"), RankOwner("w1", 2, b"c", "h"))
    newest = EpochRecord(1, 1, 4, (EpochMember("w0", 1, b"a", True),))
    left = EpochRecord(1, 1, 4, (EpochMember("w0", 1, b"a", False),))
    rosters = [journalled_roster(places, record) for record in (newest, left)]
    assert [[each.present for each in roster] for roster in rosters] == [
        [True, True],
        [False, True],
    ]


def test_it_claims_once_the_other_is_silent_and_a_worker_comes() -> None:
    waiting = Waiting()
    waiting.sees()
    assert "PutClaim" not in kinds(waiting.sees(silent=True))
    claim = only(waiting.tell(Joined(1, member("w0"))), PutClaim)
    assert claim == PutClaim(EpochRecord(1, 2, 1004, ROSTER), 3)


def test_who_has_just_put_a_record_is_not_silent() -> None:
    """Two that wait would else take the lead from each other again and again."""
    waiting = Waiting()
    waiting.sees()
    waiting.sees(silent=True)
    claimed = replace(CHAIN, length=4, epochs=(*CHAIN.epochs, replace(EPOCH, generation=2)))
    waiting.sees(claimed, silent=True)
    assert "Disconnect" in kinds(waiting.tell(Joined(1, member("w0"))))
    waiting.now = RECORD_COUNTS_S
    waiting.sees(claimed, silent=True)
    assert "PutClaim" in kinds(waiting.tell(Joined(1, member("w0"))))


def test_it_claims_when_all_members_call_again_and_again() -> None:
    waiting = Waiting()
    waiting.sees()
    for now in (0.0, CALLING_S):
        waiting.now = now
        waiting.tell(Joined(1, member("w0")))
        assert "PutClaim" not in kinds(waiting.sees())
    waiting.tell(Joined(2, member("w1")))
    assert "PutClaim" not in kinds(waiting.sees())
    waiting.now = 2 * CALLING_S
    assert "PutClaim" in kinds(waiting.tell(Joined(2, member("w1"))))


def test_it_asks_nobody_before_its_claim_is_there() -> None:
    waiting = Waiting()
    waiting.sees(silent=True)
    claim = only(waiting.tell(Joined(1, member("w0"))), PutClaim)
    assert sends(waiting.tell(Joined(2, member("w1")))) == []
    asked = sends(waiting.tell(Claimed(claim.record)))
    assert asked == [(1, AskRoster(2, b"two")), (2, AskRoster(2, b"two"))]


def led(**changes: Any) -> tuple[Waiting, list[Effect]]:
    """A tracker that has taken over, and what it does then."""
    waiting = Waiting()
    waiting.sees(replace(CHAIN, **changes), silent=True)
    claim = only(waiting.tell(Joined(1, member("w0"))), PutClaim)
    waiting.tell(Claimed(claim.record))
    return waiting, waiting.answer(1, "w0")


def test_it_goes_on_from_the_newest_record() -> None:
    newer = EpochRecord(1, 1, 5, (ROSTER[0], EpochMember("w1", 2, b"w1-b", True)))
    waiting, effects = led(epochs=(EPOCH, newer))
    assert only(effects, TakeGeneration) == TakeGeneration(2, ("a:1",))
    durable = waiting.roster.durable
    assert [place.nonce for place in durable.places] == [b"w0-a", b"w1-b"]
    assert (durable.job_id, durable.attempt, durable.epoch) == ("job.1", 1, 1005)
    assert durable.first_nonces == (b"w0-a", b"w1-a")
    assert durable.version == 1
    assert waiting.roster.state is JobState.REATTACHING
    assert names(sends(effects)) == [(1, "Welcome")]


def test_a_worker_that_once_had_a_rank_keeps_its_number() -> None:
    """It comes again as a new process, when a spare has its rank."""
    spare = EpochRecord(1, 1, 5, (ROSTER[0], EpochMember("s0", 1, b"s0-a", True)))
    waiting, _ = led(epochs=(EPOCH, spare))
    assert waiting.roster.durable.incarnations == (("s0", 1), ("w0", 1), ("w1", 1))


def with_late_spare(**changes: Any) -> tuple[Waiting, list[Effect]]:
    """A tracker that has taken over, and what it says to a spare that comes then."""
    waiting, _ = led()
    return waiting, waiting.tell(Joined(7, hello("s0", job_id="job.1", **changes)))


def spares_of(waiting: Waiting) -> list[tuple[str, bytes]]:
    peers = waiting.roster.members.peers.values()
    return [(p.hello.worker_id, p.hello.nonce) for p in peers if p.rank is None]


def test_a_spare_that_comes_late_keeps_its_number_and_its_next_process_gets_another() -> None:
    """No record names it: with the same number, neither process would be fenced."""
    waiting, effects = with_late_spare(incarnation=2, revoke_epoch=4)
    assert names(sends(effects)) == [(7, "Welcome")]
    assert waiting.roster.durable.incarnation_of("s0") == 2
    later = waiting.tell(Joined(8, hello("s0", "b")))
    assert names(sends(later)) == [(7, "Fenced"), (8, "Welcome")]
    assert waiting.roster.durable.incarnation_of("s0") == 3
    assert spares_of(waiting) == [("s0", b"s0-b")]


def test_of_two_spares_with_one_id_and_number_one_stays() -> None:
    """The new process came first, and its number was not known to be taken."""
    waiting, _ = with_late_spare()
    assert waiting.roster.durable.incarnation_of("s0") == 1
    older = waiting.tell(Joined(8, hello("s0", "b", incarnation=1, job_id="job.1")))
    assert names(sends(older)) == [(7, "Fenced"), (8, "Welcome")]
    assert spares_of(waiting) == [("s0", b"s0-b")]


def test_all_members_come_and_nothing_is_lost() -> None:
    waiting, _ = led()
    waiting.tell(Joined(2, member("w1")))
    assert waiting.roster.state is JobState.RUNNING
    assert waiting.roster.epochs.in_force == 4


def test_who_does_not_come_is_given_up_after_reattach_within() -> None:
    waiting, _ = led()
    for now in (10.0, 20.0):
        waiting.now = now
        waiting.tell(Said(1, report(1)))
    waiting.now = SETTINGS.reattach_within
    effects = waiting.tell(Said(1, report(1)))
    assert (1, "Revoke") in names(sends(effects))


def test_after_a_stop_of_the_tracker_the_first_answer_is_awaited_on() -> None:
    waiting = Waiting()
    waiting.sees(silent=True)
    claim = only(waiting.tell(Joined(1, member("w0"))), PutClaim)
    waiting.tell(Claimed(claim.record))
    waiting.now = SETTINGS.reattach_within
    stalled = waiting.tell(Stalled(SETTINGS.reattach_within))
    assert stalled + waiting.sees(silent=True) == []
    assert (1, "Welcome") in names(sends(waiting.answer(1, "w0")))


def test_a_claim_that_comes_too_late_is_made_anew_from_what_is_read_then() -> None:
    waiting = Waiting()
    waiting.sees(silent=True)
    waiting.tell(Joined(1, member("w0")))
    assert waiting.tell(Claimed(None)) == []
    later = replace(CHAIN, length=4, epochs=(*CHAIN.epochs, replace(EPOCH, generation=5)))
    assert kinds(waiting.sees(later, silent=True)) == ["Disconnect"]  # who has put it lives
    waiting.now = RECORD_COUNTS_S
    waiting.sees(later, silent=True)
    again = only(waiting.tell(Joined(1, member("w0"))), PutClaim)
    assert (again.after, again.record.generation) == (4, 6)


def test_a_claim_is_above_the_generation_that_a_worker_has_answered() -> None:
    waiting = Waiting()
    waiting.sees(silent=True)
    claim = only(waiting.tell(Joined(1, member("w0", generation=6))), PutClaim)
    assert claim.record.generation == 7


def test_whoever_has_claimed_and_is_overtaken_waits_again() -> None:
    waiting = Waiting()
    waiting.sees(silent=True)
    claim = only(waiting.tell(Joined(1, member("w0"))), PutClaim)
    waiting.tell(Claimed(claim.record))
    later = replace(CHAIN, length=5, epochs=(*CHAIN.epochs, replace(EPOCH, generation=3)))
    assert waiting.sees(later) == [Disconnect(1, "another tracker leads the job")]
    assert waiting.roster.snapshot(0.0)["state"] == "STANDBY"


def test_without_a_plan_in_force_it_begins_the_next_attempt() -> None:
    for chain in (
        ChainFacts(),
        replace(CHAIN, epochs=()),
        replace(CHAIN, ended=EndedRecord(1, 1, "RolledBackError", "lost", 4, START, -1)),
    ):
        waiting = Waiting()
        assert "StartAttempt" not in kinds(waiting.sees(chain))
        assert only(waiting.sees(chain, silent=True), StartAttempt) == StartAttempt()


STOPPED = EndedRecord(1, 1, "JobStoppedError", "enough", 4, START, -1)


def test_a_job_that_has_ended_is_ended_here_with_the_same_words() -> None:
    waiting = Waiting()
    waiting.sees(replace(CHAIN, ended=STOPPED))
    told = decisions(waiting.tell(Joined(1, member("w0"))))
    assert (told[1].error, told[1].cause) == ("JobStoppedError", "enough")


def test_a_job_that_has_finished_is_told_as_finished() -> None:
    waiting = Waiting()
    waiting.sees(replace(CHAIN, finished=3))
    came = sends(waiting.tell(Joined(1, member("w0", closed=True))))
    assert came[-1] == (1, AllClosed(3))


@pytest.mark.parametrize("changes", [{"finished": 3}, {"ended": STOPPED}])
def test_of_an_ended_job_it_knows_the_attempt_as_its_own(changes: dict[str, Any]) -> None:
    """Else it takes that record for another tracker's, and ends before it has told anyone."""
    waiting = Waiting()
    waiting.sees(replace(CHAIN, **changes))
    durable = waiting.roster.durable
    assert (durable.attempt, durable.attempt_nonce, durable.in_store) == (1, b"n", True)


def test_a_good_end_is_told_to_late_workers_for_a_while_and_is_one_here() -> None:
    waiting = Waiting()
    waiting.sees(replace(CHAIN, finished=3))
    waiting.now = SETTINGS.reattach_within - 1
    came = waiting.tell(Joined(1, member("w0", closed=True)))
    waiting.now = SETTINGS.reattach_within
    ended = waiting.tell(Tick())
    assert (sends(came)[-1], only(ended, JobEnded)) == ((1, AllClosed(3)), JobEnded(True))


def leads_attempt_2() -> Waiting:
    """It has taken up an attempt that began from checkpoint 9."""
    waiting = Waiting()
    chain = replace(
        CHAIN,
        attempts=(RecordedAttempt(1, 0, b"n"), RecordedAttempt(2, 2, b"m")),
        versions=(RecordedVersion(2, 1, 9),),
        epochs=(replace(EPOCH, attempt=2),),
        expected=ExpectedDigest(10, b"d", 1, is_binding=False),
    )
    waiting.sees(chain, silent=True)
    came = waiting.tell(Joined(1, member("w0", job_id="job.2")))
    waiting.tell(Claimed(only(came, PutClaim).record))
    waiting.answer(1, "w0")
    return waiting


def test_the_digest_of_the_attempt_before_is_compared_by_who_takes_the_job_up() -> None:
    effects = leads_attempt_2().tell(Said(1, NextDigest(10, b"other")))
    warned = only(effects, Note)
    assert (warned.level, warned.text.split(" has other")[0]) == ("warning", "checkpoint 10")


def test_the_version_of_the_parent_is_known() -> None:
    durable = leads_attempt_2().roster.durable
    assert (durable.version, durable.restore, durable.attempt_nonce) == (9, 2, b"m")
    assert durable.in_store


def test_to_stop_it_leaves_the_job_alone() -> None:
    waiting = Waiting()
    waiting.tell(Joined(1, member("w0")))
    ended = waiting.tell(StopAsked("not needed"))
    assert only(ended, JobEnded) == JobEnded(True)
    assert sends(ended) == []


def test_it_says_for_whom_it_waits_and_since_when() -> None:
    waiting = Waiting()
    waiting.now = 3.0
    waiting.sees()
    document = {**waiting.roster.snapshot(65.0), "uptime_s": 65.0, "address": "b:1"}
    assert document["waiting_for"] == [
        "its turn to lead: standby for 65 s: process 7 on a leads the job of /shared/run7"
    ]
    (found,) = explain(document)
    assert (found.kind, found.waiting) == ("standby", False)
    assert "it is ready for job job.1" in found.evidence
    waiting.sees(silent=True)
    (found,) = explain({**waiting.roster.snapshot(70.0), "uptime_s": 70.0})
    assert "does not beat in the store any more" in found.what


def test_a_record_that_is_awaited_is_explained() -> None:
    scenario = leader()
    scenario.tell_said(1, report(1))
    scenario.tell_said(2, report(1))
    found = {each.kind: each for each in explain(scenario.roster.snapshot(4.0))}
    assert "for 4.0 s for its record in /shared/run7" in found["record"].what
