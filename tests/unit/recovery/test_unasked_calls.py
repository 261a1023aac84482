"""Calls that the core completes by itself, and the machine that is asked afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ftcomm.protocol.messages import AskCalls, Calls, Report, Revoke
from ftcomm.protocol.position import PositionRange
from ftcomm.recovery.archive import results
from ftcomm.recovery.archive.results import ENTRY_BYTES, KEEP_BY_ALL_BYTES, LogEntry, Results
from ftcomm.recovery.events import Beat, SendControl
from ftcomm.recovery.machine import Completion, NextStep, WorkerMachine
from ftcomm.recovery.recent_calls import CALLS_KEPT, NO_CALL, Called
from ftcomm.recovery.unasked_calls import EPOCH, KEPT_ROOM, SEQNO, STEP, UNTIL_NS
from tests.unit.recovery.worker_scenario import SIG, a_member, at, execute, hear, members, plan

FOUR = {"members": members(count=4), "grouping": (0, 0, 0, 0)}


@dataclass(frozen=True)
class Repeated:
    """Calls of one line."""

    called: Called

    def entry(self, raw: bytes) -> LogEntry:
        return LogEntry(self.called.signature, raw, len(raw))


CALL = Repeated(Called(SIG, "t.py:9"))


def enter(core: WorkerMachine) -> None:
    """Do as the core at the beginning of a call."""
    assert core.log.unasked.words[UNTIL_NS]
    core.log.unasked.calls.append(CALL)


def complete(core: WorkerMachine, raw: bytes) -> None:
    """Do as the core at the end of a call; what it takes is what `Form.repeat` takes."""
    unasked = core.log.unasked
    assert unasked.words[UNTIL_NS]
    unasked.calls.append(raw)
    unasked.words[SEQNO] += 1
    unasked.words[KEPT_ROOM] -= len(raw) + ENTRY_BYTES


def repeat(core: WorkerMachine, *results: bytes) -> None:
    for raw in results:
        enter(core)
        complete(core, raw)


def a_quiescent(**changes: Any) -> WorkerMachine:
    """A member that has executed one call, at -1.0."""
    core = a_member(**changes)
    execute(core, "0")
    assert core.progress.is_quiescent
    return core


def save(core: WorkerMachine) -> None:
    """Commit a checkpoint, or the load, as the engine does: asked in order."""
    core.progress.absorb()
    if core.progress.position.version < 0:
        core.progress.begin_load(SIG, "t.py:2")
        done = core.progress.complete_load(1, "state", b"", now=0.0)
    else:
        core.progress.begin(SIG, "t.py:3")
        core.progress.offer_checkpoint("state", b"")
        done, _ = core.progress.complete_checkpoint(1, now=0.0)
    assert done is Completion.DONE


def only_report(effects: list[Any]) -> Report:
    (report,) = [
        e.message for e in effects if isinstance(e, SendControl) and isinstance(e.message, Report)
    ]
    return report


def test_a_report_has_what_was_completed_unasked_and_nothing_is_behind_it() -> None:
    """R2: what one member has completed is found by all."""
    core = a_quiescent()
    repeat(core, b"one", b"two")
    report = only_report(hear(core, Revoke(2, "rank 1 died")))
    assert (report.position, report.runs) == (at(-1, 3), (PositionRange(-1, 0, 3),))
    assert core.log.unasked.words[UNTIL_NS] == 0
    assert [core.log.get(at(-1, seqno)).value for seqno in (1, 2)] == [b"one", b"two"]


def test_a_report_names_the_call_in_flight_which_is_not_complete() -> None:
    core = a_quiescent()
    repeat(core, b"one")
    enter(core)
    report = only_report(hear(core, Revoke(2, "rank 1 died")))
    assert (report.position, report.signature, report.site) == (at(-1, 2), SIG, "t.py:9")
    assert report.runs == (PositionRange(-1, 0, 2),)
    core.log.unasked.calls.pop()  # as the core that has found itself interrupted
    assert core.progress.call == NO_CALL


def test_no_call_is_in_flight_behind_a_complete_one() -> None:
    """A report that names it at the next position would say that ranks differ (R7)."""
    core = a_quiescent()
    repeat(core, b"one")
    assert (core.progress.call, core.log.unasked.is_in_flight) == (NO_CALL, False)
    enter(core)
    assert (core.progress.call, core.log.unasked.is_in_flight) == (CALL.called, True)


def test_results_are_replayed_to_a_lagging_rank_after_every_event() -> None:
    """R3: results before, between and behind events, of both ways, are all here."""
    core, wanted = a_quiescent(**FOUR), ["0"]
    for number in range(1, 10, 3):
        repeat(core, b"a", b"b")
        core.handle(Beat(), now=0.1 * number)
        execute_asked(core, str(number))
        wanted += [b"a", b"b", str(number)]
    report = only_report(hear(core, Revoke(2, "rank 1 died")))
    assert report.runs == (PositionRange(-1, 0, 10),)
    assert [core.log.get(at(-1, seqno)).value for seqno in range(10)] == wanted
    assert core.log.get(at(-1, 10)) is None
    assert core.log.get(at(0, 1)) is None


def execute_asked(core: WorkerMachine, value: str) -> None:
    core.progress.absorb()
    execute(core, value)


def test_the_calls_made_last_are_told_in_order() -> None:
    """R7: the first difference between two processes is found by comparing them."""
    core = a_quiescent()
    repeat(core, b"one")
    execute_asked(core, "2")
    repeat(core, b"three")
    (sent,) = hear(core, AskCalls(0))
    assert isinstance(sent, SendControl)
    assert isinstance(sent.message, Calls)
    told = [(call.position.seqno, call.site) for call in sent.message.calls]
    assert told == [(0, "t.py:1"), (1, "t.py:9"), (2, "t.py:1"), (3, "t.py:9")]


def test_of_many_calls_the_newest_are_told() -> None:
    core = a_quiescent()
    repeat(core, *[b"x"] * (2 * CALLS_KEPT))
    core.freeze()
    made = core.progress.recent.before(core.progress.position)
    assert [call.position.seqno for call in made] == list(range(CALLS_KEPT + 1, 2 * CALLS_KEPT + 1))


def test_a_commit_releases_them_and_the_prelude_stays() -> None:
    core = a_quiescent()
    repeat(core, b"prelude")
    save(core)
    execute(core, "0.0")
    repeat(core, b"version")
    save(core)
    repeat(core, b"next")
    core.freeze()
    assert core.log.positions() == [at(-1, 0), at(-1, 1), at(1, 0)]
    assert core.log.get(at(1, 0)).value == b"next"


def test_members_count_alike_whichever_way_a_result_came() -> None:
    """R15: both budgets, of a version that begins with either way, are charged alike."""
    rooms = []
    for begin in (repeat_one, execute_one):
        core = a_quiescent(keep_by_all=8 * ENTRY_BYTES, **FOUR)
        save(core)
        execute(core, "")
        save(core)
        begin(core)
        repeat(core, b"")
        execute_asked(core, "")
        rooms.append(core.log.unasked.words[KEPT_ROOM])
    assert rooms == [5 * ENTRY_BYTES] * 2


def repeat_one(core: WorkerMachine) -> None:
    repeat(core, b"")


def execute_one(core: WorkerMachine) -> None:
    execute_asked(core, "")


def test_nothing_is_charged_to_a_budget_that_has_ended() -> None:
    core = a_quiescent(keep_by_all=2 * ENTRY_BYTES, **FOUR)
    execute(core, "1")
    execute(core, "2")  # one too many
    assert core.log.unasked.words[KEPT_ROOM] == 0


@pytest.mark.parametrize(
    "event",
    [lambda core: core.handle(Beat(), now=0.1), WorkerMachine.freeze],
    ids=["heartbeat", "fetch"],
)
def test_every_event_has_the_next_call_ask(event: Callable[[WorkerMachine], Any]) -> None:
    core = a_quiescent()
    event(core)
    assert core.log.unasked.words[UNTIL_NS] == 0
    assert core.progress.begin(SIG, "t.py:1") is NextStep.EXECUTE


def test_calls_ask_where_the_tracker_must_confirm_the_process_first() -> None:
    """R1: it may have been replaced while it did not run."""
    core = a_quiescent()
    until = core.contact.confirm_after
    assert core.log.unasked.words[UNTIL_NS] == int(until * 1e9)
    core.handle(Beat(), now=10.0)  # it was stopped
    core.progress.is_quiescent = True
    assert core.log.unasked.words[UNTIL_NS] == 0


def test_a_plan_begins_its_epoch_without_broadcasts() -> None:
    core = a_quiescent()
    core.log.unasked.words[STEP] = 7
    hear(core, Revoke(2, "rank 1 died"))
    hear(core, plan(2, at(-1, 1)))
    assert core.log.unasked.words[EPOCH : STEP + 1].tolist() == [2, *at(-1, 1), 0]


def test_a_call_in_few_steps_goes_on_behind_them() -> None:
    core = a_quiescent()
    repeat(core, b"one")
    core.progress.call = Called(SIG, "t.py:5")
    assert core.progress.complete_next(LogEntry(SIG, "2"), 0.1) is not None
    made = core.progress.recent.before(core.progress.position)
    assert [call.site for call in made] == ["t.py:1", "t.py:9", "t.py:5"]
    assert [core.log.get(at(-1, seqno)).value for seqno in range(3)] == ["0", b"one", "2"]


def test_the_core_makes_no_more_calls_where_a_report_would_be_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its results stay until the commit, each a run where those between them go."""
    monkeypatch.setattr(results, "RUNS_OF_A_FRAME", 4)
    monkeypatch.setattr(results, "GAPS_BETWEEN_COUNTS", 1)
    log = Results()
    log.set_keeping(index=0, stride=9, keep_by_all=1 << 20)
    words = log.unasked.words
    log.unasked.position = at(0, 0)
    for seqno in range(100):
        words[SEQNO] = seqno
        if seqno % 2 and words[KEPT_ROOM]:
            log.unasked.calls += [CALL, b"result"]
            words[SEQNO] += 1
        else:
            log.unasked.absorb()
            log.succeed(at(0, seqno), LogEntry(b"", b"", KEEP_BY_ALL_BYTES + 1))
    assert words[KEPT_ROOM] == 0
    assert len(log.runs()) < 20, "and few follow: those of which this member is a holder"
