"""Planned trouble: which faults a seed may have, and at which place of the protocol each happens.

Each seed draws a few kinds out of all (a swarm), so that runs differ in more than their timing.
A fault happens when a process comes to a named point: just before it completes, just after it has
reported, while it serves, and so on; that is where rules break.
"""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftcomm_chaos.sim.barriers import Hurdle

if TYPE_CHECKING:
    from ftcomm_chaos.sim.process import Life
    from ftcomm_chaos.sim.simulation import Simulation


class Kind(enum.Enum):
    """What can go wrong."""

    CRASH = "crash"
    CRASH_OTHER = "crash of another"
    CRASH_TWO = "crash of two"
    CUT_DATA = "data link cut"
    SILENCE = "data link silent"
    BARRIER = "pair cannot connect"
    SILENT_BARRIER = "pair silent"
    CUT_CONTROL = "control link cut"
    PAUSE = "short stop"
    LONG_PAUSE = "long stop"
    DUPLICATE = "second life"
    PAUSE_AND_REPLACE = "stop and replace"
    TRACKER_CRASH = "tracker crash"
    TRACKER_TORN = "tracker crash between two effects"
    TRACKER_STALL = "tracker stop"


DEADLY = frozenset(
    {Kind.CRASH, Kind.CRASH_OTHER, Kind.CRASH_TWO, Kind.DUPLICATE, Kind.PAUSE_AND_REPLACE}
)
# Points that are worth more faults than their number in a run would give them.
HOT = frozenset(
    {
        *("planned", "reported", "fetching", "serving"),
        *("completing", "offered", "copied", "closed", "joined"),
    }
)
POINTS_PER_CALL = 3
LASTING = 0.6  # share of the first barriers that stay to the end
AIMED = 0.3  # share of faults that wait for one of these


class Killed(BaseException):
    """Unwinds the event in which a process has killed itself."""


@dataclass(slots=True)
class Planned:
    """One fault that waits for its point."""

    kind: Kind
    at_point: int
    name: str = ""  # a point that it waits for, empty for any


class Faults:
    """The faults of one run."""

    def __init__(self, sim: "Simulation", count: int) -> None:
        self.sim, self.rng = sim, sim.world.rng
        self.points = 0
        self.replacing = 0  # stopped processes whose second life is still to come
        self.barred: frozenset[str] | None = None  # two workers, for the rest of the run
        self.fired: list[tuple[float, Kind]] = []
        usual = [k for k in Kind if k is not Kind.CRASH_TWO or not sim.gentle]
        kinds = [*self.rng.sample(usual, self.rng.randint(1, 5)), Kind.CRASH]
        span = POINTS_PER_CALL * sim.world_size * len(sim.program.calls)
        self.waiting = sorted(
            (self._plan_one(self.rng.choice(kinds), span) for _ in range(count)),
            key=lambda planned: planned.at_point,
        )

    def _plan_one(self, kind: Kind, span: int) -> Planned:
        name = self.rng.choice(sorted(HOT)) if self.rng.random() < AIMED else ""
        return Planned(kind, self.rng.randrange(span), name)

    def on_point(self, life: "Life", name: str) -> None:
        """`life` is at the point `name`."""
        self.points += 3 if name in HOT else 1
        self.sim.counters[f"at {name}"] += 1
        for planned in self.waiting:
            if planned.at_point > self.points:
                return
            if planned.name in ("", name) and self._may(planned.kind):
                self.waiting.remove(planned)
                self._fire(planned.kind, life, name)
                return

    def _may(self, kind: Kind) -> bool:
        """A gentle run lets the job recover wholly before the next death."""
        if not self.sim.gentle or kind not in DEADLY:
            return True
        return not self.replacing and bool(self.sim.settled_lives())

    def _fire(self, kind: Kind, life: "Life", name: str) -> None:
        self.fired.append((self.sim.world.now, kind))
        self.sim.world.trace(f"FAULT {kind.value} at {life} {name}")
        apply = {
            Kind.CRASH_OTHER: self._crash_other,
            Kind.CRASH_TWO: self._crash_other,
            Kind.CUT_DATA: self._cut_data,
            Kind.SILENCE: self._silence,
            Kind.BARRIER: self._barrier,
            Kind.SILENT_BARRIER: self._silent_barrier,
            Kind.CUT_CONTROL: self._cut_control,
            Kind.PAUSE: self._pause,
            Kind.LONG_PAUSE: self._long_pause,
            Kind.DUPLICATE: self._duplicate,
            Kind.PAUSE_AND_REPLACE: self._pause_and_replace,
            Kind.TRACKER_CRASH: self._tracker_crash,
            Kind.TRACKER_TORN: self._tracker_torn,
            Kind.TRACKER_STALL: self._tracker_stall,
        }
        if kind in apply:
            apply[kind](life)
        if kind in (Kind.CRASH, Kind.CRASH_TWO):
            life.die("killed")
            raise Killed

    def _crash_other(self, life: "Life") -> None:
        others = [x for x in self.sim.current_lives() if x is not life]
        if others:
            self.rng.choice(others).die("killed")

    def _cut_data(self, life: "Life") -> None:
        del life
        streams = self.sim.network.open_streams()
        if streams:
            self.sim.network.cut(self.rng.choice(streams))

    def _silence(self, life: "Life") -> None:
        del life
        streams = self.sim.network.open_streams()
        if streams:
            self.rng.choice(streams).silent = True

    def _barrier(self, life: "Life") -> None:
        self._put_up(life, Hurdle.REFUSED)

    def _silent_barrier(self, life: "Life") -> None:
        self._put_up(life, Hurdle.SILENT)

    def _put_up(self, life: "Life", hurdle: Hurdle) -> None:
        """Between this worker and another: one pair for good, any other for a while.

        One at a time: with more, a group of three falls apart, and no relay helps.
        """
        others = [name for name in self.sim.worker_ids if name != life.worker_id]
        if not others:
            return
        network, names = self.sim.network, frozenset((life.worker_id, self.rng.choice(others)))
        if network.barriers.standing:
            return
        network.put_up(names, hurdle)
        if self.barred is None and self.rng.random() < LASTING:
            self.barred = names
        else:
            self.sim.world.after(self.rng.uniform(0.1, 8.0), network.barriers.take_down, names)

    @staticmethod
    def _cut_control(life: "Life") -> None:
        if life.conn is not None:
            life.conn.cut()

    def _pause(self, life: "Life") -> None:
        self._stop(life, self.rng.uniform(0.05, 0.95))

    def _long_pause(self, life: "Life") -> None:
        self._stop(life, self.rng.uniform(1.0, 4.0))

    def _stop(self, life: "Life", deadlines: float) -> None:
        if life.paused_until is None:
            life.pause(deadlines * self.sim.settings.detect_within)

    def _duplicate(self, life: "Life") -> None:
        if life.worker_id in self.sim.worker_ids:
            self.sim.start_life(life.worker_id)

    def _pause_and_replace(self, life: "Life") -> None:
        self._stop(life, self.rng.uniform(0.6, 5.0))
        self.replacing += 1
        self.sim.world.after(self.rng.uniform(0.0, 2.0), self._replace, life)

    def _replace(self, life: "Life") -> None:
        self.replacing -= 1
        self._duplicate(life)

    def _tracker_crash(self, life: "Life") -> None:
        del life
        self.sim.tracker.crash()

    def _tracker_torn(self, life: "Life") -> None:
        del life
        self.sim.tracker.crash_after = self.rng.randrange(1, 9)

    def _tracker_stall(self, life: "Life") -> None:
        del life
        self.sim.tracker.stall(self.rng.uniform(0.3, 3.0))
