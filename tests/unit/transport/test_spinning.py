"""Spinning: how long a rank polls for a peer before it sleeps and reports the wait."""

from types import SimpleNamespace
from typing import Any

import pytest

from ftcomm.execution.executor import Executor
from ftcomm.transport import waiting
from ftcomm.transport.interruptions import Interrupted
from ftcomm.transport.waiting import CLOCK_EVERY, SPIN_LIMIT_S, SPINS_ALONE
from ftcomm.transport.waker import Waker


class IdleLink:
    """Nothing ever comes."""

    rank = 3

    def recv_into(self, _: Any) -> int:
        raise BlockingIOError


def yields_before_the_wait(each_takes_s: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """Count the processor yields of a rank, where each takes so long."""
    clock, yields = [100.0], [0]

    def let_others_run() -> None:
        clock[0] += each_takes_s
        yields[0] += 1

    def sleep(*_: Any) -> None:
        raise Interrupted

    monkeypatch.setattr(waiting, "let_others_run", let_others_run)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(waiting.Waiter, "wait", sleep)
    one = Executor(Waker())
    one.waiter.spins = SPINS_ALONE
    link: Any = IdleLink()
    with pytest.raises(Interrupted):
        one.read_ahead(link)
    return yields[0]


def test_a_rank_whose_processor_others_take_sleeps_and_says_for_whom_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it spins for seconds, and nobody knows that it is waiting."""
    assert yields_before_the_wait(SPIN_LIMIT_S, monkeypatch) == 2 * CLOCK_EVERY - 1


def test_a_rank_with_a_processor_of_its_own_looks_as_often_as_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert yields_before_the_wait(1e-6, monkeypatch) == SPINS_ALONE - 1
