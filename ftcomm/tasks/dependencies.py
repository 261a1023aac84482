"""Dependencies: which of the tasks that were pushed may run, by what they read and mutate.

Every variable has a line of the tasks that want it, in the order in which they were pushed.  At its
head stands either one task that mutates it or any number that read it.  A task runs when it stands
at the head of all its lines.  So every task finds what it would find if all ran one after the
other, and tasks that share nothing, or only read what they share, may run at once.

A task that fails leaves its error with the variables that it mutates.  A task that reads or mutates
one of them is skipped, and passes the error on.  Which tasks are skipped, and with which error,
depends on the order of pushing alone.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Ready(NamedTuple):
    """The task may run: say `done` when it has."""

    task: int


class Skip(NamedTuple):
    """The task will never run, because of the error of an earlier one."""

    task: int
    error: BaseException


class _Flaw(NamedTuple):
    """An error, and the task that raised it."""

    task: int
    error: BaseException


class _Claim(NamedTuple):
    """One task's place in the line of one variable."""

    task: int
    mutates: bool


@dataclass(slots=True)
class _Variable:
    line: deque[_Claim] = field(default_factory=deque)
    readers: int = 0
    is_mutated: bool = False
    flaw: _Flaw | None = None

    def copied(self) -> "_Variable":
        """The same, to go back to."""
        return _Variable(self.line.copy(), self.readers, self.is_mutated, self.flaw)

    @property
    def is_forgotten(self) -> bool:
        """Nothing has to be remembered of it."""
        return not (self.line or self.readers or self.is_mutated or self.flaw)

    def advance(self) -> list[int]:
        """Admit from the head of the line all that may run at once."""
        admit = []
        while self.line and not self.is_mutated:
            claim = self.line[0]
            if claim.mutates and self.readers:
                break
            self.line.popleft()
            self.is_mutated = claim.mutates
            self.readers += not claim.mutates
            admit.append(claim.task)
        return admit


@dataclass(slots=True)
class _DependentTask:
    read: tuple[Hashable, ...]
    mutate: tuple[Hashable, ...]
    missing: int  # lines at whose head it does not stand yet

    @property
    def variables(self) -> tuple[Hashable, ...]:
        return self.read + self.mutate


Saved = Mapping[Hashable, _Variable | None]


class Dependencies:
    """The tasks that are not done; numbers of tasks grow from push to push."""

    def __init__(self) -> None:
        self._variables: dict[Hashable, _Variable] = {}
        self._tasks: dict[int, _DependentTask] = {}

    @property
    def pending(self) -> int:
        """Number of tasks that are not done."""
        return len(self._tasks)

    def push(
        self, task: int, read: Iterable[Hashable], mutate: Iterable[Hashable]
    ) -> Sequence[Ready | Skip]:
        """Add a task behind all others; what is both read and mutated counts as mutated.

        Returns:
            what is decided: about this task, or nothing yet.
        """
        mutated = tuple(dict.fromkeys(mutate))
        only_read = tuple(key for key in dict.fromkeys(read) if key not in mutated)
        entry = self._tasks[task] = _DependentTask(
            only_read, mutated, len(only_read) + len(mutated)
        )
        for key in entry.variables:
            variable = self._variables.setdefault(key, _Variable())
            variable.line.append(_Claim(task, key in mutated))
        return self._decide([] if entry.variables else [task], entry.variables)

    def saved(self, keys: Iterable[Hashable]) -> Saved:
        """Return the state that a push of a task with `keys` will change."""
        found = ((key, self._variables.get(key)) for key in keys)
        return {key: None if entry is None else entry.copied() for key, entry in found}

    def take_back(self, task: int, saved: Saved) -> None:
        """Undo a push that was cut short anywhere, before anything else has happened."""
        self._tasks.pop(task, None)
        for key, variable in saved.items():
            self._variables.pop(key, None)
            if variable is not None:
                self._variables[key] = variable

    def done(self, task: int, error: BaseException | None = None) -> Sequence[Ready | Skip]:
        """A task that was to run has run, or has raised `error`.

        Returns:
            what is decided by that about others, in their order.
        """
        flaw = None if error is None else _Flaw(task, error)
        return self._decide([], self._leave(task, flaw))

    def has(self, key: Hashable) -> bool:
        """Tell whether a task that is not done wants this variable, or an error is left with it."""
        return key in self._variables

    def forget_errors(self) -> None:
        """All variables are sound again."""
        for variable in self._variables.values():
            variable.flaw = None
        self._variables = {k: v for k, v in self._variables.items() if not v.is_forgotten}

    def _leave(self, task: int, flaw: _Flaw | None) -> tuple[Hashable, ...]:
        """Take a task from the heads of its lines; returns whose lines those are."""
        entry = self._tasks.pop(task)
        for key in entry.read:
            self._variables[key].readers -= 1
        for key in entry.mutate:
            variable = self._variables[key]
            variable.is_mutated = False
            variable.flaw = flaw
        return entry.variables

    def _decide(self, ready: list[int], moved: Iterable[Hashable]) -> Sequence[Ready | Skip]:
        """Admit all for whom the lines of the `moved` variables have room; skip the others."""
        decided: list[Ready | Skip] = []
        keys = deque(moved)
        while ready or keys:
            while keys:
                ready += self._admit(keys.popleft())
            for task in ready:
                flaw = self._flaw_of(task)
                if flaw is None:
                    decided.append(Ready(task))
                else:
                    decided.append(Skip(task, flaw.error))
                    keys += self._leave(task, flaw)
            ready = []
        return sorted(decided, key=lambda decision: decision.task)

    def _admit(self, key: Hashable) -> list[int]:
        """The tasks that stand at the heads of all their lines by a step of this one."""
        variable = self._variables.get(key)
        if variable is None:  # two tasks that were skipped at once were its last
            return []
        ready = []
        for task in variable.advance():
            self._tasks[task].missing -= 1
            if not self._tasks[task].missing:
                ready.append(task)
        if variable.is_forgotten:
            del self._variables[key]
        return ready

    def _flaw_of(self, task: int) -> _Flaw | None:
        """The earliest error that its variables have."""
        flaws = [self._variables[key].flaw for key in self._tasks[task].variables]
        return min((f for f in flaws if f is not None), key=lambda f: f.task, default=None)
