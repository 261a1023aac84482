"""Scenarios of a spare: what it fetches in advance, keeps and says."""

from typing import Any

import pytest

from ftcomm.protocol.messages import LocalStates, Report, Revoke, Welcome
from ftcomm.protocol.spares.prefetch_messages import Prefetch, Prefetched
from ftcomm.recovery.events import (
    Attached,
    Detached,
    Effect,
    PrefetchEnded,
    SendControl,
    StartPrefetch,
)
from ftcomm.recovery.machine import Identity, MachineLimits, WorkerMachine
from tests.unit.recovery.worker_scenario import NONCE, at, hear, plan


def a_spare() -> WorkerMachine:
    core = WorkerMachine(Identity("s", NONCE, "h", "127.0.0.1", 1000), MachineLimits(), now=0.0)
    core.handle(Attached(), now=0.0)
    hear(core, Welcome("job.1", 1, 1, 2, 0, ()))
    return core


def order(version: int) -> Prefetch:
    return Prefetch(version, 0, "h", "127.0.0.1", 7)


def said(effects: list[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, SendControl)]


def fetched(core: WorkerMachine, version: int, value: str | None = "state") -> list[Any]:
    [start] = hear(core, order(version))
    assert isinstance(start, StartPrefetch)
    assert start.order == order(version)
    return said(core.handle(PrefetchEnded(start.number, version, value, 5), now=0.0))


def committed_in_report(core: WorkerMachine) -> int:
    [found] = [m for m in said(hear(core, Revoke(2, "lost"))) if isinstance(m, Report)]
    version: int = found.committed
    return version


def test_the_report_of_a_spare_says_which_checkpoint_it_has() -> None:
    core = a_spare()
    assert fetched(core, 3) == [Prefetched(3, 5)]
    assert committed_in_report(core) == 3


def test_a_plan_at_that_version_has_nothing_to_fetch() -> None:
    core = a_spare()
    fetched(core, 3)
    hear(core, Revoke(2, "lost"))
    hear(core, plan(2, at(3, 0)))
    held = core.archive.loadable(3, 0)
    assert (core.view.is_live, held and held.value) == (True, "state")


def test_one_fetch_at_a_time_and_only_of_a_newer_version() -> None:
    core = a_spare()
    assert hear(core, order(3)) == [StartPrefetch(1, order(3))]
    assert hear(core, order(4)) == []
    core.handle(PrefetchEnded(1, 3, "state", 5), now=0.0)
    assert said(hear(core, order(3))) == [Prefetched(3, 5)]


def test_a_fetch_that_brought_nothing_leaves_what_was_held() -> None:
    core = a_spare()
    fetched(core, 3)
    assert fetched(core, 4, None) == [Prefetched(3, 5)]
    assert committed_in_report(core) == 3


def test_what_comes_after_the_report_is_dropped() -> None:
    """The plan that follows relies on the report."""
    core = a_spare()
    hear(core, order(3))
    hear(core, Revoke(2, "lost"))
    core.handle(PrefetchEnded(1, 3, "state", 5), now=0.0)
    assert core.archive.committed is None


def test_a_spare_that_has_got_a_rank_fetches_nothing() -> None:
    core = a_spare()
    hear(core, Revoke(2, "lost"))
    assert said(hear(core, order(3))) == [Prefetched(-1, 0)]


def again(core: WorkerMachine, job: str) -> list[Any]:
    core.handle(Detached("gone"), now=0.0)
    core.handle(Attached(), now=0.0)
    return said(hear(core, Welcome(job, 1, 1, 2, 0, ())))


@pytest.mark.parametrize(("job", "held"), [("job.1", 3), ("job.2", -1)])
def test_a_checkpoint_belongs_to_its_attempt(job: str, held: int) -> None:
    core = a_spare()
    fetched(core, 3)
    assert again(core, job) == ([Prefetched(3, 5)] if held == 3 else [])
    assert committed_in_report(core) == held


def test_what_an_earlier_attempt_has_ordered_is_dropped() -> None:
    core = a_spare()
    hear(core, order(3))
    again(core, "job.2")
    hear(core, order(2))
    assert core.handle(PrefetchEnded(1, 3, "state", 5), now=0.0) == []
    assert core.archive.committed is None


def test_a_plan_hears_that_the_version_has_local_states() -> None:
    """It must not load the version without them, if all their holders have died."""
    core = a_spare()
    hear(core, order(3))
    core.handle(PrefetchEnded(1, 3, "state", 5, has_locals=True), now=0.0)
    [found] = [m for m in said(hear(core, Revoke(2, "lost"))) if isinstance(m, Report)]
    assert found.locals == (LocalStates(3, ()),)
