"""A call lock is free behind each call, however that has ended."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ftcomm.api import call_guard
from ftcomm.api.call_guard import CallGuard, CallLock
from ftcomm.errors import ClosedError, FtcommError, ThreadError
from tests.helpers.interrupts import BY_SIGNAL, interrupted, places

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


def test_a_lock_has_one_holder_until_it_is_released() -> None:
    lock = CallLock()
    assert lock.take()
    assert (lock.take(), in_thread(lock.take), lock.lend()) == (False, False, False)
    assert lock.is_held_here
    del lock.holder[0]
    assert not lock.is_held_here
    assert in_thread(lock.take)
    assert not lock.is_held_here


def test_what_is_lent_may_be_lent_again() -> None:
    lock = CallLock()
    assert (lock.lend(), lock.lend(), lock.is_lent) == (True, True, True)
    assert not lock.take()
    del lock.holder[0]
    assert (lock.is_lent, lock.take(), lock.lend()) == (False, True, False)


def test_what_is_shut_is_for_nobody_any_more() -> None:
    lock = CallLock()
    assert (lock.shut(), lock.shut()) == (True, True)
    assert (lock.take(), lock.lend(), lock.is_lent) == (False, False, False)


def test_a_call_shuts_behind_itself_and_before_others_alone() -> None:
    lock = CallLock()
    assert lock.take()
    assert (in_thread(lock.shut), lock.shut()) == (False, True)
    del lock.holder[0]
    assert lock.lend()
    assert lock.shut()  # calls of a thread that it is lent to end otherwise


# --- the guard, which has one -------------------------------------------------------------------


class Calls:
    """A guard and calls that it lets in."""

    def __init__(self) -> None:
        self.inside = 0
        self.most_inside = 0
        self.ends: list[BaseException] = []
        self.guard = CallGuard(self.ended_by)

    def ended_by(self, error: BaseException) -> FtcommError | None:
        self.ends.append(error)
        return None

    def call(self) -> None:
        self.guard.run(self._inside)

    def _inside(self) -> None:
        self.inside += 1
        self.most_inside = max(self.inside, self.most_inside)
        self.inside -= 1

    def call_or_refused(self) -> str:
        try:
            self.call()
        except ThreadError:
            return "refused"
        return "called"


@pytest.mark.parametrize("error", [ValueError("a"), ClosedError("b"), KeyboardInterrupt()])
def test_the_guard_is_free_behind_any_exception_and_its_owner_hears_of_it(
    error: BaseException,
) -> None:
    calls = Calls()

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        calls.guard.run(fail)
    assert calls.ends == [error]
    assert in_thread(calls.call_or_refused) == "called"


def test_the_guard_is_free_wherever_a_signal_s_handler_raises() -> None:
    heard = 0
    for number in places():
        calls = Calls()
        if not interrupted(calls.call, number, call_guard, HERE, where=BY_SIGNAL):
            break
        assert not calls.guard.lock.holder
        heard += len(calls.ends)
    assert number > heard > 0


def test_what_ends_the_communicator_is_raised_by_later_calls() -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    def ended_by(_: BaseException) -> FtcommError:
        guard.is_closed = True
        return ClosedError("a call was ended")

    guard = CallGuard(ended_by)
    with pytest.raises(KeyboardInterrupt):
        guard.run(fail)
    with pytest.raises(ClosedError, match="a call was ended"):
        guard.run(fail)


def test_later_calls_raise_what_ended_the_communicator_first() -> None:
    guard = CallGuard(lambda error: ClosedError(str(error)))
    for words in ("first", "second"):
        guard.heed(ValueError(words))
    guard.is_closed = True
    with pytest.raises(ClosedError, match="first"):
        guard.run(lambda: None)


@pytest.mark.parametrize("is_beside", [True, False])
def test_a_call_during_another_one_is_refused_wherever_it_is_made(is_beside: bool) -> None:
    """By another thread, a signal's handler, or a finalizer; one before or behind is admitted."""
    seen: list[str] = []
    for number in places():
        calls = Calls()

        def call_again(calls: Calls = calls) -> None:
            again = calls.call_or_refused
            seen.append(in_thread(again) if is_beside else again())

        if not interrupted(calls.call, number, call_guard, HERE, act=call_again):
            break
        assert calls.most_inside == 1
        calls.call()
    first, last = seen.index("refused"), len(seen) - seen[::-1].index("refused")
    assert set(seen[first:last]) == {"refused"}
    assert last - first > 20
