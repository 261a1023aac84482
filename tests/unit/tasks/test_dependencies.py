"""Order of tasks: every allowed order gives the result of running them one by one."""

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from ftcomm.tasks import dependencies
from ftcomm.tasks.dependencies import Dependencies, Ready, Skip
from tests.helpers.interrupts import interrupted, places

NAMES = "abcd"
Programs = some.lists(
    some.tuples(
        some.sets(some.sampled_from(NAMES)), some.sets(some.sampled_from(NAMES)), some.booleans()
    ),
    max_size=25,
)


class FailedError(Exception):
    """Exception that a task of a program raises."""


@dataclass
class World:
    """Values of variables, what became of each task, and who has which error."""

    values: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(NAMES, ()))
    fates: dict[int, str] = field(default_factory=dict)


def one_by_one(program: list[tuple[set[str], set[str], bool]]) -> World:
    """The meaning of a program, written down without any line."""
    world, flaws = World(), dict[str, int]()
    for number, (read, mutate, fails) in enumerate(program):
        found = [flaws[name] for name in read | mutate if name in flaws]
        if found:
            world.fates[number] = f"skipped by {min(found)}"
            flaws |= dict.fromkeys(mutate, min(found))
        elif fails:
            world.fates[number] = "failed"
            flaws |= dict.fromkeys(mutate, number)
        else:
            world.fates[number] = "ran"
            seen = [world.values[name] for name in sorted(read | mutate)]
            world.values |= dict.fromkeys(mutate, (number, *seen))
    return world


class Interleaved:
    """Runs a program with many tasks at once; `choose` says what happens next."""

    def __init__(self, program: list[tuple[set[str], set[str], bool]], data: Any) -> None:
        self.program, self.data = program, data
        self.lines, self.world = Dependencies(), World()
        self.running: dict[int, list[Any]] = {}  # what each saw when it began

    def run(self) -> World:
        pushed = 0
        while pushed < len(self.program) or self.running:
            may_push = [-1] if pushed < len(self.program) else []
            what = self.data.draw(some.sampled_from([*may_push, *sorted(self.running)]))
            if what >= 0:
                self.finish(what)
                continue
            read, mutate, _ = self.program[pushed]
            self.take(self.lines.push(pushed, read, mutate))
            pushed += 1
        assert self.lines.pending == 0
        return self.world

    def take(self, decided: Any) -> None:
        for decision in decided:
            match decision:
                case Ready(task):
                    self.running[task] = self.seen(task)
                case Skip(task, error):
                    self.world.fates[task] = f"skipped by {error.args[0]}"

    def seen(self, task: int) -> list[Any]:
        read, mutate, _ = self.program[task]
        return [self.world.values[name] for name in sorted(read | mutate)]

    def finish(self, task: int) -> None:
        seen = self.running.pop(task)
        assert seen == self.seen(task), "nobody has written what a running task uses"
        _, mutate, fails = self.program[task]
        self.world.fates[task] = "failed" if fails else "ran"
        if fails:
            self.take(self.lines.done(task, FailedError(task)))
            return
        self.world.values |= dict.fromkeys(mutate, (task, *seen))
        self.take(self.lines.done(task))


@settings(max_examples=300)
@given(program=Programs, data=some.data())
def test_every_order_that_is_allowed_gives_what_one_by_one_gives(program: Any, data: Any) -> None:
    assert Interleaved(program, data).run() == one_by_one(program)


def test_readers_run_at_once_and_writers_alone() -> None:
    lines = Dependencies()
    decided = [
        lines.push(0, "", "a"),
        lines.push(1, "a", "b"),
        lines.push(2, "a", "c"),
        lines.push(3, "c", "a"),
        lines.push(4, "", "d"),
    ]
    assert decided == [[Ready(0)], [], [], [], [Ready(4)]]
    finished = [lines.done(task) for task in (0, 2, 1, 3, 4)]
    assert finished == [[Ready(1), Ready(2)], [], [Ready(3)], [], []]


def test_a_writer_that_waits_keeps_later_readers_behind_it() -> None:
    lines = Dependencies()
    assert [lines.push(0, "a", ""), lines.push(1, "", "a"), lines.push(2, "a", "")] == [
        [Ready(0)],
        [],
        [],
    ]
    assert [lines.done(0), lines.done(1)] == [[Ready(1)], [Ready(2)]]


def test_a_task_of_nothing_runs_at_once_and_leaves_nothing() -> None:
    lines = Dependencies()
    assert (lines.push(0, "", ""), lines.done(0), lines.pending) == ([Ready(0)], [], 0)


def test_what_is_done_takes_no_memory() -> None:
    lines = Dependencies()
    for task in range(100):
        lines.push(task, [("x", task)], [("y", task)])
        lines.done(task)
    assert lines._variables == {}


def test_two_that_are_skipped_at_once_may_be_the_last_of_a_variable() -> None:
    lines, error = Dependencies(), FailedError("first")
    lines.push(0, "", "a")
    lines.push(1, "ab", "")
    lines.push(2, "ab", "")
    assert lines.done(0, error) == [Skip(1, error), Skip(2, error)]


def test_errors_are_passed_on_until_they_are_forgotten() -> None:
    lines, error = Dependencies(), FailedError("first")
    lines.push(0, "", "a")
    lines.push(1, "a", "b")
    lines.push(2, "b", "")
    assert lines.done(0, error) == [Skip(1, error), Skip(2, error)]
    assert lines.push(3, "b", "c") == [Skip(3, error)]
    lines.forget_errors()
    assert lines.push(4, "abc", "") == [Ready(4)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_errors_the_earlier_task_counts_whichever_failed_first(
    order: tuple[int, int],
) -> None:
    lines = Dependencies()
    lines.push(0, "", "a")
    lines.push(1, "", "b")
    lines.push(2, "ab", "")
    errors = [FailedError(0), FailedError(1)]
    decided = [decision for task in order for decision in lines.done(task, errors[task])]
    assert decided == [Skip(2, errors[0])]


def test_a_push_that_was_cut_short_anywhere_can_be_taken_back() -> None:
    """With tasks before it that run, that wait, and that have failed."""
    for number in places():
        lines = Dependencies()
        lines.push(0, [], ["x"])
        lines.push(1, ["x", "y"], [])
        lines.push(2, ["y"], ["z"])
        lines.done(2, ValueError())
        keys = (["x", "y", "z"], ["new"])
        saved, before = lines.saved(["x", "y", "z", "new"]), copy.deepcopy(vars(lines))
        if not interrupted(lambda d=lines, k=keys: d.push(3, *k), number, dependencies):
            break
        lines.take_back(3, saved)
        assert repr(vars(lines)) == repr(before)
    assert number > 200
