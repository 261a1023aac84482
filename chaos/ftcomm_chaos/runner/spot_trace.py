"""A recorded trace of machines that come and go, and who runs where because of it: pure.

The format is that of recorded spot instances: ``milliseconds,add|remove,node`` on each line.
Nodes fill the places of the job in the order in which they come.  When a node goes, the worker on
it is lost, and the next idle node takes its place; while there is none, the place stays empty.
"""

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ftcomm.errors import ConfigError

MAX_LINES = 1_000_000


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A node has come, or goes.

    Attributes:
        at_s: seconds since the trace's first event.
        comes: else it goes.
        node: its name.
    """

    at_s: float
    comes: bool
    node: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start this worker: `node` has taken its place."""

    worker: str
    node: str


@dataclass(frozen=True, slots=True)
class Lose:
    """The node of this worker is gone."""

    worker: str
    node: str


def read_trace(path: Path) -> list[NodeEvent]:
    """The events of a file, in order of time; those of one time in the order of the file.

    Raises:
        ConfigError: it cannot be read, or a line is malformed, which is named.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a mark
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from None
    return parse_trace(text)


def parse_trace(text: str) -> list[NodeEvent]:
    """The same of a text."""
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        raise ConfigError(f"the trace has {len(lines)} lines, at most {MAX_LINES} are taken")
    rows = [_row(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise ConfigError("the trace is empty", remedy="write lines ms,add|remove,node")
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    events = [NodeEvent((ms - first) / 1000, what == "add", node) for ms, what, node in rows]
    _check_order(events)
    return events


def _row(number: int, line: str) -> tuple[int, str, str]:
    parts = [part.strip() for part in line.split(",")]
    good = len(parts) == 3 and parts[0].isdecimal() and len(parts[0]) < 16
    if not good or parts[1] not in ("add", "remove") or not parts[2]:
        remedy = "write milliseconds,add,node or milliseconds,remove,node"
        raise ConfigError(f"line {number} of the trace is {line[:80]!r}", remedy=remedy)
    return int(parts[0]), parts[1], parts[2]


def _check_order(events: Iterable[NodeEvent]) -> None:
    here: set[str] = set()
    for event in events:
        if event.comes == (event.node in here):
            what = "comes though it is there" if event.comes else "goes though it is not there"
            raise ConfigError(f"the trace is wrong: {event.node} {what} at {event.at_s:g} s")
        here ^= {event.node}


class NodeAssignments:
    """Placement of workers on nodes: follows a trace, names the workers to start and those lost."""

    def __init__(self, workers: Iterable[str]) -> None:
        """All places are empty."""
        self._empty = deque(workers)
        self._idle: deque[str] = deque()
        self._on: dict[str, str] = {}  # node -> worker

    @property
    def full(self) -> bool:
        """No place is empty."""
        return not self._empty

    def handle(self, event: NodeEvent) -> list[Start | Lose]:
        """A node comes or goes."""
        if event.comes:
            self._idle.append(event.node)
            return self._fill()
        if event.node in self._idle:
            self._idle.remove(event.node)
            return []
        worker = self._on.pop(event.node)
        self._empty.append(worker)
        return [Lose(worker, event.node), *self._fill()]

    def fill_up(self) -> list[Start | Lose]:
        """The trace is over: as many nodes come as there are empty places."""
        self._idle.extend(f"late{number}" for number in range(len(self._empty)))
        return self._fill()

    def _fill(self) -> list[Start | Lose]:
        started: list[Start | Lose] = []
        while self._idle and self._empty:
            node, worker = self._idle.popleft(), self._empty.popleft()
            self._on[node] = worker
            started.append(Start(worker, node))
        return started


def losses(events: Iterable[NodeEvent], world_size: int) -> int:
    """Return the workers that a trace takes from a job of that size, over the trace's length."""
    places = NodeAssignments(str(index) for index in range(world_size))
    moves = itertools.chain.from_iterable(map(places.handle, events))
    return sum(isinstance(move, Lose) for move in moves)
