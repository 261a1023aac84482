"""Journals of results: what is written, what counts of an earlier attempt, and when it begins."""

from typing import Any

import pytest

from ftcomm.protocol.durable.journal_messages import (
    AttemptBegun,
    JournalRuns,
    ReadJournal,
    ResultsJournalled,
)
from ftcomm.protocol.durable.store_messages import Restore, VersionDurable
from ftcomm.protocol.messages import Fetch, Report, Revoke, Welcome
from ftcomm.protocol.position import PositionRange
from ftcomm.protocol.signature import Kind, LogMode, Signature
from ftcomm.recovery.events import (
    Attached,
    Detached,
    Effect,
    JournalRead,
    JournalWritten,
    ResultFetched,
    SendControl,
    StartJournalRead,
    VersionRestored,
)
from ftcomm.recovery.journal.found import FoundJournal, FoundJournals, FoundResult
from ftcomm.recovery.journal.journalling import BATCH_RESULTS
from ftcomm.recovery.machine import Identity, MachineLimits, NextStep, WorkerMachine
from ftcomm.recovery.messages.message_exchange import MessageArrived
from ftcomm.recovery.result_log import LogEntry
from tests.unit.recovery.worker_scenario import CLOSE, NONCE, SIG, at, hear, plan

ORDER = ReadJournal(1, 3, 0)


def entry(name: str) -> LogEntry:
    return LogEntry(SIG, name, 8)


def written(epoch: int, seqno: int, name: str, version: int = 3) -> FoundResult:
    return FoundResult(epoch, at(version, seqno), entry(name))


# Result 1 was made in epoch 1 by who died then, and again in epoch 2 by this writer.
FOUND = (
    FoundJournal((1,), (written(1, 0, "a"), written(1, 1, "lost"))),
    FoundJournal((2, 4), (written(2, 0, "a"), written(2, 1, "b"), written(4, 2, "c"))),
)
AGAIN = FoundJournals(FOUND)


def said(effects: list[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, SendControl)]


def test_a_report_names_by_epoch_what_was_held_in_it() -> None:
    assert AGAIN.runs() == (
        JournalRuns(4, (PositionRange(3, 0, 3),)),
        JournalRuns(2, (PositionRange(3, 0, 2),)),
        JournalRuns(1, (PositionRange(3, 0, 2),)),
    )


@pytest.mark.parametrize(
    ("epoch", "end", "names"),
    [(4, 3, "abc"), (4, 2, "ab"), (2, 3, "ab"), (1, 1, "a"), (3, 3, ""), (4, 0, "")],
)
def test_results_of_one_epoch_alone_are_used_together(epoch: int, end: int, names: str) -> None:
    found = list(AGAIN.held_in(epoch, at(3, end)))
    assert "".join(each.value for _, each in found) == names
    assert [position.seqno for position, _ in found] == list(range(len(names)))


def restored(journals: tuple[FoundJournal, ...] = FOUND) -> WorkerMachine:
    """A member of attempt 2, which has read checkpoint 3 and its journal, and has reported."""
    core = WorkerMachine(Identity("w0", NONCE, "h", "127.0.0.1", 1000), MachineLimits(), now=0.0)
    core.handle(Attached(), now=0.0)
    hear(core, Welcome("job.2", 1, 1, 2, 0, ()))
    hear(core, Restore(5))
    assert hear(core, ORDER) == [StartJournalRead(ORDER)]
    assert said(hear(core, Revoke(1, "the group is complete"))) == []
    assert said(core.handle(VersionRestored(5, 3, "state", None, (), 0), now=0.0)) == []
    [report] = said(core.handle(JournalRead(ORDER, journals), now=0.0))
    assert isinstance(report, Report)
    assert {found.epoch for found in report.journals} == {e for j in journals for e in j.epochs}
    return core


def held(core: WorkerMachine, epoch: int = 1) -> WorkerMachine:
    hear(core, plan(epoch, at(3, 2), prelude_length=0, journal=4, holds=True))
    return core


def load(core: WorkerMachine) -> None:
    checkpoint: Any = core.progress.begin_load(SIG, "x:1")
    core.progress.replay_load(checkpoint, now=0.0)


def test_a_journal_that_is_read_first_is_awaited_too() -> None:
    core = WorkerMachine(Identity("w0", NONCE, "h", "127.0.0.1", 1000), MachineLimits(), now=0.0)
    core.handle(Attached(), now=0.0)
    hear(core, Welcome("job.2", 1, 1, 2, 0, ()))
    hear(core, Restore(5))
    hear(core, ORDER)
    hear(core, Revoke(1, "the group is complete"))
    assert said(core.handle(JournalRead(ORDER, ()), now=0.0)) == []
    assert len(said(core.handle(VersionRestored(5, 3, "state", None, (), 0), now=0.0))) == 1


def test_what_the_plan_counts_is_served_and_nothing_is_executed_before_the_beginning() -> None:
    core = held(restored())
    load(core)
    served = []
    for _ in range(2):
        step = core.progress.begin(SIG, "x:1")
        assert isinstance(step, LogEntry)
        served.append(step.value)
        core.progress.replay(now=0.0)
    assert served == ["a", "b"]
    assert core.progress.begin(SIG, "x:1") is NextStep.WAIT
    hear(core, AttemptBegun(2))
    assert core.progress.begin(SIG, "x:1") is NextStep.EXECUTE


def test_nobody_closes_before_the_attempt_has_begun() -> None:
    """Until then this rank may be the only one with the results, and who has closed may go."""
    closing = FoundResult(4, at(3, 0), LogEntry(CLOSE, None))
    core = restored((FoundJournal((4,), (closing,)),))
    hear(core, plan(1, at(3, 1), prelude_length=0, journal=4, holds=True))
    load(core)
    assert core.progress.begin(CLOSE, "x:9") is NextStep.WAIT
    hear(core, AttemptBegun(2))
    assert isinstance(core.progress.begin(CLOSE, "x:9"), LogEntry)


def test_the_tracker_hears_when_all_below_the_frontier_is_journalled_anew() -> None:
    core = held(restored())
    batch = core.journalling.take()
    assert batch is not None
    assert (batch.version, batch.rank, batch.first_epoch) == (3, 0, 1)
    assert [position.seqno for position, _ in batch.results] == [0, 1]
    assert (batch.begins_epoch, batch.proves, batch.is_last) == (True, True, True)
    assert core.journalling.take() is None
    effects = core.handle(JournalWritten(batch.number), now=0.0)
    assert said(effects) == [ResultsJournalled(1, at(3, 2))]
    assert core.journalling.take() is None


def test_another_tracker_is_told_again() -> None:
    core = held(restored())
    batch = core.journalling.take()
    assert batch is not None
    core.handle(JournalWritten(batch.number), now=0.0)
    core.handle(Detached("gone"), now=0.0)
    core.handle(Attached(), now=0.0)
    assert ResultsJournalled(1, at(3, 2)) in said(hear(core, Welcome("job.2", 2, 1, 2, 1, ())))


def test_an_older_attempts_journals_are_kept_until_this_one_has_begun() -> None:
    core = held(restored())
    assert core.journalling.obsolete_before == 0
    hear(core, AttemptBegun(2))
    assert core.journalling.obsolete_before == 1


def completed(core: WorkerMachine, count: int) -> None:
    for _ in range(count):
        assert core.progress.begin(SIG, "x:1") is NextStep.EXECUTE
        core.progress.complete(core.view.epoch, entry("new"), synchronising=True, now=0.0)


def test_each_result_is_written_once_and_a_new_epoch_is_named_first() -> None:
    core = restored(())
    hear(core, plan(1, at(3, 0), prelude_length=0))
    load(core)
    batches = []
    for step in range(3):
        completed(core, 2)
        batch = core.journalling.take()
        assert batch is not None
        seqnos = [position.seqno for position, _ in batch.results]
        batches.append((batch.epoch, batch.begins_epoch, seqnos))
        core.handle(JournalWritten(batch.number), now=0.0)
        if step == 1:
            hear(core, Revoke(2, "lost"))
            hear(core, plan(2, at(3, 4), prelude_length=0))
    assert batches == [(1, True, [0, 1]), (1, False, [2, 3]), (2, True, [4, 5])]


def test_nothing_is_written_of_a_version_that_nobody_can_resume_from() -> None:
    core = restored(())
    hear(core, plan(1, at(3, 0), prelude_length=0))
    load(core)
    core.progress.offer_checkpoint("state", b"d")
    core.progress.begin(SIG, "x:1")
    core.progress.complete_checkpoint(1, now=0.0)
    completed(core, 1)
    assert core.journalling.take() is None
    hear(core, VersionDurable(2, 4))
    batch = core.journalling.take()
    assert batch is not None
    assert (batch.version, len(batch.results)) == (4, 1)


def test_a_result_that_the_log_has_released_is_not_said_to_be_held() -> None:
    core = restored(())
    hear(core, plan(1, at(3, 0), prelude_length=0))
    load(core)
    completed(core, 1)
    batch = core.journalling.take()
    assert batch is not None
    assert core.journalling.still_held(batch) == [True]
    core.log.commit(4)
    assert core.journalling.still_held(batch) == [False]


def test_many_results_are_written_in_several_batches() -> None:
    core = restored(())
    hear(core, plan(1, at(3, 0), prelude_length=0))
    load(core)
    completed(core, 2 * BATCH_RESULTS + 3)
    sizes = []
    while (batch := core.journalling.take()) is not None:
        sizes.append((len(batch.results), batch.is_last))
        core.handle(JournalWritten(batch.number), now=0.0)
    assert sizes == [(BATCH_RESULTS, False), (BATCH_RESULTS, False), (3, True)]


@pytest.mark.parametrize("log", [LogMode.CONTRIBUTIONS, LogMode.COPIES])
def test_a_journal_ends_at_a_call_whose_log_entry_is_not_its_result(log: LogMode) -> None:
    """Inputs and results are lost with their ranks: a later attempt makes all from there anew."""
    core = restored(())
    hear(core, plan(1, at(3, 0), prelude_length=0))
    load(core)
    of_each_rank = Signature(Kind.ALLTOALL, log=log).encode()
    for signature in (SIG, of_each_rank, SIG):
        assert core.progress.begin(signature, "x:1") is NextStep.EXECUTE
        done = LogEntry(signature, "value", 8)
        core.progress.complete(1, done, synchronising=False, now=0.0)
    batch = core.journalling.take()
    assert batch is not None
    assert [position for position, _ in batch.results] == [at(3, 0)]
    assert batch.is_last


def take_a_message(core: WorkerMachine) -> None:
    epoch, version = core.view.epoch, core.progress.position.version
    assert core.messages.arrive(MessageArrived(epoch, 1, version, b"t", 1, b"d", "a message"))
    assert core.messages.receive(1, b"t", 0.0)[1] == "a message"


def journalled(core: WorkerMachine) -> list[int]:
    """The results of one batch, which is the last one for now."""
    batch = core.journalling.take()
    assert batch is not None
    assert batch.is_last
    return [position.seqno for position, _ in batch.results]


def test_a_journal_ends_before_the_first_result_that_may_depend_on_a_message() -> None:
    """A later attempt makes messages again: nothing made of the old ones is used beside them."""
    core = restored(())
    hear(core, plan(1, at(3, 0), prelude_length=0))
    load(core)
    completed(core, 2)
    take_a_message(core)
    completed(core, 3)
    assert journalled(core) == [0, 1]


def test_a_message_of_another_rank_ends_the_journal_where_a_frame_has_told_of_it() -> None:
    core = restored(())
    hear(core, plan(1, at(3, 0), prelude_length=0))
    load(core)
    completed(core, 1)
    core.journalling.reach.begin_at(core.progress.position)
    completed(core, 2)
    assert journalled(core) == [0]


def test_a_fetched_result_that_may_depend_on_a_message_is_not_journalled() -> None:
    core = restored(())
    fetches = (Fetch(1, PositionRange(3, 0, 3)),)
    hear(core, plan(1, at(3, 3), prelude_length=0, fetches=fetches))
    for seqno, after_messages in ((2, True), (1, True), (0, False)):
        content = SIG, "value", 8, "", after_messages
        core.handle(ResultFetched(1, at(3, seqno), *content), now=0.0)
    assert core.log.positions() == [at(3, 0), at(3, 1), at(3, 2)]
    assert journalled(core) == [0]


def test_what_an_attempt_goes_on_from_is_journalled_whatever_is_received_meanwhile() -> None:
    core = held(restored())
    load(core)
    take_a_message(core)
    assert journalled(core) == [0, 1]


def test_the_next_version_is_free_of_messages_again() -> None:
    core = restored(())
    hear(core, plan(1, at(3, 0), prelude_length=0))
    load(core)
    take_a_message(core)
    reach = core.journalling.reach
    reach.begin_at(at(3, 4))  # a later one of the same version
    assert [reach.covers(at(3, 0)), reach.covers(at(4, 0))] == [True, False]
    reach.begin_at(at(4, 1))
    reach.begin_at(at(3, 0))  # of a version that is over
    assert [reach.covers(at(4, 0)), reach.covers(at(4, 1))] == [False, True]


def test_an_attempt_that_never_begins_is_not_awaited_for_ever() -> None:
    """Another process may have the rank, and the job be over: only the tracker knows."""
    core = held(restored())
    assert core.needs_tracker
    hear(core, AttemptBegun(2))
    assert not core.needs_tracker
