"""Calls of which each rank keeps its own input: what is logged, asked for, and served (R20)."""

from dataclasses import dataclass, replace
from typing import Any

from ftcomm.protocol.messages import FatalReport, Fetch, Revoke
from ftcomm.protocol.position import PositionRange
from ftcomm.protocol.signature import Kind, LogMode, Signature
from ftcomm.recovery.archive.archive import Contribution
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.contributions.contributed_calls import DIGEST_BYTES, Offer
from ftcomm.recovery.events import (
    Beat,
    FetchParts,
    LinkDown,
    PartFetched,
    PartLost,
    PartsWanted,
    ResultFetched,
    SendControl,
    Wake,
)
from ftcomm.recovery.machine import Completion, NextStep, WorkerMachine
from tests.unit.recovery.worker_scenario import a_member, at, hear, members, plan

CALL = Signature(Kind.ALLTOALL, count=2, log=LogMode.CONTRIBUTIONS).encode()
SITE = "t.py:7"


@dataclass(frozen=True)
class Digests:
    """Log entry of the call."""

    digests: bytes


def digest(name: str) -> bytes:
    return name.encode().ljust(DIGEST_BYTES)


def given(name: str) -> Contribution:
    return Contribution(CALL, digest(name), f"input {name}")


def of_all(*names: str) -> LogEntry:
    return LogEntry(CALL, Digests(b"".join(map(digest, names))))


def loaded(**changes: Any) -> WorkerMachine:
    core = a_member(**changes)
    core.progress.begin_load(b"", SITE)
    assert core.progress.complete_load(1, "zero", b"", now=0.0) is Completion.DONE
    return core


def lagging(mine: str = "a") -> WorkerMachine:
    """A rank at 0.0 which others have completed with the inputs a and b; it gives `mine`."""
    core = loaded()
    hear(core, Revoke(2, "lost worker 1"))
    hear(core, plan(2, at(0, 1), fetches=()))
    core.log.add(at(0, 0), replace(of_all("a", "b"), site="theirs.py:5"))
    assert isinstance(core.progress.begin(CALL, SITE), LogEntry)
    core.contributed.contribute(given(mine))
    return core


def said(effects: list[Any]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, SendControl)]


def test_an_input_is_logged_before_the_call_is_executed_and_offered_at_once() -> None:
    core = loaded()
    assert core.contributed.offer(at(0, 0)) is Offer.NOT_YET
    assert core.progress.begin(CALL, SITE) is NextStep.EXECUTE
    assert core.contributed.contribute(given("a"))
    assert core.contributed.offer(at(0, 0)) == given("a")


def test_an_input_stays_until_its_version_commits() -> None:
    core = loaded()
    core.progress.begin(CALL, SITE)
    core.contributed.contribute(given("a"))
    outcome, _ = core.progress.complete(1, of_all("a", "b"), synchronising=True, now=0.0)
    assert outcome is Completion.DONE
    assert core.contributed.offer(at(0, 0)) == given("a")
    core.progress.offer_checkpoint("one", b"d")
    _, released = core.progress.complete_checkpoint(1, now=0.0)
    assert "input a" in released
    assert core.contributed.offer(at(0, 0)) is Offer.GONE


def test_a_rank_that_lags_asks_each_other_for_its_part_once_and_replays_with_them() -> None:
    core = lagging()
    assert core.handle(PartsWanted(), now=0.0) == [FetchParts(2, at(0, 0), (1,))]
    assert core.handle(PartsWanted(), now=0.0) == []
    assert core.contributed.replay(now=0.0) is Completion.REVOKED  # nothing is here yet
    assert core.handle(PartFetched(2, at(0, 0), 1, "for 0"), now=0.0) == [Wake()]
    assert core.contributed.parts() == {1: "for 0"}
    assert core.contributed.replay(now=0.0) is Completion.DONE
    assert core.progress.position == at(0, 1)


def test_another_input_than_the_earlier_process_gave_is_not_logged_and_ends_the_job() -> None:
    core = lagging(mine="other")
    assert not core.contributed.contribute(given("other"))
    assert core.contributed.offer(at(0, 0)) is Offer.NOT_YET
    (report,) = said(core.handle(core.contributed.differs(), now=0.0))
    assert isinstance(report, FatalReport)
    assert (report.error, report.position) == ("JobLostError", at(0, 0))
    assert f"rank 0 gave other bytes to the call at {SITE} than before" in report.cause
    assert "(position 0.0, which others made at theirs.py:5)" in report.cause
    assert "use log='copies'" in report.cause


def test_parts_of_an_older_epoch_count_no_more() -> None:
    """If all that had completed the call are lost, it is made of other inputs."""
    core = lagging()
    core.handle(PartsWanted(), now=0.0)
    core.handle(PartFetched(2, at(0, 0), 1, "old"), now=0.0)
    hear(core, Revoke(3, "lost worker 1 again"))
    assert core.contributed.replay(now=0.0) is Completion.REVOKED
    hear(core, plan(3, at(0, 1)))
    assert core.contributed.parts() is None
    assert core.handle(PartFetched(2, at(0, 0), 1, "late"), now=0.0) == []
    assert core.handle(PartsWanted(), now=0.0) == [FetchParts(3, at(0, 0), (1,))]


def test_a_part_that_was_not_asked_for_is_dropped() -> None:
    core = lagging()
    assert core.handle(PartFetched(2, at(0, 0), 1, "early"), now=0.0) == []
    core.handle(PartsWanted(), now=0.0)
    assert core.handle(PartFetched(2, at(0, 5), 1, "of another call"), now=0.0) == []
    assert core.contributed.parts() is None


def test_a_link_that_breaks_is_suspected_like_any_other() -> None:
    core = lagging()
    core.handle(PartsWanted(), now=0.0)
    (suspect, _) = core.handle(PartLost(2, at(0, 0), 1, "reset"), now=0.0)
    assert said([suspect])[0].ranks == (1,)
    assert core.handle(LinkDown(2, 1, "reset"), now=0.0) == []  # it is known


def test_a_part_that_its_rank_holds_no_more_ends_the_job() -> None:
    core = lagging()
    core.handle(PartsWanted(), now=0.0)
    lost = PartLost(2, at(0, 0), 1, Offer.GONE.value, is_gone=True)
    (report,) = said(core.handle(lost, now=0.0))
    assert (report.error, report.position) == ("JobLostError", at(0, 0))
    assert "rank 1 has no part of call 0.0 to give" in report.cause
    assert core.view.suspects == ()  # its link is good


def test_a_rank_that_closed_and_stays_away_ends_the_job_after_a_while() -> None:
    core = lagging()
    hear(core, Revoke(3, "lost worker 1"))
    hear(core, plan(3, at(0, 1), members=members(1)))
    patience = core.contact.limits.reattach_within
    assert core.handle(PartsWanted(), now=0.0) == []  # nobody is there to be asked
    assert [type(m).__name__ for m in said(core.handle(Beat(), now=patience / 2))] == ["Heartbeat"]
    report, _ = said(core.handle(Beat(), now=patience))
    assert isinstance(report, FatalReport)
    assert "rank 1 (worker w1) has closed and is gone, and with it its input" in report.cause


def test_a_closed_rank_is_awaited_from_when_it_is_away_and_not_its_input() -> None:
    core = lagging()
    core.handle(PartsWanted(), now=0.0)  # rank 1 was restarted, and has not come as far
    patience = core.contact.limits.reattach_within

    def ends_at(now: float) -> bool:
        return any(type(each) is FatalReport for each in said(core.handle(Beat(), now=now)))

    for epoch, absent in ((3, (1,)), (4, (1,)), (5, ()), (6, (1,))):  # each half as long as it has
        begun = epoch * patience / 2
        hear(core, Revoke(epoch, "a link was lost"), now=begun)
        hear(core, plan(epoch, at(0, 1), members=members(*absent)), now=begun)
        core.handle(PartsWanted(), now=begun)
        assert not ends_at(begun + 0.4 * patience)
    assert not ends_at(begun + 0.9 * patience)
    assert ends_at(begun + patience)


def test_the_digests_are_fetched_like_any_result() -> None:
    core = loaded()
    hear(core, Revoke(2, "lost worker 1"))
    hear(core, plan(2, at(0, 1), fetches=(Fetch(1, PositionRange(0, 0, 1)),)))
    assert core.progress.begin(CALL, SITE) is NextStep.WAIT
    fetched = ResultFetched(2, at(0, 0), CALL, Digests(digest("a") + digest("b")))
    assert core.handle(fetched, now=0.0) == [Wake()]
    assert core.progress.begin(CALL, SITE) == of_all("a", "b")
    assert core.contributed.contribute(given("a"))
