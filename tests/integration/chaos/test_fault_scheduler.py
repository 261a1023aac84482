"""Delivery of a plan's faults: on a simulated clock, to a recording job."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from ftcomm.diagnostics.fault_record import FaultRecord
from ftcomm_chaos.faults.fault import Hit, NotDeliveredError, Target
from ftcomm_chaos.faults.signal_faults import SignalFault
from ftcomm_chaos.runner.fault_plan import PlanEntry, check_plan
from ftcomm_chaos.runner.fault_scheduler import QUIESCENCE_LIMIT_S, FaultScheduler
from ftcomm_chaos.runner.output_parser import ParsedOutput
from ftcomm_chaos.runner.process_announcements import Fired

pytestmark = pytest.mark.trio
UNKNOWN = 1  # a process that is none of the job's


def fired(fault: str, pid: int) -> Fired:
    return Fired(FaultRecord(fault, pid, 2, pid, 1, 1, 4.5))


@dataclass
class Job:
    output: ParsedOutput = field(default_factory=lambda: ParsedOutput(formed=True, epoch=1))
    recorded: list[tuple[str, float]] = field(default_factory=list)
    changed: trio.Event = field(default_factory=trio.Event)
    may_come_again: bool = False
    workers: tuple[str, ...] = ("0", "1", "spare-0")

    @property
    def now(self) -> float:
        return round(trio.current_time(), 3)

    async def until(self, condition: Callable[[ParsedOutput], bool]) -> None:
        while not condition(self.output):
            await self.changed.wait()
            self.changed = trio.Event()

    def incarnation_of(self, record: FaultRecord) -> Any:
        return None if record.pid == UNKNOWN else SimpleNamespace(pid=record.pid)

    def time_of(self, record: FaultRecord) -> float:
        return record.at

    def record_fault(self, delivery: Any, seconds: float) -> None:
        self.recorded.append((delivery.kind, seconds))

    def expect_recovery(self, since_epoch: int) -> None:
        self.output.expecting = True


class Blow(SignalFault):
    """A fault that says when it came; every second one finds nobody if `shy`."""

    def __init__(self, job: Job, *, shy: bool = False) -> None:
        super().__init__(Target("random"), "SIGSTOP")
        self.job, self.shy = job, shy
        self.scenario: list[tuple[str, float]] = []

    async def fire(self, job: Any, dice: random.Random) -> Hit:
        self.scenario.append(("fire", self.job.now))
        if self.shy and len(self.scenario) % 2:
            raise NotDeliveredError("nobody is there")
        return Hit(("0",), "a blow")

    async def undo(self, job: Any) -> None:
        self.scenario.append(("undo", self.job.now))
        if self.shy:
            raise NotDeliveredError("nobody is left")

    def happened(self, process: Any) -> Hit:
        return Hit((str(process.pid),), "the library's own")


def planned(
    job: Job, entry: dict[str, Any], *, shy: bool = False
) -> tuple[FaultScheduler, PlanEntry, Blow]:
    (made,) = check_plan([{"kind": "sigstop", **entry}], 2)
    blow = Blow(job, shy=shy)
    object.__setattr__(made, "fault", blow)
    return FaultScheduler([made], seed=7, run=0, stop_after_s=100.0), made, blow


async def deliver(schedule: FaultScheduler, job: Job, seconds: float = 1000.0) -> None:
    with trio.move_on_after(seconds):
        await schedule.deliver(job)  # type: ignore[arg-type]  # what a schedule asks of a job


async def test_a_fault_comes_at_its_second_and_is_undone_after_its_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    job = Job()
    schedule, _, blow = planned(job, {"at": {"seconds": 3}, "for": 2})
    await deliver(schedule, job)
    assert blow.scenario == [("fire", 3.0), ("undo", 5.0)]
    assert [(d.at_s, d.until_s, d.failed) for d in schedule.deliveries] == [(3.0, 5.0, "")]
    assert (job.recorded, schedule.missed()) == ([("sigstop", 2.0)], [])


async def test_what_comes_again_and_again_stops_at_its_count_or_when_the_time_is_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times = []
    for at in ({"every": 2, "count": 3}, {"every": 2}):
        job = Job()
        schedule, _, _ = planned(job, {"at": at})
        began = job.now
        await deliver(schedule, job)
        times.append([delivery.at_s - began for delivery in schedule.deliveries])
    few, many = times
    pauses = [later - earlier for earlier, later in itertools.pairwise(many)]
    assert len(few) == 3
    assert 90 < many[-1] <= 100
    assert 1.0 <= min(pauses) < max(pauses) <= 3.001


async def test_a_recovery_is_waited_for_but_not_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    job = Job(ParsedOutput(formed=True, recovering=True))
    schedule, _, _ = planned(job, {"at": {"every": 2, "count": 1}})
    await deliver(schedule, job)
    assert schedule.deliveries[0].at_s > QUIESCENCE_LIMIT_S


async def test_a_fault_that_finds_nobody_is_tried_again_and_not_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    job = Job()
    schedule, entry, _ = planned(job, {"at": {"every": 2, "count": 2}}, shy=True)
    await deliver(schedule, job)
    assert [d.failed for d in schedule.deliveries] == ["nobody is there", "", "nobody is there", ""]
    once, entry, _ = planned(job, {"at": {"seconds": 1}}, shy=True)
    await deliver(once, job)
    assert once.missed() == [entry]


async def test_nothing_is_delivered_once_all_ranks_have_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    job = Job(ParsedOutput(formed=True, all_closed=True))
    once, entry, blow = planned(job, {"at": {"seconds": 3}})
    await deliver(once, job)
    again, _, _ = planned(job, {"at": {"every": 2}})
    await deliver(again, job)
    assert [delivery.failed for delivery in once.deliveries] == ["all ranks had closed"]
    assert (once.missed(), again.deliveries, blow.scenario) == ([entry], [], [])


@pytest.mark.parametrize("said", ["1.2.0.0@enter=stop", "0.2.0.0@enter=stop"])
async def test_a_fault_at_a_position_is_delivered_when_the_library_says_so(
    autojump_clock: trio.testing.MockClock, said: str
) -> None:
    job = Job()
    schedule, entry, blow = planned(job, {"at": {"position": "1.2.0.0@enter"}, "for": 1})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, schedule, job, 10.0)
        await trio.testing.wait_all_tasks_blocked()
        schedule.hear(fired(said, 100))
    reached = said.startswith("1")
    assert [d.what for d in schedule.deliveries] == ["the library's own"] * reached
    assert [what for what, _ in blow.scenario] == ["undo"] * reached
    assert schedule.missed() == [entry] * (not reached)


async def test_a_fault_of_which_no_process_is_known_is_not_delivered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    job = Job()
    schedule, entry, _ = planned(job, {"at": {"position": "1.2.0.0@enter"}}, shy=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, schedule, job, 10.0)
        await trio.testing.wait_all_tasks_blocked()
        schedule.hear(fired("1.2.0.0@enter=stop", UNKNOWN))
    assert [d.failed for d in schedule.deliveries] == ["process 1, which reached it, is unknown"]
    assert schedule.missed() == [entry]


async def test_what_cannot_be_undone_is_said_and_ends_no_session(
    autojump_clock: trio.testing.MockClock,
) -> None:
    job = Job()
    at = {"at": {"every": 2, "count": 1}, "for": 1}
    schedule, _, _ = planned(job, at, shy=True)
    await deliver(schedule, job)
    failed, done = schedule.deliveries
    assert (failed.failed, done.until_s) == ("nobody is there", None)
    assert done.what == "a blow, and could not be undone: nobody is left"
