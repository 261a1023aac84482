"""A process that no plan has named finds another job at its tracker's address: it is as if new."""

from typing import Any

import pytest

from ftcomm.protocol.durable.store_messages import Restore
from ftcomm.protocol.messages import Hello, Report, Revoke, Welcome
from ftcomm.protocol.spares.prefetch_messages import Prefetch
from ftcomm.recovery.archive.results import LogEntry
from ftcomm.recovery.events import (
    Attached,
    Detached,
    Effect,
    SendControl,
    StartPrefetch,
    StartRestore,
    VersionRestored,
)
from ftcomm.recovery.machine import Identity, MachineLimits, WorkerMachine, WorkerState
from tests.unit.recovery.worker_scenario import NONCE, SIG, at, hear


def said(effects: list[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, SendControl)]


def welcomed(core: WorkerMachine, job: str, tracker: bytes) -> Hello:
    [hello] = said(core.handle(Attached(), now=0.0))
    hear(core, Welcome(job, 1, 1, 2, 0, (), tracker))
    assert isinstance(hello, Hello)
    return hello


def restored() -> WorkerMachine:
    """A process of job old, which has read and reported checkpoint 5 and its prelude."""
    core = WorkerMachine(Identity("w0", NONCE, "h", "127.0.0.1", 1000), MachineLimits(), now=0.0)
    welcomed(core, "old.2", b"a")
    hear(core, Restore(7))
    hear(core, Revoke(3, "the group is complete"))
    prelude = tuple((at(-1, seqno), LogEntry(SIG, f"old {seqno}", 4)) for seqno in range(3))
    [report] = said(core.handle(VersionRestored(7, 5, "state", None, prelude, 3), now=0.0))
    assert (report.prelude_length, len(report.runs)) == (3, 1)
    core.handle(Detached("it is gone"), now=0.0)
    return core


# Of the same job too: what a tracker that is gone has begun of it counts no more.
OTHERS = pytest.mark.parametrize("job", ["new.1", "old.2"])


@OTHERS
def test_what_was_read_for_one_job_is_in_no_report_to_another(job: str) -> None:
    core = restored()
    welcomed(core, job, b"b")
    [report] = [each for each in said(hear(core, Revoke(3, "complete"))) if type(each) is Report]
    assert (report.committed, report.prelude_length) == (-1, -1)
    assert report.runs == ()


@OTHERS
def test_a_spare_of_another_job_has_had_no_rank_in_it(job: str) -> None:
    core = restored()
    welcomed(core, job, b"b")
    order = Prefetch(9, 1, "h", "127.0.0.1", 1001)
    assert hear(core, order) == [StartPrefetch(2, order)]
    core.handle(Detached("a link was lost"), now=0.0)
    assert welcomed(core, job, b"b").revoke_epoch == 0


def test_another_job_has_its_version_read_and_then_reported() -> None:
    core = restored()
    welcomed(core, "new.1", b"b")
    assert hear(core, Restore(7)) == [StartRestore(7)]
    assert said(core.handle(VersionRestored(7, 4, "state", None, (), 0), now=0.0)) == []
    assert core.view.state is WorkerState.DETACHED
    [report] = said(hear(core, Revoke(1, "the group is complete")))
    assert (report.epoch, report.committed, report.prelude_length) == (1, 4, 0)
