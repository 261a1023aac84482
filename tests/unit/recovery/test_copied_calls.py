"""Calls of which others keep each rank's result: what is held, asked for, and served (R20)."""

from dataclasses import dataclass
from typing import Any

from ftcomm.protocol.link_messages import MAX_COPIES, CopyName
from ftcomm.protocol.messages import FatalReport, Fetch, Fetched, Revoke
from ftcomm.protocol.position import Position, PositionRange
from ftcomm.protocol.signature import Kind, LogMode, Signature
from ftcomm.recovery.archive.archive import ResultCopy
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.contributions.contributed_calls import DIGEST_BYTES, Offer
from ftcomm.recovery.events import (
    Beat,
    CopyFetched,
    CopyLost,
    Effect,
    FetchCopies,
    FetchEnded,
    ResultFetched,
    SendControl,
    Wake,
)
from ftcomm.recovery.machine import Completion, MachineLimits, WorkerMachine, WorkerState
from tests.unit.recovery.worker_scenario import a_member, at, hear, members, plan

CALL = Signature(Kind.ALLTOALL, count=4, log=LogMode.COPIES).encode()
SITE = "t.py:7"
RANKS = 4  # with two replicas, 1 and 2 places behind each owner; rank 0 holds those of 3 and 2
P = at(0, 0)


@dataclass(frozen=True)
class Digests:
    """Log entry of the call."""

    digests: bytes


def digest(value: str) -> bytes:
    return value.encode().ljust(DIGEST_BYTES)


def result(rank: int, epoch: int = 1) -> ResultCopy:
    value = f"{rank} in {epoch}"
    return ResultCopy(epoch, digest(value), value)


def entry(epoch: int = 1) -> LogEntry:
    return LogEntry(CALL, Digests(b"".join(result(rank, epoch).digest for rank in range(RANKS))))


def grouped(*absent: int) -> dict[str, Any]:
    return {"members": members(*absent, count=RANKS), "grouping": (0,) * RANKS}


def of(owner: int, position: Position = P) -> CopyName:
    return CopyName(position, owner)


def loaded() -> WorkerMachine:
    core = a_member(**grouped())
    core.progress.begin_load(b"", SITE)
    assert core.progress.complete_load(1, "zero", b"", now=0.0) is Completion.DONE
    return core


def keep(core: WorkerMachine, owner: int, epoch: int) -> bool:
    copy = result(owner, epoch)
    return core.copied.keep(epoch, owner, copy.digest, copy.value)


def spread() -> WorkerMachine:
    """Rank 0, which holds what it should of a call, and has not passed the barrier."""
    core = loaded()
    core.progress.begin(CALL, SITE)
    assert all(keep(core, owner, 1) for owner in (0, 2, 3))
    return core


def executed() -> WorkerMachine:
    core = spread()
    outcome, _ = core.progress.complete(1, entry(), synchronising=True, now=0.0)
    assert outcome is Completion.DONE
    return core


def planned(core: WorkerMachine, epoch: int, *absent: int, calls: int = 1) -> list[Effect]:
    """A plan: others have completed `calls` calls, whose entries rank 1 sends."""
    hear(core, Revoke(epoch, "lost worker 0"))
    fetch = Fetch(1, PositionRange(0, 0, calls))
    return hear(core, plan(epoch, at(0, calls), fetches=(fetch,), **grouped(*absent)))


def fetched(core: WorkerMachine, epoch: int = 2, calls: int = 1) -> list[Effect]:
    """All entries have come: what follows."""
    for seqno in range(calls):
        value = entry().value
        core.handle(ResultFetched(epoch, at(0, seqno), CALL, value, 64), now=0.0)
    return core.handle(FetchEnded(epoch, 1), now=0.0)


def lagging(*absent: int) -> WorkerMachine:
    """Rank 0, restarted: the others have completed the call in epoch 1."""
    core = loaded()
    planned(core, 2, *absent)
    fetched(core)
    assert core.progress.begin(CALL, SITE) == LogEntry(CALL, entry().value, 64)
    return core


def take(core: WorkerMachine, owner: int, rank: int, epoch: int = 1) -> list[Effect]:
    return core.handle(CopyFetched(2, of(owner), rank, result(owner, epoch)), now=0.0)


def gone(core: WorkerMachine, owner: int, rank: int, now: float = 0.0) -> list[Effect]:
    return core.handle(CopyLost(2, of(owner), rank, "none", is_gone=True), now=now)


def said(effects: list[Any]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, SendControl)]


def test_a_result_is_served_to_its_owner_alone() -> None:
    core = executed()
    assert core.copied.offer(of(2), asker=2) == result(2)
    assert core.copied.offer(of(3), asker=3) == result(3)
    assert core.copied.offer(of(2), asker=3) is Offer.GONE
    assert core.copied.offer(of(1), asker=1) is Offer.GONE  # it holds none of that rank's


def test_an_owner_gives_its_own_result_to_a_holder_that_was_restarted() -> None:
    assert executed().copied.offer(of(0), asker=1) == result(0)
    assert lagging().copied.offer(of(0), asker=1) is Offer.NOT_YET


def test_a_new_execution_replaces_the_copies_of_an_older_one() -> None:
    core = spread()
    hear(core, Revoke(2, "lost worker 1"))
    assert not keep(core, 2, 1)  # of an epoch that is over
    hear(core, plan(2, P, **grouped()))
    assert keep(core, 2, 2)
    assert core.copied.offer(of(2), asker=2) == result(2, 2)
    assert core.copied.offer(of(3), asker=3) is Offer.GONE
    assert len(core.archive.copies) == 1


def test_copies_stay_until_their_version_commits() -> None:
    core = executed()
    core.progress.offer_checkpoint("one", b"d")
    _, released = core.progress.complete_checkpoint(1, now=0.0)
    assert released[1:] == ["0 in 1", "2 in 1", "3 in 1"]  # behind the entry
    assert core.copied.offer(of(2), asker=2) is Offer.GONE


def test_a_restarted_rank_has_caught_up_when_it_holds_its_result_and_those_of_others() -> None:
    core = loaded()
    planned(core, 2)
    assert fetched(core) == [
        FetchCopies(2, 1, (of(0),)),
        FetchCopies(2, 3, (of(3),)),
        FetchCopies(2, 2, (of(2),)),
    ]
    core.progress.begin(CALL, SITE)
    assert core.copied.own() is None
    assert core.copied.replay(now=0.0) is Completion.REVOKED
    assert take(core, 0, 1) == [Wake()]
    assert core.copied.own() == "0 in 1"
    assert take(core, 3, 3) == [Wake()]
    assert core.view.state is WorkerState.CATCHING_UP
    assert said(take(core, 2, 2)) == [Fetched(2)]
    assert core.view.state is WorkerState.RUNNING
    assert core.copied.replay(now=0.0) is Completion.DONE
    assert core.progress.position == at(0, 1)
    assert core.copied.offer(of(3), asker=3) == result(3)


def test_a_rank_that_was_cut_off_before_the_end_uses_what_it_holds() -> None:
    core = spread()
    planned(core, 2)
    assert said(fetched(core)) == [Fetched(2)]
    core.progress.begin(CALL, SITE)
    assert core.copied.own() == "0 in 1"


def test_what_is_held_of_another_execution_is_neither_used_nor_given() -> None:
    core = loaded()
    core.progress.begin(CALL, SITE)
    old = result(0, 9)
    assert core.copied.keep(1, 0, old.digest, old.value)
    planned(core, 2)
    fetched(core)
    core.progress.begin(CALL, SITE)
    assert core.copied.own() is None
    assert core.copied.offer(of(0), asker=1) is Offer.NOT_YET


def test_a_holder_that_has_none_is_passed_over() -> None:
    core = lagging()
    # Rank 2 is asked although it has not answered for its own result yet: it may lack that.
    assert gone(core, 0, 1) == [FetchCopies(2, 2, (of(0),)), Wake()]
    assert gone(core, 0, 1) == []  # not asked any more
    assert take(core, 2, 2) == [Wake()]
    assert take(core, 0, 2) == [Wake()]
    core.progress.begin(CALL, SITE)
    assert core.copied.own() == "0 in 1"


def test_a_copy_of_another_execution_is_as_good_as_none() -> None:
    core = lagging()
    take(core, 2, 2)
    assert take(core, 0, 1, epoch=5) == [FetchCopies(2, 2, (of(0),)), Wake()]
    assert core.archive.copies.get(of(0).position, 0) is None


def test_a_result_that_all_holders_have_lost_ends_the_job() -> None:
    core = lagging()
    take(core, 2, 2)
    gone(core, 0, 1)
    (report,) = said(gone(core, 0, 2))
    assert isinstance(report, FatalReport)
    assert (report.error, report.position) == ("JobLostError", P)
    assert "the result of rank 0 of alltoall(log=copies) at position 0.0 is lost" in report.cause
    assert "raise --replicas, which is 2" in report.cause


def test_a_holder_that_is_away_is_waited_for_before_the_job_is_lost() -> None:
    core = lagging(2)
    assert gone(core, 0, 1, now=1.0) == [Wake()]
    patience = MachineLimits().reattach_within
    beats = [core.handle(Beat(), now=now) for now in (1.0 + patience - 0.1, 1.0 + patience)]
    assert [isinstance(said(beat)[0], FatalReport) for beat in beats] == [False, True]


def test_nobody_is_asked_for_the_result_of_a_rank_that_has_closed() -> None:
    core = loaded()
    planned(core, 2, 3)
    assert fetched(core) == [FetchCopies(2, 1, (of(0),)), FetchCopies(2, 2, (of(2),))]
    take(core, 0, 1)
    assert said(take(core, 2, 2)) == [Fetched(2)]


def test_an_owner_without_its_own_result_keeps_nobody_back() -> None:
    core = lagging()
    take(core, 0, 1)
    take(core, 2, 2)
    assert said(gone(core, 3, 3)) == [Fetched(2)]


def test_a_link_that_fails_is_suspected_and_the_next_epoch_asks_anew() -> None:
    core = lagging()
    core.handle(CopyLost(2, of(0), 1, "reset"), now=0.0)
    assert core.view.suspects == (1,)
    hear(core, Revoke(3, "lost worker 1"))
    effects = hear(core, plan(3, at(0, 1), **grouped()))  # it has all entries
    assert FetchCopies(3, 1, (of(0),)) in effects
    assert core.view.state is WorkerState.CATCHING_UP
    assert take(core, 0, 1) == []  # of the older epoch
    assert core.copied.own() is None


def test_nothing_is_taken_of_an_epoch_that_was_revoked() -> None:
    core = lagging()
    hear(core, Revoke(3, "lost worker 1"))
    assert take(core, 0, 1) == []
    assert len(core.archive.copies) == 0


def test_a_rank_is_asked_for_as_many_as_a_request_names_and_then_for_more() -> None:
    core, calls = loaded(), MAX_COPIES + 1
    planned(core, 2, calls=calls)
    orders = fetched(core, calls=calls)
    named = [at(0, seqno) for seqno in range(MAX_COPIES)]
    assert FetchCopies(2, 3, tuple(of(3, position) for position in named)) in orders
    for position in named:
        follows = core.handle(CopyFetched(2, of(3, position), 3, result(3)), now=0.0)
    assert FetchCopies(2, 3, (of(3, at(0, MAX_COPIES)),)) in follows
