"""No wake-up is lost: the links' own code in every order that processors of this kind allow.

Two threads run the code of both ends.  Their words are in a model of the processor: a store waits
in its thread's buffer until the model lets it out, in order, and at the latest at a fence.  Before
each load, store and fence a thread waits until it is its turn.  All orders of turns and of stores
let out are tried, each from the start.  What is wanted: nobody sleeps, with no bell on its way,
while there is something to do.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ranks_in_threads as harness

from ftcomm.transport import shm_link
from ftcomm.transport.shm_layout import HEAD_BYTES
from ftcomm.transport.shm_link import SharedLink

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="no memfd_create on this system"
)
RING = 4096
BOTH = (0, 1)
LIMIT_S = 30.0  # a hang is a failure


class Processor:
    """Words that two threads share, their store buffers, and whose turn it is."""

    def __init__(self, choices: list[int]) -> None:
        self.memory = [0] * (HEAD_BYTES // 8)
        self.buffers: tuple[deque[tuple[int, int]], ...] = (deque(), deque())
        self.go = tuple(threading.Semaphore(0) for _ in BOTH)
        self.stopped = threading.Semaphore(0)
        self.running = [False, False]
        self.choices = choices  # what to take where there is more than one thing to do
        self.widths: list[int] = []  # how many there were

    def turn(self, who: int) -> None:
        self.stopped.release()
        assert self.go[who].acquire(timeout=LIMIT_S)

    def flush(self, who: int) -> None:
        where, value = self.buffers[who].popleft()
        self.memory[where] = value

    def run(self, codes: list[Callable[[], Any]]) -> list[Any]:
        """Both codes to their ends, in the order that `choices` says."""
        outcomes: list[Any] = [None, None]

        def body(who: int) -> None:
            self.turn(who)
            try:
                outcomes[who] = codes[who]()
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                outcomes[who] = error
            self.running[who] = False
            self.stopped.release()

        threads = [threading.Thread(target=body, args=(who,), daemon=True) for who in BOTH]
        for who, thread in enumerate(threads):
            self.running[who] = True
            thread.start()
            assert self.stopped.acquire(timeout=LIMIT_S)
        while any(self.running) or any(self.buffers):
            self.step()
        for thread in threads:
            thread.join(LIMIT_S)
        return outcomes

    def step(self) -> None:
        may = [(self.resume, who) for who in BOTH if self.running[who]]
        may += [(self.flush, who) for who in BOTH if self.buffers[who]]
        number = len(self.widths)
        chosen = self.choices[number] if number < len(self.choices) else 0
        self.widths.append(len(may))
        act, who = may[chosen]
        act(who)

    def resume(self, who: int) -> None:
        self.go[who].release()
        assert self.stopped.acquire(timeout=LIMIT_S)


class Words:
    """Memory as one thread sees it: own stores at once, the other's when they are visible."""

    def __init__(self, processor: Processor, who: int) -> None:
        self.processor, self.who = processor, who

    def __getitem__(self, where: int) -> int:
        self.processor.turn(self.who)
        own = [value for at, value in self.processor.buffers[self.who] if at == where]
        return own[-1] if own else self.processor.memory[where]

    def __setitem__(self, where: int, value: int) -> None:
        self.processor.turn(self.who)
        self.processor.buffers[self.who].append((where, value))

    def release(self) -> None:
        """As a view has it."""


class Fence:
    """A lock that empties the store buffer of whoever takes it."""

    def __init__(self, processor: Processor, who: int) -> None:
        self.processor, self.who = processor, who

    def acquire(self) -> None:
        self.processor.turn(self.who)
        while self.processor.buffers[self.who]:
            self.processor.flush(self.who)

    def release(self) -> None:
        """Nothing more."""


class NoFence(Fence):
    """A processor on which taking a lock orders nothing."""

    def acquire(self) -> None:
        self.processor.turn(self.who)


def every_order(play: Callable[[Processor], None]) -> Iterator[Processor]:
    """Play from the start with every sequence of choices, depth first."""
    choices: list[int] = []
    while True:
        processor = Processor(choices)
        play(processor)
        yield processor
        widths = processor.widths
        choices += [0] * (len(widths) - len(choices))
        while choices and choices[-1] + 1 >= widths[len(choices) - 1]:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1


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
    for _ in every_order(scenario.play):
        assert scenario.lost == 0
    assert min(scenario.slept, scenario.rung, scenario.played - scenario.slept) > 0


@pytest.mark.parametrize("writing", [False, True], ids=["for bytes", "for room"])
def test_without_the_fences_a_wake_up_is_lost(
    monkeypatch: pytest.MonkeyPatch, *, writing: bool
) -> None:
    monkeypatch.setattr(shm_link, "SPIN_LIMIT", 1)
    scenario = ScenarioRun(NoFence, writing=writing)
    assert any(scenario.lost for _ in every_order(scenario.play))
