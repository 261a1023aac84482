"""Breadth-first search over the states of the real cores: every order of events of a small job.

Where the simulator draws one order of events from a seed, the explorer takes all of them.  To be
finite it knows no time (no heartbeats, no deadlines), a crash is a process replaced at once by a
fresh one, and a collective is its dataflow: a rank may complete when the messages that it needs
have been sent, whenever that was.  Each control connection keeps its order, and nothing else does.

What has been seen is kept exactly, as rows of numbers (see `cabinet`): no state is taken for
another because two digests are equal.
"""

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ftcomm_chaos.explorer import invariants
from ftcomm_chaos.explorer.state import Model, Move, Parts
from ftcomm_chaos.explorer.workload import Script

MAX_STATES = 4_000_000  # about 1 GB; a limit on memory, not a judgement of the job
REPORT_EVERY = 10_000  # states; about a second

Path = tuple[Any, Move] | None  # the path before, which others share, and one move


@dataclass(frozen=True)
class SearchResult:
    """Outcome of a search; `complete` is False if it ended at its limit on states."""

    states: int
    moves: int
    ends: int
    depth: int
    violation: str = ""
    path: tuple[Move, ...] = ()
    complete: bool = True


@dataclass(frozen=True)
class SearchProgress:
    """Progress of a search."""

    states: int
    frontier: int
    depth: int


class Search:
    """One breadth-first search."""

    def __init__(self, script: Script, max_states: int) -> None:
        first = Model.start(script)
        self._parts: Parts = first.parts
        self._limit = max_states
        self._seen = {_packed(first)}
        self._queue: deque[tuple[bytes, int, Path]] = deque([(_packed(first), 0, None)])
        self._moves = self._ends = self._depth = 0

    def run(self, progress: Callable[[SearchProgress], None]) -> SearchResult:
        """Visit every state; stop at the first violation, or when the limit is passed."""
        said = 0
        while self._queue:
            if len(self._seen) > self._limit:
                return self._found(complete=False)
            if len(self._seen) >= said + REPORT_EVERY:
                said = len(self._seen)
                progress(SearchProgress(said, len(self._queue), self._depth))
            packed, self._depth, path = self._queue.popleft()
            for move in self._moves_of(packed) or [()]:
                try:
                    self._go(packed, move, path)
                except Exception as error:  # noqa: BLE001 - whatever escapes a core is a finding
                    return self._found(f"{type(error).__name__}: {error}", (path, move))
        self._parts.check()
        return self._found()

    def _moves_of(self, packed: bytes) -> list[Move]:
        return list(_unpacked(self._parts, packed).moves())

    def _go(self, packed: bytes, move: Move, path: Path) -> None:
        self._moves += 1
        model = _unpacked(self._parts, packed)
        if not move:
            self._ends += 1
            invariants.check_stuck(model)
            return
        model.apply(move)
        after = _packed(model)
        if after not in self._seen:
            self._seen.add(after)
            self._queue.append((after, self._depth + 1, (path, move)))

    def _found(
        self, violation: str = "", path: Path = None, *, complete: bool = True
    ) -> SearchResult:
        moves: list[Move] = []
        while path is not None:
            path, move = path
            moves.append(move)
        return SearchResult(
            states=len(self._seen),
            moves=self._moves,
            ends=self._ends,
            depth=self._depth,
            violation=violation,
            path=tuple(reversed(moves)),
            complete=complete,
        )


def explore(
    script: Script,
    *,
    max_states: int = MAX_STATES,
    progress: Callable[[SearchProgress], None] = lambda _: None,
) -> SearchResult:
    """Visit every state of `script`'s job; stop at the first violation, with the shortest path."""
    return Search(script, max_states).run(progress)


def _packed(model: Model) -> bytes:
    return array("I", model.row()).tobytes()


def _unpacked(parts: Parts, packed: bytes) -> Model:
    return Model.of_row(parts, tuple(array("I", packed)))
