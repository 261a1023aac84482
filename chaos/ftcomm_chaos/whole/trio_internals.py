"""Names of trio that are no part of its interface: a deterministic run needs them.

All of them are here, and `missing` says which another version of trio lacks.  Time stands still
while a task can run, and then jumps.  The queue of tasks that may run asks which are held: that is
SIGSTOP and SIGKILL, since not even a `finally` of a held task runs.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio
import trio._core._run as trio_run
from trio.testing import MockClock

_SCHEDULING, _GENERATOR = "_ALLOW_DETERMINISTIC_SCHEDULING", "_r"
_CLOCK_METHODS = ("current_time", "deadline_to_sleep_time", "_autojump")
FOREVER_S = 1e9  # longer than any run

Task = trio.lowlevel.Task


def missing() -> list[str]:
    """The names that this version of trio lacks."""
    runner_fields = {field.name: field for field in trio_run.Runner.__attrs_attrs__}
    wanted: list[tuple[str, object, Iterable[str]]] = [
        ("trio._core._run", trio_run, (_SCHEDULING, _GENERATOR, "GLOBAL_RUN_CONTEXT")),
        ("Deadlines", trio_run.Deadlines, ("next_deadline",)),
        ("MockClock", MockClock, _CLOCK_METHODS),
        ("Task", Task, ("context",)),
    ]
    gone = [
        f"{of}.{name}" for of, owner, names in wanted for name in names if not hasattr(owner, name)
    ]
    return gone + [f"Runner.{name}" for name in ("runq", "deadlines") if name not in runner_fields]


class TaskQueue(deque[Task]):
    """trio's queue of tasks that may run, without those that are held."""

    def __init__(
        self, tasks: Iterable[Task], hold: Callable[[Task], bool], on_turn: Callable[[], None]
    ) -> None:
        """`hold` keeps a task and returns True, or returns False; `on_turn` is called each turn."""
        super().__init__(tasks)
        self._hold, self._on_turn = hold, on_turn

    def append(self, task: Task) -> None:
        """Let a task run, unless it is held."""
        if not self._hold(task):
            super().append(task)

    def clear(self) -> None:
        """At each turn trio takes all tasks."""
        self._on_turn()
        super().clear()


def virtual_clock(now: Callable[[], float], jump: Callable[[float], None]) -> MockClock:
    """A clock that reads `now`; where no task can run, `jump` gets the next deadline of a task.

    MockClock is final, and trio's loop wants one: its methods are replaced in the instance.
    """

    def autojump() -> None:
        jump(trio_run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline())

    clock = MockClock(autojump_threshold=0)
    methods = (now, lambda deadline: 0 if deadline <= now() else FOREVER_S, autojump)
    for name, method in zip(_CLOCK_METHODS, methods, strict=True):
        setattr(clock, name, method)
    return clock


def run(
    main: Callable[[TaskQueue], Awaitable[None]],
    seed: str,
    clock: MockClock,
    hold: Callable[[Task], bool],
    on_turn: Callable[[], None],
) -> None:
    """`trio.run`, whose order of tasks comes from `seed` alone."""

    async def begin() -> None:
        runner: Any = trio_run.GLOBAL_RUN_CONTEXT.runner
        runner.runq = TaskQueue(runner.runq, hold, on_turn)
        await main(runner.runq)

    generator: Any = getattr(trio_run, _GENERATOR)
    state, was = generator.getstate(), getattr(trio_run, _SCHEDULING)
    setattr(trio_run, _SCHEDULING, True)
    generator.seed(seed)
    try:
        trio.run(begin, clock=clock)
    finally:
        setattr(trio_run, _SCHEDULING, was)
        generator.setstate(state)
