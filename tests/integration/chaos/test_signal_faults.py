"""Signals to processes some of which have just ended; the processes are played."""

import random
import signal
from dataclasses import dataclass, field
from typing import Any

import pytest

from ftcomm_chaos.faults.fault import TRACKER, Hit, NotDeliveredError, Target
from ftcomm_chaos.faults.signal_faults import SignalFault, TrackerDiskLost, TrackerKill


@dataclass(eq=False)
class ChildProcess:
    """A process that may have ended without our having seen it."""

    who: str
    ended: bool = False
    got: list[int] = field(default_factory=list)

    def signal(self, number: int) -> None:
        if self.ended:
            raise NotDeliveredError(f"{self.who} has ended")
        self.got.append(number)

    async def stopped(self) -> None:
        """It does."""

    async def gone(self) -> None:
        """It is."""


@dataclass
class Job:
    processes: dict[str, Any]
    seen_to_end: tuple[str, ...] = ()
    picked: set[str] = field(default_factory=set)

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(self.processes)

    def process(self, worker: str) -> Any:
        return None if worker in self.seen_to_end else self.processes[worker]


def job(*, ended: str = "") -> Any:
    return Job({worker: ChildProcess(worker, worker in ended) for worker in "012"})


@pytest.mark.trio
async def test_one_of_several_that_has_just_ended_is_passed_over_and_the_others_are_hit() -> None:
    there = job(ended="1")
    hit = await SignalFault(Target("all"), "SIGKILL").fire(there, random.Random(1))
    assert [process.who for process in hit.processes] == ["0", "2"]
    with pytest.raises(NotDeliveredError, match="all has ended"):
        await SignalFault(Target("all"), "SIGKILL").fire(job(ended="012"), random.Random(1))


def test_no_worker_is_picked_again_before_all_have_been() -> None:
    there, dice = job(), random.Random(0)
    rounds = [{Target("random").pick(there, dice) for _ in range(3)} for _ in range(4)]
    assert rounds == [{("0",), ("1",), ("2",)}] * 4
    there.seen_to_end = ("1",)
    assert {Target("random").pick(there, dice) for _ in range(2)} == {("0",), ("2",)}


@pytest.mark.trio
async def test_what_was_stopped_goes_on_though_one_of_them_has_ended() -> None:
    there, stop = job(), SignalFault(Target("all"), "SIGSTOP")
    await stop.fire(there, random.Random(1))
    there.processes["2"].ended = True
    await stop.undo(there)
    both = [signal.SIGSTOP, signal.SIGCONT]
    assert [process.got for process in there.processes.values()] == [both, both, [signal.SIGSTOP]]


def test_who_has_died_of_it_before_we_hear_of_it_is_hit_all_the_same() -> None:
    fault = SignalFault(Target("workers", ("1",)), "SIGKILL")
    process = job(ended="1").processes["1"]
    assert fault.happened(process) == Hit(("1",), fault.happened(process).what, (process,))


@pytest.mark.trio
async def test_a_lost_disk_of_the_tracker_is_told_from_a_kill() -> None:
    hits = []
    for kind in (TrackerKill, TrackerDiskLost):
        there = job()
        there.tracker, there.expect_rebuild = ChildProcess("tracker"), lambda: None
        there.is_whole = True
        hits.append(await kind(Target(TRACKER), "SIGKILL").fire(there, random.Random(1)))
    there.is_whole = False
    with pytest.raises(NotDeliveredError, match="is being replaced"):
        await TrackerDiskLost(Target(TRACKER), "SIGKILL").fire(there, random.Random(1))
    killed, lost = hits
    assert lost.what == f"{killed.what}, whose directory is removed"
    assert len(lost.processes) == 1
