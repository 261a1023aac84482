"""Changes of what a lock guards: who waits for one, for how long, and Ctrl-C at every place."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ftcomm.control import changes
from ftcomm.control.changes import Changes
from tests.helpers.interrupts import BY_SIGNAL, interrupted, places

WITHIN_S = 60.0  # a hang is a failure; nothing here takes a second


class Watched:
    """A number under a lock, and the changes of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changes = Changes(self.lock)
        self.number = 0
        self.looks = threading.Semaphore(0)  # released by each look that found too little

    def has(self, wanted: int) -> Callable[[], bool]:
        """The condition that the number is as large as `wanted`."""

        def holds() -> bool:
            assert self.lock.locked()
            if self.number < wanted:
                self.looks.release()
            return self.number >= wanted

        return holds

    def increase_once_looked_at(self) -> None:
        """Add 1 as soon as somebody sleeps: a look and the sleep's begin are under one lock."""
        assert self.looks.acquire(timeout=WITHIN_S)
        with self.lock:
            self.number += 1
            self.changes.notify_all()


def test_what_holds_already_is_not_waited_for() -> None:
    watched = Watched()
    assert watched.changes.wait_for(watched.has(0))
    assert watched.changes.wait_for(watched.has(0), 0.0)


def test_who_waits_looks_again_at_each_change() -> None:
    watched = Watched()
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(watched.changes.wait_for, watched.has(3))
        for _ in range(3):
            watched.increase_once_looked_at()
        assert waiting.result(WITHIN_S)


def test_all_who_wait_are_woken_by_one_change() -> None:
    watched = Watched()
    with ThreadPoolExecutor(3) as others:
        waiting = [others.submit(watched.changes.wait_for, watched.has(1)) for _ in range(3)]
        for _ in range(2):
            assert watched.looks.acquire(timeout=WITHIN_S)
        watched.increase_once_looked_at()
        assert [wait.result(WITHIN_S) for wait in waiting] == [True] * 3


def test_a_wait_whose_time_is_over_leaves_nothing() -> None:
    watched = Watched()
    assert not watched.changes.wait_for(watched.has(1), 0.0)
    assert not watched.changes.wait_for(watched.has(1), 0.001)
    assert watched.changes._sleepers == set()


def test_a_time_longer_than_a_lock_takes_is_no_limit() -> None:
    watched = Watched()
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(watched.changes.wait_for, watched.has(1), 1e30)
        watched.increase_once_looked_at()
        assert waiting.result(WITHIN_S)


def test_ctrl_c_in_a_wait_leaves_the_lock_to_others() -> None:
    with ThreadPoolExecutor(1) as other:
        for number in places():
            watched = Watched()
            other_one = other.submit(watched.increase_once_looked_at)

            def wait(watched: Watched = watched) -> Any:
                return watched.changes.wait_for(watched.has(1))

            has_come = interrupted(wait, number, changes, where=BY_SIGNAL)
            watched.looks.release()
            other_one.result(WITHIN_S)
            assert not watched.lock.locked()
            if not has_come:
                break
    assert number > 5


def test_ctrl_c_in_a_change_loses_nobody_who_waits() -> None:
    """The next change wakes all whom this one has left asleep."""
    with ThreadPoolExecutor(2) as others:
        for number in places():
            watched = Watched()
            waiting = [others.submit(watched.changes.wait_for, watched.has(1)) for _ in range(2)]
            for _ in waiting:
                assert watched.looks.acquire(timeout=WITHIN_S)

            def change(watched: Watched = watched) -> None:
                with watched.lock:
                    watched.number = 1
                    watched.changes.notify_all()

            has_come = interrupted(change, number, changes, where=BY_SIGNAL)
            change()
            assert [wait.result(WITHIN_S) for wait in waiting] == [True] * 2
            if not has_come:
                break
    assert number > 2
