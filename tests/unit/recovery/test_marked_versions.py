"""Marked versions at a worker: held until the store has them, whatever is committed meanwhile."""

from dataclasses import replace
from typing import Any

from ftcomm import errors
from ftcomm.protocol.durable.store_messages import (
    Marked,
    MarkVersion,
    NextDigest,
    ObjectOrder,
    ObjectWritten,
    Restore,
    VersionDurable,
    VersionGivenUp,
    WriteFailed,
    WriteObjects,
)
from ftcomm.protocol.messages import (
    Blocked,
    FatalReport,
    Heartbeat,
    Report,
    Revoke,
    Welcome,
)
from ftcomm.protocol.position import PositionRange
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import (
    Attached,
    Beat,
    CheckpointCommitted,
    Detached,
    Effect,
    FatalFound,
    ObjectFailed,
    ObjectStored,
    ObjectWrite,
    PackVersion,
    SendControl,
    StartRestore,
    VersionPacked,
    VersionRestored,
    Wake,
    WriteVersion,
)
from ftcomm.recovery.machine import Completion, Identity, MachineLimits, WorkerMachine
from ftcomm.recovery.recent_calls import NO_CALL, Called
from tests.unit.recovery.worker_scenario import NONCE, SIG, a_member, at, hear, plan

STATE = ObjectOrder("state", -1, 0, 9)
OWN = ObjectOrder("local", 0)
WRITTEN = ObjectWritten(1, STATE, "name", 9, b"x", b"d")


def sent(effects: list[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, SendControl)]


def loaded() -> WorkerMachine:
    core = a_member()
    assert core.progress.complete_load(1, "zero", b"", now=0.0) is Completion.DONE
    return core


def commit(core: WorkerMachine, *, mark: bool = True) -> list[Effect]:
    version = core.progress.position.version + 1
    core.progress.offer_checkpoint(f"state {version}", b"d", f"own {version}")
    assert core.progress.complete_checkpoint(1, now=0.0)[0] is Completion.DONE
    return core.handle(CheckpointCommitted(mark), now=0.0)


def pack(core: WorkerMachine, version: int) -> list[Any]:
    return sent(core.handle(VersionPacked(version, f"packed {version}", 9, b"d"), now=0.0))


def test_a_marked_version_is_packed_and_reported() -> None:
    core = loaded()
    assert commit(core) == [PackVersion(1, "state 1", b"d")]
    assert core.durables.must_pack(1)
    assert pack(core, 1) == [Marked(1, b"d", 9, (0,), (), 0)]
    assert not core.durables.must_pack(1)


def test_a_version_that_cannot_be_packed_is_given_up_here_and_nobody_waits_for_it() -> None:
    core = loaded()
    commit(core)
    effects = core.handle(ObjectFailed(1, "no memory is left"), now=0.0)
    assert effects == [SendControl(WriteFailed(1, False, "no memory is left")), Wake()]
    assert (core.durables.must_pack(1), core.durables.is_idle) == (False, True)


def test_what_could_not_be_packed_is_told_to_each_tracker_until_it_is_settled() -> None:
    """The last one may have ended before all ranks had told it."""
    core = loaded()
    commit(core)
    core.handle(ObjectFailed(1, "no memory is left"), now=0.0)
    failed = WriteFailed(1, False, "no memory is left")
    core.handle(Attached(), now=0.0)
    assert sent(hear(core, Welcome("job", 2, 1, 2, 1, ())))[-1] == failed
    hear(core, VersionGivenUp(1, "no rank can write it"))
    core.handle(Attached(), now=0.0)
    assert failed not in sent(hear(core, Welcome("job", 3, 1, 2, 1, ())))


def test_a_packed_version_is_held_though_an_object_of_it_could_not_be_written() -> None:
    core = loaded()
    commit(core)
    pack(core, 1)
    failed = core.handle(ObjectFailed(1, "the disk is full", unusable=True), now=0.0)
    assert failed == [SendControl(WriteFailed(1, True, "the disk is full", True))]
    assert core.durables.awaits(1)


def test_what_is_ordered_is_written_though_a_later_version_is_committed() -> None:
    core = loaded()
    commit(core)
    pack(core, 1)
    commit(core, mark=False)
    (write,) = hear(core, WriteObjects(1, 1, 7, (STATE, OWN)))
    writes = (ObjectWrite(STATE, "packed 1"), ObjectWrite(OWN, "own 1"))
    assert write == WriteVersion(1, 1, 7, 9, b"d", writes)
    assert sent(core.handle(ObjectStored(WRITTEN), now=0.0)) == [WRITTEN]


def test_every_welcome_is_answered_with_what_can_be_and_is_written() -> None:
    core = loaded()
    commit(core)
    said = pack(core, 1)
    hear(core, WriteObjects(1, 1, 7, (STATE,)))
    core.handle(ObjectStored(WRITTEN), now=0.0)
    core.handle(Attached(), now=0.0)
    assert sent(hear(core, Welcome("job", 2, 1, 2, 1, ())))[-2:] == [*said, WRITTEN]


def test_it_is_held_until_it_is_durable_or_given_up() -> None:
    core = loaded()
    commit(core)
    commit(core)
    hear(core, VersionGivenUp(1, "newer"))
    assert list(core.durables.held) == [2]
    hear(core, VersionDurable(1, 2))
    assert (core.durables.is_idle, core.durables.durable) == (True, 2)
    failed = WriteFailed(1, False, "checkpoint 1 is not held here")
    assert sent(hear(core, WriteObjects(1, 1, 7, (STATE,)))) == [failed]


def test_a_result_of_the_prelude_that_was_dropped_meanwhile_is_not_written() -> None:
    """Others keep it: the tracker is told first what is held now, and asks them."""
    core = loaded()
    core.log.set_keeping(1, 2)
    core.log.add(at(-1, 0), LogEntry(SIG, "result"))
    core.log.pin()  # until a plan is settled, as a report has listed it
    commit(core)
    (marked,) = pack(core, 1)
    assert marked.prelude == (PositionRange(-1, 0, 1, 1),)
    assert core.log.unpin() == ["result"]
    order = WriteObjects(1, 1, 7, (STATE,), marked.prelude)
    failed = WriteFailed(1, True, "result -1.0 is not held here any more")
    assert sent(hear(core, order)) == [replace(marked, prelude=()), failed]


def test_no_more_than_two_are_held_and_the_one_being_written_stays() -> None:
    core = loaded()
    commit(core)
    pack(core, 1)
    hear(core, WriteObjects(1, 1, 7, (STATE,)))
    commit(core)
    commit(core)
    assert list(core.durables.held) == [1, 3]


def test_who_restores_reports_when_everything_is_read() -> None:
    core = WorkerMachine(Identity("w0", NONCE, "h", "a", 1), MachineLimits(), now=0.0)
    core.handle(Attached(), now=0.0)
    hear(core, Welcome("job.2", 1, 1, 2, 0, ()))
    assert hear(core, Restore(5)) == [StartRestore(5)]
    assert sent(hear(core, Revoke(1, "the group is complete"))) == []
    entry = LogEntry(SIG, "result")
    read = VersionRestored(5, 4, "state", {0: "own", 1: "other"}, ((at(-1, 0), entry),), 1)
    (report,) = sent(core.handle(read, now=0.0))
    assert isinstance(report, Report)
    assert (report.committed, report.prelude_length, report.position) == (4, 1, at(-1, 0))
    assert report.runs == (PositionRange(-1, 0, 1),)
    assert [(held.version, held.ranks) for held in report.locals] == [(4, (0, 1))]


def test_what_was_durable_in_an_earlier_attempt_is_made_durable_again() -> None:
    """Version 2 of attempt 1 was damaged: attempt 2 goes on from version 1."""
    core = WorkerMachine(Identity("w0", NONCE, "h", "a", 1), MachineLimits(), now=0.0)
    core.handle(Attached(), now=0.0)
    hear(core, Welcome("job.1", 1, 1, 2, 0, ()))
    hear(core, VersionDurable(1, 2))
    hear(core, VersionGivenUp(3, "the store is full"))
    assert core.durables.durable == 2
    hear(core, Welcome("job.2", 2, 1, 2, 0, ()))
    hear(core, VersionDurable(2, 1))
    assert core.durables.durable == 1
    assert core.durables.await_record(3, Called(SIG, "here"), 0.0) is None


def test_the_last_version_is_marked_as_the_tracker_orders() -> None:
    core = loaded()
    commit(core, mark=False)
    ordered = hear(core, MarkVersion(1))
    assert [effect.version for effect in ordered if isinstance(effect, PackVersion)] == [1]
    assert [m.version for m in pack(core, 1)] == [1]
    assert hear(core, MarkVersion(1)) == []  # it is held


def test_who_does_not_hold_the_last_version_says_so() -> None:
    core = loaded()
    failed = WriteFailed(4, False, "checkpoint 4 is not committed here")
    assert sent(hear(core, MarkVersion(4))) == [failed]


def test_a_spare_says_how_long_the_prelude_is_once_a_plan_has_told_it() -> None:
    """The tracker may order a last will before that, and die before it has ended the job."""
    core = WorkerMachine(Identity("s0", NONCE, "h", "a", 1), MachineLimits(), now=0.0)
    core.handle(Attached(), now=0.0)
    hear(core, Welcome("job", 1, 1, 2, 0, ()))
    core.archive.put_fetched(1, "state 1")  # in advance
    hear(core, Revoke(2, "lost w0"))
    hear(core, MarkVersion(1))
    assert [said.prelude_length for said in pack(core, 1)] == [-1]
    hear(core, plan(2, at(1, 0), prelude_length=3))
    core.handle(Detached("connection reset"), now=0.0)
    core.handle(Attached(), now=0.0)
    welcomed = sent(hear(core, Welcome("job", 2, 1, 2, 2, ())))
    assert [said.prelude_length for said in welcomed if isinstance(said, Marked)] == [3]


def ends_without_a_tracker(core: WorkerMachine) -> bool:
    """Hear nothing for twice as long as a worker waits for its tracker."""
    core.handle(Detached("connection reset"), now=0.0)
    for second in range(2 * int(core.contact.limits.tracker_timeout)):
        core.handle(Beat((), 0), now=float(second))
    return isinstance(core.view.error, errors.TrackerLostError)


def test_a_rank_that_waits_for_a_record_does_not_wait_for_ever() -> None:
    """The others may have ended the job; with the record here it computes without a tracker."""
    waiting, going_on = loaded(), loaded()
    for core in (waiting, going_on):
        commit(core)
        core.durables.awaited = 1
    hear(going_on, VersionDurable(1, 1))
    assert [ends_without_a_tracker(core) for core in (waiting, going_on)] == [True, False]


def test_a_rank_that_waits_for_a_record_names_its_call_and_no_rank() -> None:
    core = loaded()
    commit(core)
    core.durables.await_record(1, Called(SIG, "t.py:8"), now=2.0)
    seen = [core.durables.waited_s(5.0)]
    assert sent(core.handle(Beat(record_ms=3000), now=5.0)) == [
        Heartbeat(1, 1, at(1, 0), Blocked(SIG, "t.py:8", (), 3000))
    ]
    core.durables.awaited_by = NO_CALL  # its call was cut short, or has returned
    seen.append(core.durables.waited_s(5.0))
    assert sent(core.handle(Beat(record_ms=3000), now=5.0)) == [Heartbeat(2, 1, at(1, 0))]
    core.durables.await_record(1, Called(SIG, "t.py:9"), now=2.0)
    hear(core, VersionDurable(1, 1))
    assert [*seen, core.durables.waited_s(5.0)] == [3.0, 0.0, 0.0]


def test_a_record_that_will_not_come_ends_the_job_of_who_waits_for_it() -> None:
    """All ranks wait for it, so no later version could take its place."""
    waiting, going_on = loaded(), loaded()
    for core in (waiting, going_on):
        commit(core)
    waiting.durables.awaited = 1
    given_up = VersionGivenUp(1, "the local state of rank 1 is held by no member")
    said = [sent(hear(core, given_up)) for core in (waiting, going_on)]
    cause = "checkpoint 1 cannot be made durable: the local state of rank 1 is held by no member"
    assert said == [[FatalReport(1, at(1, 0), "JobLostError", cause)], []]


def test_a_record_that_was_given_up_before_its_wait_began_ends_the_job_too() -> None:
    """Each rank may have packed an older version meanwhile, and none would wait when it is told."""
    core = loaded()
    commit(core)
    hear(core, VersionGivenUp(1, "the ranks have packed different states"))
    cause = "checkpoint 1 cannot be made durable: the ranks have packed different states"
    call = Called(SIG, "t.py:8")
    assert core.durables.await_record(1, call, now=2.0) == FatalFound("JobLostError", cause)
    commit(core)
    assert core.durables.await_record(2, call, now=3.0) is None


def next_digests(effects: list[Effect]) -> list[NextDigest]:
    return [said for said in sent(effects) if isinstance(said, NextDigest)]


def test_the_digest_behind_a_version_for_the_store_is_told_once() -> None:
    """A later attempt that goes on from that version has to commit the same."""
    core = loaded()
    assert next_digests(commit(core, mark=False)) == []  # nothing of version 0 is in the store
    assert next_digests(commit(core)) == []
    told = [next_digests(commit(core, mark=False)) for _ in range(2)]
    assert told == [[NextDigest(3, b"d")], []]
    hear(core, VersionDurable(1, 4))
    assert next_digests(commit(core, mark=False)) == [NextDigest(5, b"d")]
    core.handle(Attached(), now=0.0)
    assert NextDigest(5, b"d") in sent(hear(core, Welcome("job", 2, 1, 2, 1, ())))


def test_the_digest_behind_a_copied_call_is_not_told() -> None:
    """After a loss of everything the script may compute something else, as after a restart."""
    core = loaded()
    commit(core)
    core.copied.keep(1, 0, b"digest", "result")
    assert next_digests(commit(core)) == []
    assert next_digests(hear(core, VersionDurable(1, 1))) == []
    assert next_digests(commit(core, mark=False)) == [NextDigest(3, b"d")]


def test_the_digest_of_a_lazy_version_is_not_told() -> None:
    """Nothing of it was compared: the digest is zeros."""
    core = loaded()
    commit(core)
    core.progress.offer_checkpoint("lazy", bytes(16), "own")
    core.progress.complete_checkpoint(1, now=0.0)
    assert not core.durables.must_tell_next
    assert next_digests(core.handle(CheckpointCommitted(True), now=0.0)) == []
