"""No wake-up is lost: the links' own code in every order that processors of this kind allow.

Two threads run the code of both ends on the model of `store_buffers`.  What is wanted: nobody
sleeps, with no bell on its way, while there is something to do.
"""

import os
from typing import Any

import pytest
import ranks_in_threads as harness

from ftcomm.transport import shm_link
from ftcomm.transport.shm_layout import WORDS_BYTES
from ftcomm.transport.shm_link import SharedLink
from tests.helpers.store_buffers import Fence, NoFence, Processor, Words, every_order

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="no memfd_create on this system"
)
RING = 4096


class ScenarioRun:
    """One end wants something, the other gives it, once: does the first sleep for ever?"""

    def __init__(self, fence: type[Fence], *, writing: bool) -> None:
        self.fence, self.writing = fence, writing
        self.lost = self.slept = self.rung = self.played = 0

    def play(self, processor: Processor) -> None:
        near, far = harness.shared_pair(RING)
        if self.writing:
            near.sendmsg((bytes(RING),), (), 0)
            processor.memory[:] = near._counters
        for who, link in enumerate((near, far)):
            faked: Any = link
            faked._counters = Words(processor, who)
            fence = self.fence(processor, who)
            faked._fence_in, faked._fence_out = fence.acquire, fence.release
        given, got = processor.run([lambda: self.want(near), lambda: self.give(far)])
        assert got is None, got
        bell = self.bell(near)
        self.played += 1
        self.slept += bool(given)
        self.rung += bell
        self.lost += bool(given) and not bell
        near.close()
        far.close()

    def want(self, link: SharedLink) -> object:
        return link.poll_for(reading=not self.writing, writing=self.writing)

    def give(self, link: SharedLink) -> None:
        if self.writing:
            link.recv_into(memoryview(bytearray(RING)))
        else:
            link.sendmsg((b"x",), (), 0)

    def bell(self, link: SharedLink) -> bool:
        try:
            return link._sock.recv(10) == b"\1"
        except BlockingIOError:
            return False


@pytest.mark.parametrize("writing", [False, True], ids=["for bytes", "for room"])
def test_whoever_sleeps_is_woken_in_every_order_of_loads_and_stores(
    monkeypatch: pytest.MonkeyPatch, *, writing: bool
) -> None:
    monkeypatch.setattr(shm_link, "SPIN_LIMIT", 1)
    scenario = ScenarioRun(Fence, writing=writing)
    for _ in every_order(scenario.play, WORDS_BYTES // 8):
        assert scenario.lost == 0
    assert min(scenario.slept, scenario.rung, scenario.played - scenario.slept) > 0


@pytest.mark.parametrize("writing", [False, True], ids=["for bytes", "for room"])
def test_without_the_fences_a_wake_up_is_lost(
    monkeypatch: pytest.MonkeyPatch, *, writing: bool
) -> None:
    monkeypatch.setattr(shm_link, "SPIN_LIMIT", 1)
    scenario = ScenarioRun(NoFence, writing=writing)
    assert any(scenario.lost for _ in every_order(scenario.play, WORDS_BYTES // 8))
