"""Request queue: nonblocking calls, one after the other, in the order in which they were made.

They run on one thread, started by the first of them.  A communicator has one engine, which is for
one thread at a time: the one with engine ownership.  A synchronous call takes the
engine's ownership and gives it back.  The first nonblocking call takes it for the thread of this
module, which gives it back when nothing is pending: a synchronous call that finds nothing pending
pays nothing for all this, and one that finds the engine's ownership taken asks here, and waits for
its turn.

A call that raises takes along all that were made before the user has heard of it: with its place
empty, each would run at the position of another.  So the error is kept, with the engine's
ownership, until `Handle.wait` or the next synchronous call has raised it.

The user may hear of an error before the call that raises it has its turn: a task engine has it from
a function, and collectives that it skips keep their places.  Then it takes along the calls that
were made before the user had heard of it, and no later one.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ftcomm.api.call_guard import CallGuard, CallLock, called_in_callback, used_twice
from ftcomm.config.deadline import QueuedLimit, earliest
from ftcomm.control.changes import Changes
from ftcomm.errors import ClosedError, ForkError, ThreadError
from ftcomm.nonblocking.callbacks import Callback, Callbacks
from ftcomm.nonblocking.handle import QueuedCall
from ftcomm.nonblocking.threads import start_thread
from ftcomm.requests.call_site import passes_on

passes_on(__file__)

R = TypeVar("R")

# Calls that wait for their turn; the next one waits until there is room.  Each holds its input.
MAX_PENDING = 1024
# A call that runs ends within milliseconds when the communicator does, but for a user's function.
LEAVE_WITHIN_S = 5.0
_INPUT = "the tasks that fill its array"


class _Heard(NamedTuple):
    """An error that the user has heard of before the calls that raise it have had their turn."""

    error: BaseException  # itself
    placed: int  # how many calls had a place by then


class RequestQueue:
    """The nonblocking calls of one communicator; `put` and `hand_back` are for the user's thread.

    Lock order: `_users`, then `_lock`, then that of `callbacks`.  The ownership is passed on under
    `_lock`.
    """

    def __init__(self, guard: CallGuard) -> None:
        self._guard = guard
        self._pid = os.getpid()
        self._users = CallLock()  # one thread makes calls, or waits to make one
        guard.submitters = self._users.holder
        # What the user wants to run when calls are done.
        self.callbacks = Callbacks((guard.lock, self._users))
        self._placed = 0  # calls that had a place, or were about to
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)  # something for our thread
        self._changed = Changes(self._lock)  # something for the user's
        self._waiting: deque[QueuedCall[Any]] = deque()
        self._running: QueuedCall[Any] | None = None
        self._failure: BaseException | None = None  # that the user has not heard of
        self._heard: list[_Heard] = []  # empty when nothing is pending
        self._entering: QueuedLimit | None = None  # of the call of `_users` that waits
        self.closing: QueuedLimit | None = None  # the limit of a close that waits for task engines
        self._is_over = self._has_ended = False
        self._finish: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    # --- the user's thread --------------------------------------------------------------------

    def run_alone(self, body: Callable[[], R]) -> R:
        """Run `body`, which makes a nonblocking call; no other thread makes a call meanwhile.

        Raises:
            FtcommError: another one does, or the communicator is over or another process's.
        """
        if os.getpid() != self._pid:
            raise ForkError("this communicator belongs to the parent process")
        if self.callbacks.is_own_thread:
            raise called_in_callback()
        if self.is_own_thread or not self._users.take():
            raise used_twice()
        try:
            if self._guard.is_closed:
                self._changed.wait_for(self._is_settled)
                self._guard.refuse()
            return body()
        except BaseException as error:
            self.heed(error)
            raise
        finally:
            del self._users.holder[0]

    def run_alone_or_in_callback(self, body: Callable[[], R]) -> R:
        """The same for what keeps no order with calls: a callback of a handle may do it too."""
        return body() if self.callbacks.is_own_thread else self.run_alone(body)

    def heed(self, error: BaseException) -> None:
        """An error has left a call, or a wait for one: it may be the communicator's end."""
        self._guard.heed(error)

    def put(self, call: QueuedCall[R]) -> QueuedCall[R]:
        """Give a call its place, behind all before it; waits while too many are pending."""
        self.callbacks.wait_for_room()
        self._wait_until(lambda: len(self._waiting) < MAX_PENDING, call.limit)
        with self._lock:
            if self._failure is not None:
                call.fail(self._failure)
            elif self._is_over:
                call.fail(_ended())
            else:
                self._start()
                self._take_ownership()
                self._placed += 1
                self._waiting.append(call)
                self._arrived.notify()
        return call

    def hand_back(self, limit: QueuedLimit | None = None) -> bool:
        """Own the engine for a blocking call, behind all that is pending.

        Returns:
            False if it is not for this thread: another one is in a call, this one runs a
            function of the user's, or the communicator is over.

        Raises:
            BaseException: what a nonblocking call has raised, if the user has not heard of it.
        """
        if self.is_own_thread or not self._users.take():
            return False
        try:
            return self._take_turn(limit)
        except BaseException as error:  # it may be an interrupt, which nobody else hears of
            self.heed(error)
            raise
        finally:
            del self._users.holder[0]

    def _take_turn(self, limit: QueuedLimit | None) -> bool:
        self._wait_until(self._is_settled, limit)
        with self._lock:
            if self._is_over:
                return False
            if self._failure is not None:
                failure = self._failure
                self._forget_failure()
                raise failure
            self._block_if_idle()  # Ctrl-C in `put` may have left the ownership with us
        return self._guard.lock.take()

    def _wait_until(self, holds: Callable[[], object], limit: QueuedLimit | None) -> None:
        """Wait, in a call with `limit`; no other thread makes one, so what was waited for stays."""
        try:
            self._entering = limit
            self._changed.wait_for(holds)
        except BaseException as error:
            self.heed(error)
            raise
        finally:
            self._entering = None

    def wait_for(self, call: QueuedCall[Any], timeout: float | None) -> None:
        """Wait until `call` is done; from any thread but the engine's.

        Raises:
            TimeoutError: it is still pending after `timeout` seconds.
            ThreadError: called by a function of the user's that a collective runs.
            ForkError: in a forked child.
        """
        if os.getpid() != self._pid:
            raise ForkError("this handle belongs to the parent process")
        if self.is_own_thread:
            raise ThreadError(
                "an input function or a reduction waits for a nonblocking call, which waits for "
                "it; wait outside"
            )
        if not self._changed.wait_for(lambda: call.is_done, timeout):
            raise TimeoutError(f"{call.what} is still pending after {timeout:g} s")

    def note_raised(self, error: BaseException) -> None:
        """The user hears of `error` now: calls made from here on run again.

        A callback's hearing does not count: the script goes on making calls meanwhile.
        """
        if self.callbacks.is_own_thread:
            return
        with self._lock:
            if error is self._failure:
                self._forget_failure()
            elif not self._is_idle():
                now = _Heard(error, self._placed)
                if not any(h.error is error and h.placed == now.placed for h in self._heard):
                    self._heard.append(now)

    def call_back(self, call: QueuedCall[Any], callback: Callback) -> None:
        """Run `callback` when `call` is done; from any thread.

        Raises:
            ThreadLimitError: there is no thread for it.
            ForkError: in a forked child.
        """
        if os.getpid() != self._pid:
            raise ForkError("this handle belongs to the parent process")
        if not self.is_own_thread:
            self.callbacks.wait_for_room()
        with self._lock:
            if not call.is_done:
                self.callbacks.prepare()
                if call.callbacks is None:
                    call.callbacks = deque()
                call.callbacks.append(callback)
                return
        self.callbacks.put([callback])

    def is_pending(self, call: QueuedCall[Any]) -> bool:
        """True if `call` has a place, and is not done; asked from any thread."""
        with self._lock:
            return call is self._running or call in self._waiting

    def look_again(self) -> None:
        """A pending call may have become due; from any thread."""
        with self._lock:
            self._arrived.notify()

    def earliest_limit(self) -> QueuedLimit | None:
        """Return the first limit of the calls that wait for their turn; from any thread.

        It is asked again and again.  So a call that waits for its input looks each time whether the
        job is over.
        """
        with self._lock:
            waiting = [call.limit for call in self._waiting]
            if self._running is not None:
                return earliest([*waiting, self._entering, self.closing])
            if not waiting:
                return self.closing
            self._arrived.notify()
            head, *others = waiting
            behind = earliest([*others, self._entering])
            return earliest(
                [
                    head and head._replace(waits_for=_INPUT),
                    behind and behind._replace(waits_for=f"a call that waits for {_INPUT}"),
                    self.closing,
                ]
            )

    def end(self, abort: Callable[[], None], finish: Callable[[], None]) -> None:
        """The communicator ends: nothing runs any more.

        Args:
            abort: makes the call that runs raise.
            finish: called when none runs: now, or where a user's function does not end, by our
                thread as soon as it does.
        """
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            if not self.is_own_thread:  # else what waits gets the error that ends it all
                self._drop(_ended())
                self._arrived.notify()
        if self._thread is None or self.is_own_thread:
            finish()
            if self._thread is None:
                self.callbacks.end()
            return
        abort()
        try:
            self._thread.join(LEAVE_WITHIN_S)
        finally:
            with self._lock:
                self._finish = finish
                is_ours = self._has_ended
                self._changed.notify_all()  # for calls that wait for what still runs
            if is_ours:
                finish()

    @property
    def is_own_thread(self) -> bool:
        """True on the thread that runs the calls."""
        return threading.current_thread() is self._thread

    # --- our own thread -----------------------------------------------------------------------

    def _run(self) -> None:
        with self._lock:
            if not self.is_own_thread:  # Ctrl-C ended the start: another one is started
                return
        while (call := self._next()) is not None:
            assert call.work is not None, "a call that is pending has not run"
            try:
                value = call.work()
            except BaseException as error:  # noqa: BLE001 - handed to the user, whose thread it is not
                self._failed(call, error)
            else:
                with self._lock:
                    call.succeed(value)
                    self._call_back(call)
                    self._running = None
                    self._block_if_idle()
                    self._changed.notify_all()
                del value  # the next call may take long, and the user may have dropped it
            del call
        with self._lock:
            self._has_ended = True
            finish = self._finish
        self.callbacks.end()  # all calls are done
        if finish is not None:
            finish()

    def _next(self) -> QueuedCall[Any] | None:
        with self._lock:
            if not self._waiting:
                self._heard.clear()
            self._arrived.wait_for(self._is_next_due)
            if not self._waiting:
                return None
            self._running = self._waiting.popleft()
            self._changed.notify_all()
            return self._running

    def _is_next_due(self) -> bool:
        if not self._waiting:
            return self._is_over
        is_due = self._waiting[0].is_due
        return is_due is None or is_due()

    def _failed(self, call: QueuedCall[Any], error: BaseException) -> None:
        try:
            self.heed(error)  # may end the communicator, before anybody hears of it
        finally:
            with self._lock:
                call.fail(error)
                self._call_back(call)
                self._running = None
                later = self._made_after_hearing(error)
                if later is None and not self._is_over:
                    self._failure = error
                self._drop(error, later or 0)
                if later is not None:
                    self._block_if_idle()

    # --- under the lock -----------------------------------------------------------------------

    def _call_back(self, call: QueuedCall[Any]) -> None:
        """A call is done, and what the user wants to run then may."""
        if call.callbacks is not None:
            self.callbacks.put(call.callbacks)
            call.callbacks = None

    def _is_idle(self) -> bool:
        return not self._waiting and self._running is None

    def _is_settled(self) -> bool:
        """Nothing runs, or nobody waits any more for the user's function that does."""
        return self._is_idle() or self._finish is not None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = start_thread(self._run, "ftcomm-engine")

    def _take_ownership(self) -> None:
        if not self._guard.lock.lend():
            if self._guard.is_closed:
                self._guard.refuse()
            raise used_twice()

    def _block_if_idle(self) -> None:
        """Behind the end it stays lent: a call that had looked before would use what is closed."""
        if self._guard.lock.is_lent and self._is_idle() and not self._is_over:
            del self._guard.lock.holder[0]

    def _forget_failure(self) -> None:
        self._block_if_idle()  # first: where it is interrupted the failure is raised later
        self._failure = None

    def _made_after_hearing(self, error: BaseException) -> int | None:
        """Return how many calls were made after the user heard of `error`, which one has raised.

        None if the user has not: it may have been raised by a call before, and heard of then.
        """
        number = self._placed - len(self._waiting)  # of the call that has raised it
        for heard in self._heard:
            if heard.error is error and heard.placed >= number:
                return self._placed - heard.placed
        return None

    def _drop(self, error: BaseException, later: int = 0) -> None:
        """No call that waits will run, but for the `later` last ones."""
        while len(self._waiting) > later:
            call = self._waiting.popleft()
            call.fail(error)
            self._call_back(call)
        self._changed.notify_all()


def _ended() -> ClosedError:
    return ClosedError("the communicator ended before this call had its turn")
