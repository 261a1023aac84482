"""Stories of the tracker's machine: what happens on connections, what is decided."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ftcomm.protocol.messages import (
    AllClosed,
    Blocked,
    Closed,
    FatalDecision,
    FatalReport,
    Fenced,
    Fetched,
    Heartbeat,
    Leave,
    Mismatch,
    Plan,
    Refused,
    Revoke,
    Settled,
    Suspect,
    Welcome,
)
from ftcomm.protocol.position import START, Position
from ftcomm.protocol.signature import Kind, Signature
from ftcomm_tracker.core.durable.store_facts import StoreFacts
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.ending import FAREWELL_S
from ftcomm_tracker.core.events import ConnectionLost as ConnLost
from ftcomm_tracker.core.events import (
    Died,
    Disconnect,
    Effect,
    Event,
    FinishedPut,
    GivenUp,
    JobEnded,
    Joined,
    Note,
    Overtaken,
    Persist,
    PutDelayed,
    PutFinished,
    Said,
    Send,
    StopAsked,
    Supervised,
)
from ftcomm_tracker.core.group_state import RECORD_S
from ftcomm_tracker.core.mismatch_inquiry import ANSWER_WITHIN_S
from ftcomm_tracker.core.roster import JobState
from tests.unit.tracker.roster_scenario import (
    SETTINGS,
    ScenarioRun,
    at,
    decisions,
    hello,
    names,
    report,
    running,
    running_with_store,
    sends,
)

AWAITED = "all ranks have closed; the job ends when its store has the record of that, in"


def texts_of(effects: list[Effect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Note)]


def test_the_group_forms_when_all_places_are_taken_ranks_follow_sorted_ids() -> None:
    scenario = ScenarioRun(2)
    assert names(scenario.joined(1, hello("w10"))) == [(1, "Welcome")]
    sent = scenario.joined(2, hello("w9"))
    assert names(sent) == [(2, "Welcome"), (2, "Revoke"), (1, "Revoke")]
    assert [place.worker_id for place in scenario.roster.durable.places] == ["w9", "w10"]


def test_the_epoch_is_journalled_before_anyone_hears_of_it() -> None:
    scenario = ScenarioRun(1)
    effects = scenario.tell(Joined(1, hello("w0")))
    revoke = next(
        i for i, e in enumerate(effects) if isinstance(e, Send) and isinstance(e.message, Revoke)
    )
    journalled = [e for e in effects[:revoke] if isinstance(e, Persist)]
    assert journalled[-1].durable.epoch == 1


def test_that_the_job_has_begun_is_journalled_before_the_first_plan_is_sent() -> None:
    """Else, if the tracker and all members die behind it, the job would begin anew in silence."""
    scenario = ScenarioRun(1)
    scenario.joined(1, hello("w0"))
    effects = scenario.tell_said(1, report(1))
    sent = [isinstance(e, Send) and isinstance(e.message, Plan) for e in effects].index(True)
    begun = [e.durable.first_nonces for e in effects[:sent] if isinstance(e, Persist)]
    assert begun == [(b"w0-a",)]


def test_a_restarted_worker_keeps_its_rank_and_everyone_gets_a_new_epoch() -> None:
    scenario = running()
    lost = sends(scenario.tell(ConnLost(2, "connection reset")))
    assert lost == [(1, Revoke(2, "lost worker w1: connection reset (rank 1)"))]
    sent = scenario.joined(3, hello("w1", "b"))
    assert names(sent) == [(3, "Welcome"), (3, "Revoke")]
    assert isinstance(sent[0][1], Welcome)
    assert sent[0][1].incarnation == 2
    scenario.said(1, report(2))
    plans = scenario.said(3, report(2, caught_up=0))
    assert [(conn, m.rank, m.epoch) for conn, m in plans if isinstance(m, Plan)] == [
        (1, 0, 2),
        (3, 1, 2),
    ]


def test_the_grouping_stays_what_it_was_wherever_a_later_process_runs() -> None:
    scenario = ScenarioRun(3)
    for rank, host in enumerate(("b", "a", "b")):
        scenario.joined(rank + 1, hello(f"w{rank}", host=host))
    plans = [scenario.said(rank + 1, report(1)) for rank in range(3)][-1]
    scenario.tell(ConnLost(3, "connection reset"))
    scenario.joined(4, hello("w2", "b", host="c"))
    later = ScenarioRun(3, scenario.journalled)  # a restarted tracker knows it too
    for rank, (process, host) in enumerate((("a", "b"), ("a", "a"), ("b", "c"))):
        later.joined(rank + 1, hello(f"w{rank}", process, host=host, revoke_epoch=2))
    plans += [later.said(rank + 1, report(3)) for rank in range(3)][-1]
    groupings = [(m.epoch, m.grouping) for _, m in plans if isinstance(m, Plan)]
    assert groupings == [(1, (0, 1, 0))] * 3 + [(3, (0, 1, 0))] * 3


def test_who_is_lost_while_an_epoch_waits_for_its_plan_is_named() -> None:
    scenario = running(3)
    scenario.tell(ConnLost(2, "connection reset"))
    notes = [e for e in scenario.tell(ConnLost(3, "its connection ended")) if isinstance(e, Note)]
    words = "epoch 2, not yet planned: lost worker w2: its connection ended (rank 2)"
    assert notes == [Note("info", words)]
    notes = [
        e for e in scenario.tell_said(1, Leave("ValueError: no", START)) if isinstance(e, Note)
    ]
    assert notes == [
        Note("info", "epoch 2, not yet planned: worker w0 left: ValueError: no (rank 0)")
    ]


@pytest.mark.parametrize(
    ("first", "told", "todo"),
    [
        (
            Said(1, Leave("ValueError: no such file", START)),
            "worker w0 left: ValueError: no such file (rank 0)",
            "that says why its script left",
        ),
        (
            Said(1, Leave("ValueError: no such file", START, "a.py:3")),
            "worker w0 left: ValueError: no such file (a.py:3) (rank 0)",
            "repair the script or its input",
        ),
        (
            ConnLost(1, "its connection ended"),
            "lost worker w0: its connection ended (rank 0)",
            "raise replicas if whole hosts vanish together",
        ),
    ],
)
def test_when_all_have_died_the_verdict_tells_of_the_first_loss(
    first: Event, told: str, todo: str
) -> None:
    """One line of a script ends all its ranks, and the others' errors must lead to it."""
    scenario = running()
    scenario.tell(first)
    scenario.tell(ConnLost(2, "its connection ended"))
    for conn, worker in ((3, "w0"), (4, "w1")):
        scenario.joined(conn, hello(worker, "b"))
    scenario.said(3, report(2, caught_up=0))
    sent = scenario.said(4, report(2, caught_up=0))
    (cause,) = {message.cause for _, message in sent if isinstance(message, FatalDecision)}
    assert cause.partition(": one that")[0] == (
        "every member that took part in the job has died, and their results with them;"
        f" the first loss: {told}; {todo}"
    )


def test_a_newer_process_fences_the_older_one_that_is_still_connected() -> None:
    scenario = running()
    sent = scenario.joined(3, hello("w1", "b"))
    assert (2, Fenced("a newer process has joined as worker w1")) in sent
    later = scenario.joined(4, hello("w1", "a", incarnation=1))
    assert names(later) == [(4, "Fenced")]


def test_a_report_of_another_epoch_is_dropped() -> None:
    scenario = running()
    scenario.said(1, Suspect(1, (1,), "reset"))
    assert scenario.said(1, report(1)) == []
    assert scenario.said(2, report(1)) == []
    assert scenario.roster.state is JobState.COLLECTING


def test_a_suspicion_changes_the_epoch_once_and_a_second_waits_its_turn() -> None:
    scenario = running()
    first = scenario.said(1, Suspect(1, (1,), "reset"))
    assert names(first) == [(1, "Revoke"), (2, "Revoke")]
    scenario.said(1, report(2))
    scenario.said(2, report(2))
    assert scenario.said(2, Suspect(2, (0,), "reset again")) == []
    assert names(sends(scenario.tick(5.0))) != []
    assert scenario.roster.durable.epoch == 3


def test_each_silence_has_its_own_deadlines_whoever_else_is_heard_in_between() -> None:
    scenario = running(3)
    half = SETTINGS.detect_within / 2
    for now, conn in ((1.0, 2), (half, 1), (half + 0.5, 1)):
        scenario.now = now
        scenario.said(conn, Heartbeat(1, 1, START))
    lines = []
    for _ in range(2):
        due = scenario.roster.next_deadline()
        assert due is not None
        lines += [(due, effect.text) for effect in scenario.tick(due) if isinstance(effect, Note)]
    assert lines == [
        (1.0 + half, "worker w1 is late: no heartbeat for 2.5 s"),
        (2 * half, "epoch 2: no heartbeat of worker w2 for 5.0 s (rank 2)"),
    ]


def test_a_silent_worker_is_named_late_then_evicted() -> None:
    scenario = running()
    scenario.now = 4.0
    scenario.said(1, Heartbeat(1, 1, START))
    scenario.tick(5.0)
    assert sorted(scenario.roster.members.empty_since) == [1]
    assert scenario.roster.state is JobState.COLLECTING


def test_pins_may_go_when_the_last_fetch_has_ended() -> None:
    scenario = running()
    scenario.tell(ConnLost(2, "reset"))
    scenario.joined(3, hello("w1", "b"))
    scenario.said(1, report(2, at(0, 0), committed=0, prelude_length=0))
    planned = scenario.said(3, report(2, caught_up=0))
    assert "Settled" not in [name for _, name in names(planned)]
    assert scenario.said(3, Fetched(2)) == [(1, Settled(2)), (3, Settled(2))]


def test_a_mismatch_is_the_same_verdict_for_everyone_however_late() -> None:
    scenario = running()
    one, two = Signature(Kind.BARRIER).encode(), Signature(Kind.CLOSE).encode()
    scenario.said(1, Mismatch(1, at(-1, 0), one, "a.py:1", 1, at(-1, 0), two, "b.py:2"))
    told = decisions(scenario.tick(ANSWER_WITHIN_S))
    fatal_decision = told[1]
    assert (told, fatal_decision.error) == (
        {1: fatal_decision, 2: fatal_decision},
        "CollectiveMismatchError",
    )
    assert scenario.joined(9, hello("w1", "b")) == [(9, fatal_decision)]


def test_all_have_closed_is_journalled_before_it_is_said() -> None:
    scenario = running()
    assert scenario.said(1, Closed(4)) == []
    effects = scenario.tell(Said(2, Closed(4)))
    persisted = [e.durable.final_version for e in effects if isinstance(e, Persist)]
    assert persisted == [4]
    assert sends(effects) == [(1, AllClosed(4)), (2, AllClosed(4))]
    refused = scenario.joined(3, hello("w1", "b"))
    assert refused == [(3, Refused("JobFinishedError", "job job has finished at version 4", 4))]


def test_a_tracker_stays_for_a_member_that_has_not_answered_the_end() -> None:
    """R8: it was cut off a moment before, and would take the silence for a failure."""
    scenario = running()
    scenario.said(1, Closed(4))
    scenario.said(2, Closed(4))
    scenario.tell(Said(1, Leave("the job has finished", START)))
    scenario.tell(ConnLost(2, "its connection was reset"))  # it may not have read the word
    farewell_s = FAREWELL_S + SETTINGS.detect_within
    assert scenario.roster.next_deadline() == farewell_s
    assert texts_of(scenario.tick(farewell_s)) == [
        "worker w1 may not know that the job has finished: staying for its call, for 60 s at most"
    ]
    back = scenario.joined(3, hello("w1", incarnation=1, closed=True))
    assert back[-1] == (3, AllClosed(4))
    ended = scenario.tell(Said(3, Leave("the job has finished", START)))
    assert [effect for effect in ended if isinstance(effect, JobEnded)] == [JobEnded(True)]


@pytest.mark.parametrize("stays", [False, True])
def test_a_tracker_does_not_stay_for_a_member_whose_process_has_ended(stays: bool) -> None:
    scenario = running()
    scenario.said(1, Closed(4))
    scenario.said(2, Closed(4))
    scenario.tell(Said(1, Leave("the job has finished", START)))
    scenario.tell(ConnLost(2, "its connection was reset"))
    if stays:
        scenario.tick(scenario.roster.next_deadline() or 0.0)
    ended = scenario.tell(Died("w1", 7, "was killed by SIGKILL"))
    assert JobEnded(True) in ended


def closed_alone(begin: Callable[[], ScenarioRun] = running, *supervised: str) -> ScenarioRun:
    """Worker w0 has closed and its connection has ended, before w1 closes too."""
    scenario = begin()
    for worker_id in supervised:
        scenario.tell(Supervised(worker_id, "h", 7, 0.0))
    scenario.said(1, Closed(4))
    scenario.tell(ConnLost(1, "its connection ended"))
    return scenario


def is_over(effects: list[Effect]) -> bool:
    return JobEnded(True) in effects


def ends_all_but_w0(scenario: ScenarioRun) -> bool:
    """Let w1 close, and hear the end; True if nobody else is awaited."""
    scenario.said(2, Closed(4))
    scenario.tell(FinishedPut())
    return is_over(scenario.tell(Said(2, Leave("the job has finished", START))))


@pytest.mark.parametrize("begin", [running, running_with_store])
def test_a_closed_member_that_is_gone_does_not_hold_the_end(
    begin: Callable[[], ScenarioRun],
) -> None:
    """It owes nothing; who lives has dialled again by the end of the farewell."""
    scenario = closed_alone(begin)
    assert not ends_all_but_w0(scenario)
    assert is_over(scenario.tick(FAREWELL_S + SETTINGS.detect_within))


def test_neither_does_one_that_dies_while_the_record_of_the_end_is_awaited() -> None:
    scenario = closed_with_store()
    scenario.tell(ConnLost(1, "its connection ended"))
    scenario.tell(FinishedPut())
    scenario.tell(Said(2, Leave("the job has finished", START)))
    assert is_over(scenario.tick(FAREWELL_S + SETTINGS.detect_within))


def test_one_whose_launcher_has_seen_it_die_is_not_awaited_at_all() -> None:
    scenario = closed_alone(running, "w0")
    scenario.tell(Died("w0", 7, "was killed by SIGKILL"))
    assert ends_all_but_w0(scenario)


def test_neither_does_one_whose_next_process_was_told_that_it_has_closed() -> None:
    """That one is not started again, and the process that had closed is dead."""
    scenario = closed_alone()
    refused = sends(scenario.tell(Joined(3, hello("w0", "b"))))
    assert [message.error for _, message in refused] == ["JobFinishedError"]
    assert not ends_all_but_w0(scenario)
    assert is_over(scenario.tick(FAREWELL_S + SETTINGS.detect_within))


def test_the_next_process_of_one_that_has_died_hears_the_end_in_its_place() -> None:
    """With a store it was needed until all had closed, so its launcher has started it again."""
    scenario = closed_alone(running_with_store, "w0")
    scenario.tell(Died("w0", 7, "was killed by SIGKILL"))
    assert scenario.joined(3, hello("w0", "b")) == []
    assert not ends_all_but_w0(scenario)
    assert not is_over(scenario.tick(FAREWELL_S + SETTINGS.detect_within))
    assert is_over(scenario.tell(Joined(4, hello("w0", "b"))))


def test_a_closed_member_that_was_away_and_came_back_is_awaited() -> None:
    """R8: it lives, and would take the silence for a failure."""
    scenario = closed_alone()
    scenario.joined(3, hello("w0", incarnation=1, closed=True))
    assert not ends_all_but_w0(scenario)
    scenario.tell(ConnLost(3, "its connection was reset"))
    assert not is_over(scenario.tick(FAREWELL_S + SETTINGS.detect_within))


def test_a_job_ends_well_though_its_store_does_not_take_the_end() -> None:
    scenario = running_with_store()
    scenario.said(1, Closed(4))
    asked = scenario.tell(Said(2, Closed(4)))
    assert ([e.version for e in asked if isinstance(e, PutFinished)], sends(asked)) == ([4], [])
    scenario.tell(PutDelayed("the store is away"))
    assert scenario.roster.next_deadline() == RECORD_S
    reminded = [texts_of(scenario.tick(at)) for at in (RECORD_S, RECORD_S + 1)]
    assert reminded == [[f"{AWAITED} 57 s at most: the store is away"], []]
    assert texts_of(scenario.tick(SETTINGS.replace_within - 1)) == []
    ended = scenario.tick(SETTINGS.replace_within)
    warned = texts_of(ended)
    assert warned[0] == "the store did not take the job's end in 60 s"
    assert sends(ended) == [(1, AllClosed(4)), (2, AllClosed(4))]


def closed_with_store() -> ScenarioRun:
    """All have closed, and the record of that is on its way to the store."""
    scenario = running_with_store()
    for conn in (1, 2):
        scenario.said(conn, Closed(4))
    return scenario


def test_a_tracker_that_was_overtaken_at_the_end_fences_all() -> None:
    """A later attempt runs: nobody may believe that the job has ended well."""
    scenario = closed_with_store()
    lost = scenario.tell(Overtaken("attempt 2 of the job has begun"))
    fenced = Fenced("attempt 2 of the job has begun")
    assert sends(lost) == [(1, fenced), (2, fenced)]
    assert [e for e in lost if isinstance(e, JobEnded)] == [
        JobEnded(False, "FencedError", fenced.reason)
    ]
    assert scenario.tick(SETTINGS.replace_within) == []
    assert not scenario.roster.standing_of("w0", 1).over, "its supervisor goes to the other tracker"


def test_supervisors_hear_of_the_end_when_the_store_has_it() -> None:
    scenario = closed_with_store()
    assert scenario.roster.awaits_end_record
    assert not scenario.roster.standing_of("w0", 1).over
    told = scenario.tell(FinishedPut())
    assert [effect for effect in told if isinstance(effect, Persist)], "the driver tells them of it"
    assert not scenario.roster.awaits_end_record
    assert scenario.roster.standing_of("w0", 1).over


def test_after_a_stop_of_the_tracker_the_record_of_the_end_is_awaited_on() -> None:
    scenario = closed_with_store()
    assert scenario.stall(100.0) == []
    until = 100.0 + SETTINGS.detect_within + SETTINGS.replace_within
    assert [names(sends(scenario.tick(at))) for at in (until - 1, until)] == [
        [],
        [(1, "AllClosed"), (2, "AllClosed")],
    ]


def rolled_back() -> ScenarioRun:
    """All who knew a plan have died: the job goes on from its store, once these have hung up."""
    scenario = running_with_store()
    for rank in range(2):
        scenario.tell(ConnLost(rank + 1, "killed"))
        scenario.joined(rank + 3, hello(f"w{rank}", "b"))
    for rank in range(2):
        told = scenario.tell_said(rank + 3, report(scenario.roster.durable.epoch, caught_up=0))
    assert {each.error for each in decisions(told).values()} == {"RolledBackError"}
    return scenario


@pytest.mark.parametrize("asked", [StopAsked("lunch"), GivenUp("w1", "it failed too often")])
def test_what_ends_the_job_is_handed_on_to_its_next_attempt(asked: StopAsked | GivenUp) -> None:
    """The one that asked was answered, and does not ask again."""
    scenario = rolled_back()
    assert sends(scenario.tell(asked)) == []
    scenario.tell(StopAsked("dinner"))
    assert scenario.roster.handed_on == asked, "the first one sticks"
    assert running_with_store().roster.handed_on is None


def test_a_spare_that_is_given_up_does_not_end_the_next_attempt() -> None:
    scenario = rolled_back()
    scenario.tell(GivenUp("w7", "it failed too often"))
    assert scenario.roster.handed_on is None


def test_a_close_is_journalled_before_it_is_noted() -> None:
    scenario = running()
    persist, note = scenario.tell(Said(1, Closed(4)))
    assert isinstance(persist, Persist)
    assert (persist.durable.closed_ranks, note) == ((0,), Note("info", "worker w0 has closed"))


def test_the_close_of_each_worker_is_noted_also_the_last() -> None:
    scenario = running()
    effects = [*scenario.tell(Said(1, Closed(4))), *scenario.tell(Said(2, Closed(4)))]
    assert [effect.text for effect in effects if isinstance(effect, Note)] == [
        "worker w0 has closed",
        "worker w1 has closed",
        "all ranks have closed at version 4",
    ]


def test_who_joins_is_noted() -> None:
    scenario = ScenarioRun(2)
    events = [Joined(1, hello("w0")), Joined(2, hello("w1")), Joined(3, hello("w0", "b"))]
    effects = [effect for event in events for effect in scenario.tell(event)]
    joined = [e.text for e in effects if isinstance(e, Note) and "joined" in e.text]
    assert joined == [
        "worker w0 has joined from h",
        "worker w1 has joined from h",
        "worker w0 has joined from h as its incarnation 2",
    ]


def test_a_closed_worker_that_dies_is_neither_awaited_nor_replaced() -> None:
    scenario = running(3)
    scenario.said(1, Closed(0))
    scenario.said(2, Suspect(1, (2,), "reset"))
    scenario.said(2, report(2))
    scenario.said(1, report(2, closed=True))
    scenario.said(3, Heartbeat(1, 1, START))
    scenario.tell(ConnLost(1, "reset"))
    plans = scenario.said(3, report(2))
    assert [member.present for member in plans[0][1].members] == [False, True, True]


def test_a_closed_worker_that_dies_last_lets_the_others_go_on_at_once() -> None:
    scenario = running()
    scenario.said(1, Closed(0))
    scenario.said(2, Suspect(1, (0,), "reset"))
    scenario.said(2, report(2))
    plans = sends(scenario.tell(ConnLost(1, "reset")))
    assert names(plans) == [(2, "Plan"), (2, "Settled")]


def test_a_reconnect_while_the_group_forms_counts_once() -> None:
    scenario = ScenarioRun(2)
    scenario.joined(1, hello("w0"))
    scenario.joined(2, hello("w0", incarnation=1))
    assert (scenario.roster.state, sorted(scenario.roster.members.peers)) == (JobState.FORMING, [2])


def test_the_tracker_leaves_when_everyone_has_been_told_and_has_gone() -> None:
    scenario = running()
    scenario.said(1, Closed(0))
    scenario.said(2, Closed(0))
    heard = Leave("the job has finished", START)
    assert JobEnded(True) not in scenario.tell(Said(1, heard))
    assert JobEnded(True) in scenario.tell(Said(2, heard))


def test_the_tracker_waits_for_one_who_was_away_when_the_job_ended() -> None:
    scenario = running()
    scenario.tell(ConnLost(2, "reset"))
    one, two = Signature(Kind.BARRIER).encode(), Signature(Kind.CLOSE).encode()
    scenario.said(1, Mismatch(1, at(-1, 0), one, "a.py:1", 1, at(-1, 0), two, "b.py:2"))
    assert not [e for e in scenario.tell(ConnLost(1, "hung up")) if isinstance(e, JobEnded)]
    assert [
        e for e in scenario.tick(FAREWELL_S + SETTINGS.detect_within) if isinstance(e, JobEnded)
    ]


FAILED = Leave("TypeError: not at 0x7f12", at(0, 3), "a.py:3")


@pytest.mark.parametrize(
    ("last", "ends"),
    [
        (replace(FAILED, reason="TypeError: not at 0x7f34"), True),  # another process's address
        (replace(FAILED, reason="TypeError: nor"), False),
        (replace(FAILED, position=at(0, 4)), False),
        (replace(FAILED, site="a.py:4"), False),
        (replace(FAILED, site=""), False),  # of the environment, or no error
    ],
)
@pytest.mark.parametrize("begin", [running, running_with_store])
def test_the_same_error_on_all_ranks_ends_the_job_at_once(
    begin: Callable[[int], ScenarioRun], last: Leave, ends: bool
) -> None:
    scenario = begin(3)
    scenario.tell_said(2, FAILED)
    scenario.tell_said(1, FAILED)
    scenario.joined(7, hello("w1", "b"))  # it was restarted before the last one came there
    found = decisions(scenario.tell_said(3, last))
    assert list(found) == [7] * ends
    assert [(told.error, told.position, told.rank) for told in found.values()] == [
        ("ScriptFailedError", at(0, 3), -1)
    ] * ends
    if ends:
        cause = f"all ranks at 0.3: {last.reason} (a.py:3)"
        assert cause in found[7].cause


@pytest.mark.parametrize("size", [1, 3])
def test_an_error_of_one_rank_does_not_end_the_job(size: int) -> None:
    scenario = running(size)
    assert not decisions(scenario.tell_said(1, FAILED))
    assert scenario.roster.state is JobState.COLLECTING


def test_the_same_error_of_two_epochs_is_not_one_of_all_ranks() -> None:
    scenario = running()
    scenario.tell_said(1, FAILED)
    scenario.joined(3, hello("w0", "b"))
    for conn in (2, 3):
        scenario.said(conn, report(2, at(0, 3)))
    assert scenario.roster.state is JobState.RUNNING
    scenario.tell_said(2, FAILED)
    assert scenario.roster.state is JobState.COLLECTING


def test_the_position_of_one_that_left_counts_as_progress() -> None:
    """An error there is the same one only if nobody has come further since."""
    scenario = running()
    scenario.tell_said(2, Leave("ValueError: no", Position(0, 3, 7)))
    assert scenario.roster.progress() == Position(0, 3, 7)
    assert scenario.roster.standing_of("w0", 1).progress == Position(0, 3, 7)


@pytest.mark.parametrize(("begin", "is_closed"), [(running, True), (running_with_store, False)])
def test_a_supervisor_starts_who_may_be_called_back(
    begin: Callable[[], ScenarioRun], is_closed: bool
) -> None:
    """With a store: if all is lost before the other has closed too, an attempt needs both."""
    scenario = begin()
    scenario.said(1, Closed(0))
    standing = scenario.roster.standing_of("w0", 1)
    assert (standing.closed, scenario.roster.has_closed("w0")) == (is_closed, is_closed)


@pytest.mark.parametrize(("error", "is_over"), [("RolledBackError", False), ("JobLostError", True)])
def test_the_end_of_an_attempt_is_no_end_to_supervisors(error: str, is_over: bool) -> None:
    """They would end with it, and the next attempt wait for their workers."""
    settings = replace(SETTINGS, checkpoint="/shared/run7", checkpoint_every="10s")
    lost = FatalDecision(error, "all died", 6, START, -1)
    durable = replace(Durable.fresh("job.3", 2, settings.to_wire()), attempt=3, fatal_decision=lost)
    store = StoreFacts(attempt=3, prelude=())
    scenario = ScenarioRun(2, durable, settings=settings, store=store)
    standing = scenario.roster.standing_of("w0", 1)
    assert (standing.over, bool(standing.error), standing.attempt) == (is_over, is_over, 3)


@pytest.mark.parametrize(
    ("script_failed", "error"), [(False, "RankLostError"), (True, "ScriptFailedError")]
)
def test_why_a_worker_is_given_up_is_in_the_error_of_all(script_failed: bool, error: str) -> None:
    scenario = running()
    sent = scenario.tell(GivenUp("w1", "it failed", script_failed))
    told = [e.message for e in sent if isinstance(e, Send)]
    assert [(m.error, m.cause) for m in told if isinstance(m, FatalDecision)] == [
        (error, "it failed")
    ] * 2


def test_giving_up_a_worker_without_a_rank_is_said_and_changes_nothing() -> None:
    """It is a spare, or its id is wrong."""
    scenario = running()
    effects = scenario.tell(GivenUp("w7", "no machine"))
    assert effects == [Note("info", "worker w7 is given up (no machine); it has no rank")]
    assert scenario.roster.state is JobState.RUNNING


def test_one_that_nobody_will_start_again_is_not_waited_for() -> None:
    scenario = running()
    scenario.tell(ConnLost(2, "reset"))
    scenario.tell(GivenUp("w1", "it died 3 times"))
    assert [e for e in scenario.tell(ConnLost(1, "hung up")) if isinstance(e, JobEnded)]


def test_a_worker_on_its_way_to_a_job_that_ended_before_it_formed_hears_why() -> None:
    scenario = ScenarioRun(3)
    scenario.joined(1, hello("w0"))
    scenario.tell(GivenUp("w1", "it cannot start"))
    assert not [e for e in scenario.tell(ConnLost(1, "hung up")) if isinstance(e, JobEnded)]
    ((_, told),) = scenario.joined(2, hello("w2"))
    assert isinstance(told, FatalDecision)
    assert [
        e for e in scenario.tick(FAREWELL_S + SETTINGS.detect_within) if isinstance(e, JobEnded)
    ]


@pytest.mark.parametrize("error", ["LogLimitError", "CollectiveMismatchError"])
def test_what_one_rank_found_is_journalled_and_ends_the_job_for_all(error: str) -> None:
    scenario = running(3)
    told = scenario.tell(Said(2, FatalReport(1, at(0, 4), error, "waited 5 s for [2]")))
    fatal_decision = FatalDecision(error, "waited 5 s for [2]", 1, at(0, 4), 1)
    persisted = [effect.durable.fatal_decision for effect in told if isinstance(effect, Persist)]
    assert (persisted, sends(told)) == (
        [fatal_decision],
        [(conn, fatal_decision) for conn in (1, 2, 3)],
    )
    assert scenario.said(1, FatalReport(1, at(0, 4), error, "me too")) == []


def test_what_one_rank_found_holds_while_the_group_forms_again() -> None:
    scenario = running(3)
    scenario.tell(ConnLost(3, "died"))
    assert scenario.roster.state is JobState.COLLECTING
    sent = scenario.said(1, FatalReport(1, at(0, 4), "CollectiveTimeoutError", "nobody came"))
    fatal_decision = FatalDecision(
        "CollectiveTimeoutError",
        "nobody came; absent: rank 2; there and waiting for nobody: rank 1",
        2,
        at(0, 4),
        0,
    )
    assert sent == [(1, fatal_decision), (2, fatal_decision)]


def test_a_timeout_names_who_computes_while_the_others_wait() -> None:
    scenario = running(3)
    blocked = Blocked(Signature(Kind.BARRIER).encode(), "t.py:1", (1,), 300)
    scenario.said(1, Heartbeat(1, 1, at(0, 4), blocked))
    scenario.said(2, Heartbeat(1, 1, at(0, 4), blocked))
    sent = scenario.said(1, FatalReport(1, at(0, 4), "CollectiveTimeoutError", "waited"))
    assert {message.cause for _, message in sent} == {
        "waited; there and waiting for nobody: rank 2"
    }


@pytest.mark.parametrize("dtypes", [(0, 12, 12), (12, 0, 12), (0, 12, 11)])
def test_a_rank_without_an_array_waits_beside_others_with_one(dtypes: tuple[int, ...]) -> None:
    scenario = running(3)
    sent = []
    for conn, dtype in enumerate(dtypes, 1):
        call = Signature(Kind.BROADCAST, root=2, dtype=dtype).encode()
        blocked = Blocked(call, f"t.py:{conn}", (2,), 300)
        sent += scenario.said(conn, Heartbeat(1, 1, at(0, 4), blocked))
    sent += sends(scenario.tick(ANSWER_WITHIN_S))
    verdicts = {message.cause for _, message in sent if isinstance(message, FatalDecision)}
    assert [" at t.py:2 " in cause and " at t.py:3" in cause for cause in verdicts] == (
        [True] if 11 in dtypes else []
    )


def test_a_rank_that_waits_for_a_message_calls_nothing_else_than_the_others() -> None:
    scenario = running(2)
    receive = Blocked(Signature(Kind.RECV, root=1).encode(), "t.py:1", (1,), 300)
    barrier = Blocked(Signature(Kind.BARRIER).encode(), "t.py:2", (0,), 300)
    sent = scenario.said(1, Heartbeat(1, 1, at(0, 4), receive))
    sent += scenario.said(2, Heartbeat(1, 1, at(0, 4), barrier))
    sent += sends(scenario.tick(ANSWER_WITHIN_S))
    assert {type(message).__name__ for _, message in sent} == {"HeartbeatAck"}


def test_a_finding_of_another_name_is_not_believed() -> None:
    scenario = running(3)
    effects = scenario.tell(Said(2, FatalReport(1, at(0, 4), "JobFinishedError", "all done")))
    assert [effect.conn for effect in effects if isinstance(effect, Disconnect)] == [2]
    assert scenario.roster.durable.fatal_decision is None


def test_who_waits_for_a_rank_that_has_closed_and_is_gone_is_helped() -> None:
    """Help a rank that waits for a closed and lost one, whose last data may not have arrived."""
    scenario = running(3)
    for conn in (2, 3):
        scenario.said(conn, Closed(0))
    scenario.tell(ConnLost(2, "nothing was heard for long"))
    ms = int(SETTINGS.detect_within * 1000)
    waits = Blocked(Signature(Kind.CLOSE).encode(), "t.py:9", (1,), ms)
    assert names(scenario.said(1, Heartbeat(1, 1, at(0, 4), waits))) == [
        (1, "HeartbeatAck"),
        (1, "Revoke"),
        (3, "Revoke"),
    ]
