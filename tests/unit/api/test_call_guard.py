"""A call lock belongs to the call that runs, however calls before it have ended."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ftcomm.api import call_guard
from ftcomm.api.call_guard import CallGuard, CallLock
from ftcomm.errors import ClosedError, FtcommError, ThreadError
from tests.helpers.interrupts import interrupted, places

HERE = sys.modules[__name__]


def in_thread(function: Callable[[], Any]) -> Any:
    """Return the result of `function` on another thread, or its exception."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(function())
        except FtcommError as error:
            got.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return got[0]


def take(lock: CallLock) -> bool:
    """By a call that has ended when this returns."""
    return lock.take(sys._getframe(), "mark")


def test_who_runs_has_it_until_it_gives_it_back() -> None:
    lock = CallLock()
    assert lock.take(sys._getframe())
    assert not take(lock)
    assert lock.left_by() is None
    assert not in_thread(lambda: take(lock))
    lock.release()
    assert in_thread(lambda: take(lock))


def test_a_call_that_was_left_is_found_by_its_own_thread_alone() -> None:
    lock = CallLock()
    assert lock.left_by() is None
    assert take(lock)
    assert not take(lock)
    assert in_thread(lock.left_by) is None
    left = lock.left_by()
    assert left is not None
    assert left.mark == "mark"


def test_what_is_lent_is_left_by_nobody() -> None:
    lock = CallLock()
    assert (lock.lend(), lock.lend(), lock.is_lent) == (True, True, True)
    assert lock.left_by() is None
    assert not take(lock)
    lock.release()
    assert not lock.is_lent
    assert take(lock)
    assert not lock.lend()


def test_what_is_shut_is_for_nobody_any_more() -> None:
    lock = CallLock()
    assert (lock.shut(), lock.shut()) == (True, True)
    assert (take(lock), lock.lend(), lock.left_by()) == (False, False, None)


def test_a_call_shuts_behind_itself_and_before_others_alone() -> None:
    lock = CallLock()
    assert lock.take(sys._getframe())
    assert (in_thread(lock.shut), lock.shut()) == (False, True)
    lock.release()
    assert lock.lend()
    assert lock.shut()  # calls of a thread that it is lent to end otherwise


# --- the gate, which is one ---------------------------------------------------------------------


class Calls:
    """A gate and what goes through it."""

    def __init__(self) -> None:
        self.reached = 0
        self.inside = 0
        self.most_inside = 0
        self.given_up: list[FtcommError] = []
        self.guard = CallGuard(lambda _: False, lambda: self.reached, self.give_up)

    def give_up(self, error: FtcommError) -> None:
        self.guard.is_closed = True
        self.given_up.append(error)

    def call(self) -> None:
        with self.guard:
            try:
                self.inside += 1
                self.most_inside = max(self.inside, self.most_inside)
            finally:
                self.inside -= 1

    def call_or_refused(self) -> str:
        try:
            self.call()
        except ThreadError:
            return "refused"
        return "called"


def test_a_call_cut_short_anywhere_lets_the_next_one_in() -> None:
    for number in places():
        calls = Calls()
        if not interrupted(calls.call, number, call_guard, HERE):
            break
        calls.call()
        assert in_thread(calls.call_or_refused) == "called"
    assert number > 60


def test_a_call_inside_of_a_call_is_refused_wherever_it_is_made() -> None:
    """By a callback, a signal's handler, or a finalizer; one before or after it is admitted."""
    seen: list[str] = []
    for number in places():
        calls = Calls()

        def call_inside(calls: Calls = calls) -> None:
            seen.append(calls.call_or_refused())

        if not interrupted(calls.call, number, call_guard, HERE, act=call_inside):
            break
        assert calls.most_inside == 1
        calls.call()
    first, last = seen.index("refused"), len(seen) - seen[::-1].index("refused")
    assert set(seen[first:last]) == {"refused"}
    assert last - first > 30


def test_another_thread_is_refused_wherever_a_call_is() -> None:
    seen: list[str] = []
    for number in places():
        calls = Calls()

        def call_beside(calls: Calls = calls) -> None:
            seen.append(in_thread(calls.call_or_refused))

        if not interrupted(calls.call, number, call_guard, HERE, act=call_beside):
            break
        assert calls.most_inside == 1
    first, last = seen.index("refused"), len(seen) - seen[::-1].index("refused")
    assert set(seen[first:last]) == {"refused"}


def test_repair_can_be_cut_short_too() -> None:
    for number in places():
        calls = Calls()
        assert calls.guard.lock.take(_left_frame(), 0)
        if not interrupted(calls.call, number, call_guard, HERE):
            break
        calls.call()
    assert number > 100


def _left_frame() -> Any:
    return sys._getframe()


def test_a_call_that_was_complete_when_it_was_cut_short_is_the_last() -> None:
    """The script has no result, and its next call would be another one than it thinks."""
    calls = Calls()
    assert calls.guard.lock.take(_left_frame(), calls.reached)
    calls.reached += 1
    for _ in range(2):
        with pytest.raises(ClosedError, match="its result is lost"):
            calls.call()
    assert [type(error) for error in calls.given_up] == [ClosedError]
