"""One virtual world: one trio run, one seed, one trace; and the processes in it.

A process is the set of trio tasks and threads whose context says so.
"""

import contextvars
import hashlib
import heapq
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from ftcomm_chaos.whole.trio_internals import Task, TaskQueue, run, virtual_clock

TURNS_PER_INSTANT = 20_000  # more are a loop that waits for time, which stands still meanwhile
RARE = 0.05  # share of what happens seldom


class Dead(BaseException):
    """Unwinds what is left of a process that is dead, or of a world that is over."""


class StuckError(Exception):
    """Tasks run on and on at one instant."""


class Closable(Protocol):
    """Anything that the kernel closes at the end of a process."""

    def kernel_close(self) -> None: ...


class VirtualWorld:
    """Time, chance, trace and processes of one run.

    Attributes:
        rng: of all that is drawn while the world runs.
        now: virtual seconds.
        is_over: everything unwinds without effects.
        on_event: called with the number of events behind each.
        failures: of the simulated processes, which no process should have.
        lines: the trace, where it is kept.
        deferred: what a thread has asked of the loop, which has its turn after it; None while the
            loop runs.
    """

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(f"world of {seed}")
        self.transit_s = self.rng.choice((0.002, 0.02, 0.02, 0.1))
        self.now = 0.0
        self.events = 0
        self.is_over = False
        self.failures: list[BaseException] = []
        self.on_event: Callable[[int], object] = lambda _events: None
        self.processes: list[VirtualProcess] = []
        self.lines: list[str] | None = [] if tracing else None
        self.deferred: list[tuple[Callable[..., object], tuple[Any, ...]]] | None = None
        self.nursery: trio.Nursery
        self.queue: TaskQueue
        self._hash = hashlib.blake2b(digest_size=12)
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = self._turns = 0

    # --- chance and trace ---------------------------------------------------------------------

    def between(self, low: float, high: float) -> float:
        """A time from `low` to `high`, which is more often short."""
        draw = self.rng.random()
        return low + (high - low) * draw * draw

    def transit(self) -> float:
        """The time that something is on its way through the network."""
        return self.between(0.0001, self.transit_s)

    def note(self, *what: object) -> None:
        """Enter an event into the trace and its digest."""
        self.events += 1
        line = f"{self.now:.6f} " + " ".join(map(str, what))
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)
        self.on_event(self.events)

    @property
    def digest(self) -> str:
        """The digest of all that has happened."""
        return self._hash.hexdigest()

    # --- what happens later -------------------------------------------------------------------

    def at(self, when: float, action: Callable[..., object], *args: Any) -> None:
        """Do something at an instant, between the turns of tasks."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, action, args))

    def after(self, delay_s: float, action: Callable[..., object], *args: Any) -> None:
        """Do something after a delay."""
        self.at(self.now + delay_s, action, *args)

    async def elapse(self, seconds: float) -> None:
        """Let virtual time pass."""
        await trio.sleep(seconds)

    def on_loop(self, action: Callable[..., object], *args: Any) -> None:
        """Do something that needs trio: now, or when the running thread gives up its turn."""
        if self.deferred is None:
            action(*args)
        else:
            self.deferred.append((action, args))

    # --- running ------------------------------------------------------------------------------

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run until `main` returns or a process fails; raises the first failure."""

        async def begin(queue: TaskQueue) -> None:
            self.queue = queue
            async with trio.open_nursery() as self.nursery:
                try:
                    await main()
                except Exception as error:  # noqa: BLE001 - raised when all has unwound
                    self.fail(error)
                self.end()

        clock = virtual_clock(lambda: self.now, self._jump)
        run(begin, f"order of {self.seed}", clock, self._hold, self._turn)
        if self.failures:
            raise self.failures[0]

    def end(self) -> None:
        """End the world: all tasks and threads unwind, also those of the dead."""
        self.is_over = True
        for process in self.processes:
            held, process.held = process.held, []
            self.queue.extend(held)
        self.nursery.cancel_scope.cancel()

    def fail(self, error: BaseException) -> None:
        """A process has failed as none should: end the world."""
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if not self.is_over:
            self.failures.append(error)
            self.on_loop(self.end)

    def _jump(self, deadline: float) -> None:
        heap = self._heap
        if heap and heap[0][0] <= deadline:
            self._move_to(heap[0][0])
            while heap and heap[0][0] <= self.now:
                _, _, action, args = heapq.heappop(heap)
                action(*args)
        elif deadline < float("inf"):
            self._move_to(deadline)

    def _move_to(self, when: float) -> None:
        if when > self.now:
            self.now, self._turns = when, 0

    def _turn(self) -> None:
        self._turns += 1
        if self._turns == TURNS_PER_INSTANT:
            names = sorted({f"{process_of(task)} {task.name}" for task in self.queue})
            self.fail(StuckError(f"{TURNS_PER_INSTANT} turns at {self.now:.6f} s: {names}"))

    def _hold(self, task: Task) -> bool:
        process = process_of(task)
        if process is None or not process.is_held:
            return False
        process.held.append(task)
        return True


class VirtualProcess:
    """A process: its tasks, threads and sockets; what it does reaches the world through these.

    Attributes:
        held: tasks that would run if the process were not stopped or dead.
        open: what the kernel closes at its end.
        threads: all that were made in it.
        how: it ended; empty while it runs.
        on_exit: called at its end.
        data: what the seams keep for it.
    """

    def __init__(self, world: VirtualWorld, name: str, host: str) -> None:
        self.world, self.name, self.host = world, name, host
        self.number = len(world.processes)
        self.is_dead = self.is_stopped = False
        self.held: list[Task] = []
        self.open: dict[Closable, None] = {}
        self.threads: list[Any] = []
        self.how = ""
        self.on_exit: Callable[[VirtualProcess], object] = lambda _process: None
        self.data: dict[str, Any] = {}
        self.nursery: trio.Nursery
        world.processes.append(self)

    def __repr__(self) -> str:
        return f"{self.name}#{self.number}"

    @property
    def is_held(self) -> bool:
        """None of its tasks may run."""
        return (self.is_dead or self.is_stopped) and not self.world.is_over

    def start(self, body: Callable[[], Awaitable[object]]) -> None:
        """Run `body` as this process, which ends with it."""
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        context.run(self.world.nursery.start_soon, self._main, body)

    async def _main(self, body: Callable[[], Awaitable[object]]) -> None:
        try:
            async with trio.open_nursery() as self.nursery:
                self.world.note(self, "starts")
                try:
                    await body()
                except Exception as error:  # noqa: BLE001 - told before other tasks see a cancel
                    self._fail(error)
                self.kill("ends")
        except BaseException as error:  # noqa: BLE001 - of another task of the process
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.is_dead:
            self.world.fail(error)

    def must_live(self) -> None:
        """At every seam: the dead have no effects; raises Dead."""
        if self.is_dead or self.world.is_over:
            raise Dead

    def kill(self, how: str = "is killed") -> None:
        """SIGKILL: nothing of it runs any more, and the kernel closes what it had open."""
        if self.is_dead or self.world.is_over:
            return
        self.world.note(self, how)
        self.is_dead, self.how = True, how
        self._set_aside()
        for thing in list(self.open):
            thing.kernel_close()
        self.on_exit(self)

    def stop(self, seconds: float) -> None:
        """SIGSTOP: the kernel goes on for it, and its timers are late when it goes on."""
        if not (self.is_stopped or self.is_dead):
            self.world.note(self, f"is stopped for {seconds:.3f}")
            self.is_stopped = True
            self._set_aside()
            self.world.after(seconds, self._go_on)

    def _set_aside(self) -> None:
        queue = self.world.queue
        mine = [task for task in queue if process_of(task) is self]
        for task in mine:
            queue.remove(task)
        self.held += mine

    def _go_on(self) -> None:
        self.is_stopped = False
        if not self.is_dead:
            self.world.note(self, "goes on")
            held, self.held = self.held, []
            self.world.queue.extend(held)


CURRENT: contextvars.ContextVar[VirtualProcess | None] = contextvars.ContextVar(
    "virtual process", default=None
)


def process_of(task: Task) -> VirtualProcess | None:
    """The process of a task."""
    return task.context.get(CURRENT)


def current() -> VirtualProcess:
    """The process that runs now."""
    process = CURRENT.get()
    assert process is not None, "outside of the simulated processes"
    return process
