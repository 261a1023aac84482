"""Waiting for links, and what is left of a wait that Ctrl-C cuts short: nothing."""

import os
import select
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ftcomm.transport import waiting
from ftcomm.transport.waiting import (
    SPINS_ALONE,
    SPINS_SHARED,
    Waiter,
    WaitProgress,
    spins_before_sleep,
)
from tests.helpers.interrupts import interrupted, places


class Pipe:
    """A link that can be read as soon as something was written."""

    rank = 1

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()

    def poll_for(self, **_: bool) -> tuple[tuple[int, int], ...]:
        return ((self.reading, select.POLLIN),)

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture
def pipes() -> Iterator[tuple[Any, Any]]:
    """One that is ready and one that is not."""
    ready, idle = Pipe(), Pipe()
    os.write(ready.writing, b"x")
    yield ready, idle
    idle.close()


def polled(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """List the descriptors of each poll of a new waiter; the list grows."""
    seen: list[set[int]] = []
    new_poll = select.poll

    class Poll:
        def __init__(self) -> None:
            self.real = new_poll()
            self.register, self.unregister = self.real.register, self.real.unregister

        def poll(self, _: int) -> bool:
            events = self.real.poll(0)  # what would block returns nothing
            seen.append({fd for fd, _ in events})
            return True

    monkeypatch.setattr(waiting.select, "poll", Poll)
    return seen


def test_a_wait_cut_short_anywhere_leaves_no_link_behind(
    pipes: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor that stays is closed with its link, and then ends every poll at once."""
    ready, idle = pipes
    seen = polled(monkeypatch)
    waker: Any = SimpleNamespace(fd=idle.writing, is_set=False)
    cut = 0
    for number in places():
        waiter = Waiter(waker, WaitProgress())
        if not interrupted(lambda w=waiter: w.wait(ready, None), number, waiting):
            break
        cut += 1
        waiter.wait(idle, None)
        assert seen[-1] == set()
        assert waiter.progress.peers == ()
    assert cut > 50
    waiter.wait(ready, None)
    assert seen[-1] == {ready.reading}
    ready.close()
    waiter.wait(idle, None)
    assert seen[-1] == set()


def test_a_rank_with_a_processor_of_its_own_tries_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is bound to one processor, as ranks of MPI and Slurm are."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1}, raising=False)
    spins = [spins_before_sleep(ranks) for ranks in (1, 2, 3)]
    assert spins == [SPINS_ALONE, SPINS_ALONE, SPINS_SHARED]
