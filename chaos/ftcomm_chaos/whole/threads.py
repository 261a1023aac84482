"""Threads of virtual processes: real ones, of which one at a time has the turn.

A thread is a trio task that gives its turn to a real thread, and awaits for it whatever it blocks
on.  trio knows nothing of that thread: a call of trio there fails, as in reality.  A thread may
lose its turn where it takes a lock or moves bytes, since there others see what it has done so far.
"""

import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal

import trio

from ftcomm_chaos.whole.world import RARE, Dead, VirtualWorld, current

PREEMPTED = 0.03  # share of the places at which a thread loses its turn for a while
UNWINDING_STEPS = 1000  # a thread of a dead process that still blocks then never ends
_here = threading.local()

Request = Callable[[], Awaitable[Any]]


class Turn:
    """A real thread that runs only while the loop waits for it."""

    def __init__(self, body: Callable[[], None], world: VirtualWorld) -> None:
        self._body, self._world = body, world
        self._context = contextvars.copy_context()
        self._mine, self._theirs = threading.Lock(), threading.Lock()
        self._mine.acquire()
        self._theirs.acquire()
        self._request: Request | None = None
        self._answer: Any = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def resume(self, answer: object = None, error: BaseException | None = None) -> Request | None:
        """On the loop: let the thread run on, until it blocks on what is returned, or ends."""
        self._answer, self._error, self._request = answer, error, None
        world = self._world
        world.deferred = []
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            contextvars.Context().run(self._thread.start)  # no process starts it
        self._mine.release()
        self._theirs.acquire()
        deferred, world.deferred = world.deferred, None
        if self._request is None:
            self._thread.join()
        for action, args in deferred:
            action(*args)
        return self._request

    def block(self, request: Request) -> Any:
        """In the thread: give the turn back until `request` has been awaited."""
        self._request = request
        self._theirs.release()
        self._mine.acquire()
        if self._error is not None:
            raise self._error
        return self._answer

    def _run(self) -> None:
        self._mine.acquire()
        try:
            if self._error is None:
                self._context.run(self._body)
        finally:
            self._request = None
            self._theirs.release()


class VirtualThread:
    """Stands for `threading.Thread`.

    Attributes:
        over: set when it has ended.
        error: that ended it.
        locks: it holds.
    """

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        assert group is None
        self.process = current()
        self.name, self.daemon = name or "thread", daemon
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self.over = trio.Event()
        self.error: BaseException | None = None
        self.locks = 0
        self._is_started = False
        self.process.threads.append(self)
        self._turn: Turn

    ident = property(id)

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        self._is_started = True
        self.process.world.on_loop(self._spawn)

    def is_alive(self) -> bool:
        return self._is_started and not self.over.is_set()

    def join(self, timeout: float | None = None) -> None:
        if self._is_started:
            wait(self.over, timeout)

    def block(self, request: Request) -> Any:
        """In the thread: wait for the result of the async function `request`."""
        self.process.must_live()
        return self._turn.block(request)

    def _spawn(self) -> None:
        self.process.nursery.start_soon(self._task, name=self.name)

    def _body(self) -> None:
        _here.thread = self
        try:
            self.run()
        except Dead:
            pass
        except BaseException as error:  # noqa: BLE001 - of the user's script, or of the product
            self.error = error

    async def _task(self) -> None:
        self._turn = Turn(self._body, self.process.world)
        request, answer = self._turn.resume(), None
        while request is not None:
            try:
                answer = await request()
            except trio.Cancelled:
                self._unwind()
                self.over.set()
                raise
            except BaseException as error:  # noqa: BLE001 - it is the thread's
                request = self._turn.resume(error=error)
            else:
                request = self._turn.resume(answer)
        self.over.set()

    def _unwind(self) -> None:
        for _ in range(UNWINDING_STEPS):
            if self._turn.resume(error=Dead()) is None:
                return


def running() -> VirtualThread | None:
    """The virtual thread that runs now; None on the loop."""
    return getattr(_here, "thread", None)


def block(request: Request) -> Any:
    """Block the running thread until the async function `request` has returned."""
    thread = running()
    assert thread is not None, "the loop would block"
    return thread.block(request)


def wait(event: trio.Event, timeout: float | None = None) -> bool:
    """Block the running thread until the event is set; False after `timeout` seconds."""

    async def some_time() -> None:
        with trio.move_on_after(float("inf") if timeout is None else max(timeout, 0.0)):
            await event.wait()

    block(some_time)
    return event.is_set()


def maybe_preempt() -> None:
    """Sometimes take the turn from the running thread for a while, unless it holds a lock."""
    thread = running()
    if thread is None or thread.locks:
        return
    world = thread.process.world
    if world.rng.random() < PREEMPTED:
        delay = world.between(0.0, 0.3 if world.rng.random() < RARE else 0.004)
        thread.block(functools.partial(trio.sleep, delay))


class VirtualLock:
    """Stands for `threading.Lock`; the control thread never finds it taken for long.

    A thread that holds a lock is not preempted.  If the control thread, which is the loop, finds a
    lock taken all the same, then its holder waits for something under the lock: a defect.
    """

    __slots__ = ("_freed", "_holder", "_is_taken")

    def __init__(self) -> None:
        self._is_taken = False
        self._freed: trio.Event | None = None
        self._holder: VirtualThread | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        maybe_preempt()
        thread = running()
        if self._is_taken and blocking:
            assert thread is not None, f"the control thread waits for {self._holder}"
            self._wait(thread, timeout)
        if self._is_taken:
            return False
        self._is_taken, self._holder = True, thread
        if thread is not None:
            thread.locks += 1
        return True

    def _wait(self, thread: VirtualThread, timeout: float) -> None:
        world = thread.process.world
        until = float("inf") if timeout < 0 else world.now + timeout
        while self._is_taken and world.now < until:
            self._freed = self._freed or trio.Event()
            wait(self._freed, until - world.now)

    def release(self) -> None:
        if not self._is_taken:
            raise RuntimeError("release unlocked lock")
        self._is_taken = False
        if self._holder is not None:
            self._holder.locks -= 1
        freed, self._freed = self._freed, None
        if freed is not None:
            current().world.on_loop(freed.set)

    def locked(self) -> bool:
        return self._is_taken

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class VirtualRLock:
    """Stands for `threading.RLock`."""

    def __init__(self) -> None:
        self._lock, self._depth = VirtualLock(), 0
        self._owner: object = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = running() or current()
        if self._owner is not me:
            if not self._lock.acquire(blocking, timeout):
                return False
            self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class VirtualEvent:
    """Stands for `threading.Event`."""

    def __init__(self) -> None:
        self._is_set, self._event = False, trio.Event()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        current().world.on_loop(self._event.set)

    def clear(self) -> None:
        self._is_set, self._event = False, trio.Event()

    def wait(self, timeout: float | None = None) -> bool:
        return self._is_set or wait(self._event, timeout)


class VirtualCondition:
    """Stands for `threading.Condition`."""

    def __init__(self, lock: VirtualLock | VirtualRLock | None = None) -> None:
        self._lock = lock or VirtualRLock()
        self._waiting: list[trio.Event] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> Literal[False]:
        self._lock.release()
        return False

    def wait(self, timeout: float | None = None) -> bool:
        event = trio.Event()
        self._waiting.append(event)
        self._lock.release()
        try:
            return wait(event, timeout)
        finally:
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        until = float("inf") if timeout is None else current().world.now + timeout
        while not (result := predicate()):
            if not self.wait(until - current().world.now):
                return predicate()
        return result

    def notify(self, n: int = 1) -> None:
        told, self._waiting = self._waiting[:n], self._waiting[n:]
        for event in told:
            current().world.on_loop(event.set)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


async def run_in_thread(
    function: Callable[..., object], *args: Any, abandon_on_cancel: bool = False
) -> object:
    """Stands for `trio.to_thread.run_sync`."""
    results: list[object] = []
    thread = VirtualThread(target=lambda: results.append(function(*args)), name="worker")
    await trio.lowlevel.checkpoint()
    with trio.CancelScope(shield=not abandon_on_cancel):
        await trio.sleep(thread.process.world.between(0.00002, 0.002))
        thread.start()
        await thread.over.wait()
    if thread.error is not None:
        raise thread.error
    if not results:  # the world is over
        raise Dead
    return results[0]
