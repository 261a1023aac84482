"""No wake-up is lost: the core's own code in every order that processors of this kind allow.

The core in Python stands for both, which have the same accesses in the same order.  It runs on the
model of `store_buffers`.  A system call is a fence there, as it is in the kernel.
"""

import importlib
import mmap

import pytest

from ftcomm.config.platforms import why_no_shared_memory
from ftcomm.core.segment import BELL_AT, RANK_BYTES, segment_bytes
from tests.helpers.store_buffers import Fence, NoFence, Processor, Words, every_order

if why_no_shared_memory() is not None:
    pytest.skip("no core in Python on this system", allow_module_level=True)
python_core = importlib.import_module("ftcomm.core.python_core")

SLEEPER, OTHER = 0, 1
BELLS = RANK_BYTES // 4
BELL = SLEEPER * BELLS + BELL_AT // 4
INTERRUPTED = 2 * BELLS  # a word that only the model has
WORDS = 2 * BELLS + 1  # of 4 bytes; a counter is where both views have no other word


class Slept(Exception):  # noqa: N818 - what happened, no error
    """The model's end of a sleep, at its beginning."""


class ModelCore(python_core.PythonCore):
    """A core whose interrupt is a word of the model."""

    @property
    def is_interrupted(self) -> bool:
        return bool(self._counters[INTERRUPTED])

    @is_interrupted.setter
    def is_interrupted(self, value: bool) -> None:
        if value:
            self._counters[INTERRUPTED] = 1


class Scenario:
    """Rank 0 sleeps unless it sees what another thread does, once: does it sleep for ever?"""

    def __init__(self, fence, act):
        self.fence, self.act = fence, act
        self.lost = self.slept = self.woken = self.late = 0

    def play(self, processor: Processor) -> None:
        self.processor, self.is_asleep = processor, False
        segment = mmap.mmap(-1, segment_bytes(2))
        cores = [ModelCore(segment, 2, rank) for rank in (SLEEPER, OTHER)]
        for who, core in enumerate(cores):
            core._bells = core._counters = Words(processor, who)
            fence = self.fence(processor, who)
            core._fence_in, core._fence_out = fence.acquire, fence.release
        outcomes = processor.run(
            [lambda: self.fall_asleep(cores[SLEEPER]), lambda: self.act(cores)]
        )
        assert outcomes == [None, None], outcomes
        self.lost += self.is_asleep

    def fall_asleep(self, core) -> None:
        try:
            core._sleep(OTHER * python_core._WORDS, 1)
        except Slept:
            self.slept += 1

    def futex_wait(self, _address: int, value: int) -> None:
        Fence(self.processor, SLEEPER).acquire()
        is_late = self.processor.memory[BELL] != value
        self.processor.seen[SLEEPER].append(is_late)
        if is_late:
            self.late += 1
            return
        self.is_asleep = True
        raise Slept

    def futex_wake(self, _address: int) -> None:
        Fence(self.processor, OTHER).acquire()
        self.processor.seen[OTHER].append(self.is_asleep)
        self.woken += self.is_asleep
        self.is_asleep = False


def publish(cores):
    cores[OTHER]._publish(python_core._READY, 1)


def interrupt(cores):
    cores[OTHER].rank = SLEEPER  # another thread of rank 0
    cores[OTHER].interrupt()


def run_all(monkeypatch, fence, act=publish):
    scenario = Scenario(fence, act)
    monkeypatch.setattr(python_core, "futex_wait", scenario.futex_wait)
    monkeypatch.setattr(python_core, "futex_wake", scenario.futex_wake)
    return scenario, every_order(scenario.play, WORDS)


@pytest.mark.parametrize("act", [publish, interrupt])
def test_who_sleeps_is_woken_in_every_order_of_loads_and_stores(monkeypatch, act):
    scenario, orders = run_all(monkeypatch, Fence, act)
    played = sum(1 for _ in orders)
    assert scenario.lost == 0
    assert min(scenario.woken, scenario.late, played - scenario.slept) > 0


def test_without_the_fences_a_wake_up_is_lost(monkeypatch):
    scenario, orders = run_all(monkeypatch, NoFence)
    assert any(scenario.lost for _ in orders)
