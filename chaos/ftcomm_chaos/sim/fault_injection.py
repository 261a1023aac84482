"""Planned trouble, carried out.

A fault happens when a process comes to a named point: just before it completes, just after it has
reported, while it serves, and so on; that is where rules break.
"""

import random
from typing import TYPE_CHECKING

from ftcomm_chaos.sim.fault_plan import DEADLY, HOT, Kind, Planned
from ftcomm_chaos.sim.network.byte_pipe import End
from ftcomm_chaos.sim.partitions import Hurdle

if TYPE_CHECKING:
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.worker.process import Life

SOON_BYTES = 300  # a few messages; the handshake alone is 240 bytes
HEARD = 0.5  # share of half-open connections whose gone end says so when it is sent something
LASTING = 0.6  # share of the first barriers that stay to the end


class Killed(BaseException):
    """Unwinds the event in which a process has killed itself."""


class CutShort(Exception):  # noqa: N818 - it stands for KeyboardInterrupt
    """A local exception that ends the user's call."""


class Faults:
    """The faults of one run.

    Attributes:
        waiting: those whose point has not come.
        fired: those that happened, with the time.
    """

    def __init__(self, sim: "Simulation", plan: tuple[Planned, ...]) -> None:
        self.sim = sim
        self.points = 0
        self.replacing = 0  # stopped processes whose second life is still to come
        self.barred: frozenset[str] | None = None  # two workers, for the rest of the run
        self.waiting = list(plan)
        self.fired: list[tuple[float, Planned]] = []

    def on_point(self, life: "Life", name: str) -> None:
        """`life` is at the point `name`."""
        self.points += 3 if name in HOT else 1
        self.sim.counters[f"at {name}"] += 1
        for planned in self.waiting:
            if planned.at_point > self.points:
                return
            if planned.name in ("", name) and self._may(planned.kind):
                self.waiting.remove(planned)
                self._fire(planned, life, name)
                return

    def _may(self, kind: Kind) -> bool:
        """A gentle run lets the job recover wholly before the next death."""
        if not self.sim.conditions.gentle or kind not in DEADLY:
            return True
        return not self.replacing and bool(self.sim.settled_lives())

    def _fire(self, planned: Planned, life: "Life", name: str) -> None:
        kind = planned.kind
        self.fired.append((self.sim.world.now, planned))
        self.sim.world.trace(f"FAULT {planned.number} {kind.value} at {life} {name}")
        apply = {
            Kind.CRASH_OTHER: self._crash_other,
            Kind.CRASH_TWO: self._crash_other,
            Kind.CRASH_ALL_BUT_ONE: self._crash_all_but_one,
            Kind.CUT_DATA: self._cut_data,
            Kind.SILENCE: self._silence,
            Kind.BARRIER: self._barrier,
            Kind.SILENT_BARRIER: self._silent_barrier,
            Kind.CUT_CONTROL: self._cut_control,
            Kind.CUT_SHORT: self._cut_short,
            Kind.PAUSE: self._pause,
            Kind.LONG_PAUSE: self._long_pause,
            Kind.DUPLICATE: self._duplicate,
            Kind.PAUSE_AND_REPLACE: self._pause_and_replace,
            Kind.TRACKER_CRASH: self._tracker_crash,
            Kind.TRACKER_TORN: self._tracker_torn,
            Kind.TRACKER_STALL: self._tracker_stall,
            Kind.REFUSAL: self._refusal,
            Kind.CUT_INSIDE: self._cut_inside,
            Kind.STALL: self._hold_up,
            Kind.HALF_OPEN: self._half_open,
            Kind.ONE_WAY: self._one_way,
            Kind.ONE_WAY_BARRIER: self._one_way_barrier,
        }
        if kind in apply:
            apply[kind](life, planned.luck(self.sim.world.seed))
        if kind in (Kind.CRASH, Kind.CRASH_TWO):
            life.die("killed")
            raise Killed

    def _crash_other(self, life: "Life", luck: random.Random) -> None:
        others = [x for x in self.sim.current_lives() if x is not life]
        if others:
            luck.choice(others).die("killed")

    def _crash_all_but_one(self, life: "Life", luck: random.Random) -> None:
        members = self.sim.current_lives()
        if not members:
            return
        left = luck.choice(members)
        for other in members:
            if other not in (life, left):
                other.die("killed")
        if life in members and life is not left:
            life.die("killed")
            raise Killed

    def _cut_data(self, life: "Life", luck: random.Random) -> None:
        del life
        streams = self.sim.network.open_streams()
        if streams:
            self.sim.network.cut(luck.choice(streams))

    def _silence(self, life: "Life", luck: random.Random) -> None:
        del life
        streams = self.sim.network.open_streams()
        if streams:
            self.sim.network.silence(luck.choice(streams))

    def _barrier(self, life: "Life", luck: random.Random) -> None:
        self._put_up(life, Hurdle.REFUSED, luck)

    def _silent_barrier(self, life: "Life", luck: random.Random) -> None:
        self._put_up(life, Hurdle.SILENT, luck)

    def _one_way_barrier(self, life: "Life", luck: random.Random) -> None:
        self._put_up(life, Hurdle.ONE_WAY, luck)

    def _put_up(self, life: "Life", hurdle: Hurdle, luck: random.Random) -> None:
        """Between this worker and another: one pair for good, any other for a while.

        One at a time: with more, a group of three falls apart, and no relay helps.
        """
        others = [name for name in self.sim.worker_ids if name != life.worker_id]
        if not others:
            return
        network, names = self.sim.network, frozenset((life.worker_id, luck.choice(others)))
        if network.barriers.standing:
            return
        network.put_up(names, hurdle)
        if self.barred is None and luck.random() < LASTING:
            self.barred = names
        else:
            self.sim.world.after(luck.uniform(0.1, 8.0), network.barriers.take_down, names)

    @staticmethod
    def _cut_control(life: "Life", luck: random.Random) -> None:
        del luck
        if life.conn is not None:
            life.conn.cut()

    @staticmethod
    def _cut_short(life: "Life", luck: random.Random) -> None:
        """The next time that the user's thread runs in a call."""
        del luck
        life.cut_next = True
        life.poke()

    def _pause(self, life: "Life", luck: random.Random) -> None:
        self._stop(life, luck.uniform(0.05, 0.95))

    def _long_pause(self, life: "Life", luck: random.Random) -> None:
        self._stop(life, luck.uniform(1.0, 4.0))

    def _stop(self, life: "Life", deadlines: float) -> None:
        if life.paused_until is None:
            life.pause(deadlines * self.sim.settings.detect_within)

    def _duplicate(self, life: "Life", luck: random.Random) -> None:
        del luck
        self._start_again(life)

    def _start_again(self, life: "Life") -> None:
        if life.worker_id in self.sim.worker_ids:
            self.sim.start_life(life.worker_id)

    def _pause_and_replace(self, life: "Life", luck: random.Random) -> None:
        self._stop(life, luck.uniform(0.6, 5.0))
        self.replacing += 1
        self.sim.world.after(luck.uniform(0.0, 2.0), self._replace, life)

    def _replace(self, life: "Life") -> None:
        self.replacing -= 1
        self._start_again(life)

    def _tracker_crash(self, life: "Life", luck: random.Random) -> None:
        del life, luck
        self.sim.tracker.crash()

    def _tracker_torn(self, life: "Life", luck: random.Random) -> None:
        del life
        self.sim.tracker.crash_after = luck.randrange(1, 9)

    def _tracker_stall(self, life: "Life", luck: random.Random) -> None:
        del life
        self.sim.tracker.stall(luck.uniform(0.3, 3.0))

    def _refusal(self, life: "Life", luck: random.Random) -> None:
        """As by a firewall that was changed: the connection goes, for a while no other comes."""
        self.sim.tracker.refuse(life.worker_id, self._deadlines(luck, 0.1, 3.0))
        if life.conn is not None:
            life.conn.cut()

    # --- of bytes -----------------------------------------------------------------------------

    def _deadlines(self, luck: random.Random, lo: float, hi: float) -> float:
        """Seconds, in multiples of `detect_within`."""
        return luck.uniform(lo, hi) * self.sim.settings.detect_within

    def _end_of_a_pipe(self, luck: random.Random) -> End | None:
        """One end of some connection: to the tracker, or between two workers."""
        control = [conn.pipe for conn in self.sim.tracker.conns.values() if conn.pipe is not None]
        control = [pipe for pipe in control if pipe.is_open]
        between = self.sim.network.open_pipes()
        pipes = luck.choice([pool for pool in (control, between) if pool] or [[]])
        return luck.choice(luck.choice(pipes).ends) if pipes else None

    def _cut_inside(self, life: "Life", luck: random.Random) -> None:
        del life
        end = self._end_of_a_pipe(luck)
        if end is not None:
            end.pipe.cut_after(end, luck.randrange(SOON_BYTES))

    def _hold_up(self, life: "Life", luck: random.Random) -> None:
        del life
        end = self._end_of_a_pipe(luck)
        if end is not None:
            end.pipe.stall(end, self._deadlines(luck, 0.1, 2.5))

    def _half_open(self, life: "Life", luck: random.Random) -> None:
        del life
        end = self._end_of_a_pipe(luck)
        if end is not None:
            end.pipe.forget(end, audible=luck.random() < HEARD)

    def _one_way(self, life: "Life", luck: random.Random) -> None:
        del life
        end = self._end_of_a_pipe(luck)
        if end is not None:
            end.pipe.silence(end)
