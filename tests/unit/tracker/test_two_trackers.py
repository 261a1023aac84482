"""Random courses of trackers without a journal: of those that lead, one has all the workers."""

import random
from typing import Any

import pytest

from ftcomm.protocol.messages import Hello, Plan, Welcome
from ftcomm.recovery.events import Attached, Detached, Effect, Received, Redial, SendControl
from ftcomm.recovery.machine import Identity, MachineLimits, WorkerMachine
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import ConnectionLost, Event, Joined, Said, Send, StepDown
from ftcomm_tracker.core.rebuild.decision import Rebuild
from ftcomm_tracker.core.roster import JobState, Roster
from tests.unit.tracker.roster_scenario import SETTINGS

WORKERS = 3
STEPS = 400
SEEDS = 20


class Course:
    """Workers of one job, its old tracker, and two that are started without a journal.

    A message may be on its way for any time.  The old tracker is stopped and wakes up late: it has
    its connections, and what was sent to it, until then.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        fresh = Durable.fresh("job", WORKERS, SETTINGS.to_wire())
        self.trackers = {b"old": Roster(SETTINGS, fresh, generation=1, now=0.0, tracker=b"old")}
        self.workers = [self._worker(rank) for rank in range(WORKERS)]
        self.at: list[tuple[bytes, int] | None] = [None] * WORKERS  # tracker and connection
        self.up: dict[tuple[bytes, int], list[Event]] = {}
        self.down: dict[tuple[bytes, int], list[Any]] = {}
        self.owner: dict[tuple[bytes, int], int] = {}
        self.stopped = False
        self.ended: set[bytes] = set()
        self.conns = 0

    @staticmethod
    def _worker(rank: int) -> WorkerMachine:
        identity = Identity(f"w{rank}", f"nonce {rank}".encode(), "h", "a", 1)
        return WorkerMachine(identity, MachineLimits(), now=0.0)

    def dial(self, rank: int, tracker: bytes) -> None:
        """The worker loses its tracker, and dials this one."""
        self.hang_up(rank)
        if tracker in self.ended:
            return
        self.conns += 1
        conn = self.at[rank] = (tracker, self.conns)
        self.owner[conn], self.up[conn], self.down[conn] = rank, [], []
        self.hear(rank, Attached())

    def hang_up(self, rank: int) -> None:
        conn, self.at[rank] = self.at[rank], None
        if conn is not None:
            self.up[conn].append(ConnectionLost(conn[1], "gone"))
            self.down[conn] = []
            self.hear(rank, Detached("gone"))

    def hear(self, rank: int, event: Any) -> None:
        effects: list[Effect] = self.workers[rank].handle(event, now=0.0)
        conn = self.at[rank]
        for effect in effects:
            if isinstance(effect, SendControl) and conn is not None:
                message: Any = effect.message
                said = isinstance(message, Hello)
                self.up[conn].append(Joined(conn[1], message) if said else Said(conn[1], message))
            elif isinstance(effect, Redial):
                self.hang_up(rank)

    def deliver_up(self, conn: tuple[bytes, int]) -> None:
        event = self.up[conn].pop(0)
        if conn[0] not in self.ended:
            for effect in self.trackers[conn[0]].handle(event, now=0.0):
                self._carry_out(conn[0], effect)

    def _carry_out(self, tracker: bytes, effect: Any) -> None:
        if isinstance(effect, Send) and self.at[self.owner[tracker, effect.conn]] == (
            tracker,
            effect.conn,
        ):
            self.down[tracker, effect.conn].append(effect.message)
        elif isinstance(effect, StepDown):
            self.ended.add(tracker)
            for rank, at in enumerate(self.at):
                if at is not None and at[0] == tracker:
                    self.hang_up(rank)

    def deliver_down(self, conn: tuple[bytes, int]) -> None:
        message = self.down[conn].pop(0)
        worker = self.workers[self.owner[conn]]
        before = worker.contact.generation
        self.hear(self.owner[conn], Received(message))
        assert worker.contact.generation >= before, "a worker follows an older tracker"
        if isinstance(message, Welcome | Plan) and self.at[self.owner[conn]] == conn:
            followed = worker.contact.tracker
            assert followed == conn[0], "a worker acts for a tracker that it does not follow"

    def moves(self) -> list[tuple[Any, ...]]:
        awake = [c for c, queue in self.up.items() if queue and self._may_arrive(c)]
        moves: list[tuple[Any, ...]] = [(self.deliver_up, conn) for conn in awake]
        moves += [(self.deliver_down, conn) for conn, queue in self.down.items() if queue]
        return moves * 4

    def _may_arrive(self, conn: tuple[bytes, int]) -> bool:
        """A worker ends a connection before it dials again: no hello overtakes that end."""
        earlier = any(
            queue and c[0] == conn[0] and c[1] < conn[1] and self.owner[c] == self.owner[conn]
            for c, queue in self.up.items()
        )
        return not earlier and not (conn[0] == b"old" and self.stopped)

    def settle(self) -> None:
        """Let everything arrive."""
        while moves := self.moves():
            move, *arguments = self.rng.choice(moves)
            move(*arguments)

    def leaders(self) -> list[bytes]:
        """Trackers whose plan is in force, as they believe, and that have all the workers."""
        return [
            name
            for name, roster in self.trackers.items()
            if name not in self.ended
            and roster.state is JobState.RUNNING
            and all(
                at is not None and at[0] == name and worker.contact.welcomed
                for at, worker in zip(self.at, self.workers, strict=True)
            )
        ]


def a_course(seed: int) -> Course:
    """The job runs under its old tracker, which is then stopped; two others are started."""
    course = Course(seed)
    for rank in range(WORKERS):
        course.dial(rank, b"old")
    course.settle()
    assert course.leaders() == [b"old"]
    course.stopped = True
    for name in (b"one", b"two"):
        fresh = Durable.fresh(name.decode(), WORKERS)
        rebuild = Rebuild(name, is_asked=True)
        course.trackers[name] = Roster(
            SETTINGS, fresh, generation=1, now=0.0, tracker=name, rebuild=rebuild
        )
    return course


@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_tracker_leads_whatever_the_order(seed: int) -> None:
    course = a_course(seed)
    for step in range(STEPS):
        if step == STEPS // 2:
            course.stopped = False
        moves = course.moves()
        live = [name for name in course.trackers if name not in course.ended]
        moves += [(course.dial, rank, course.rng.choice(live)) for rank in range(WORKERS)]
        move, *arguments = course.rng.choice(moves)
        move(*arguments)
        generations = [
            course.trackers[name].snapshot(0.0)["generation"] for name in course.leaders()
        ]
        assert len(set(generations)) == len(generations) <= 1
    for _ in range(3):  # a tracker that is asked too late ends, and its worker dials again
        for rank in range(WORKERS):
            at = course.at[rank]
            if at is None or at[0] != b"one":
                course.dial(rank, b"one" if b"one" not in course.ended else b"two")
        course.settle()
    assert len(course.leaders()) == 1 or not {b"one", b"two"} - course.ended
    assert all(worker.view.epoch for worker in course.workers)
