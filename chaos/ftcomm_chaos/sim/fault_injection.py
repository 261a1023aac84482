"""Planned trouble, carried out.

A fault happens when a process comes to a named point: just before it completes, just after it has
reported, while it serves, and so on; that is where rules break.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ftcomm_chaos.sim.fault_plan import (
    DEADLY,
    HOT,
    OF_BYTES,
    TOTAL,
    SimulatedFault,
    SimulatedFaultKind,
)
from ftcomm_chaos.sim.network.byte_pipe import End
from ftcomm_chaos.sim.network.frames import FrameStream
from ftcomm_chaos.sim.partitions import PathLoss

if TYPE_CHECKING:
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

Action = Callable[["SimulatedProcess", random.Random], None]
SOON_BYTES = 300  # a few messages; the handshake alone is 240 bytes
HEARD = 0.5  # share of half-open connections whose gone end says so when it is sent something
LASTING = 0.6  # share of the first barriers that stay to the end


class Killed(BaseException):
    """Unwinds the event in which a process has killed itself."""


class CutShort(Exception):  # noqa: N818 - it stands for the user's own
    """A local exception that ends the user's call."""


class Faults:
    """The faults of one run.

    Attributes:
        waiting: those whose point has not come.
        fired: those that happened, with the time.
    """

    def __init__(self, sim: "Simulation", plan: tuple[SimulatedFault, ...]) -> None:
        self.sim = sim
        self.points = 0
        self.replacing = 0  # stopped processes whose second incarnation is still to come
        self.barred: frozenset[str] | None = None  # two workers, for the rest of the run
        self.waiting = list(plan)
        self.fired: list[tuple[float, SimulatedFault]] = []

    def on_point(self, process: "SimulatedProcess", name: str) -> None:
        """`process` is at the point `name`."""
        self.points += 3 if name in HOT else 1
        self.sim.counters[f"at {name}"] += 1
        for planned in self.waiting:
            if planned.at_point > self.points:
                return
            if planned.name in ("", name) and self._may(planned.kind):
                self.waiting.remove(planned)
                self._fire(planned, process, name)
                return

    def _may(self, kind: SimulatedFaultKind) -> bool:
        """A gentle run lets the job recover wholly before the next death."""
        if kind in DEADLY and self.sim.tracker.disk_lost and not self.sim.disks:
            return False  # only members know the job then: the last of them may not die
        if not self.sim.conditions.gentle or kind not in DEADLY:
            return True
        return not self.replacing and bool(self.sim.settled_processes())

    def _fire(self, planned: SimulatedFault, process: "SimulatedProcess", name: str) -> None:
        kind = planned.kind
        self.fired.append((self.sim.world.now, planned))
        self.sim.world.trace(f"FAULT {planned.number} {kind.value} at {process} {name}")
        if kind in TOTAL:
            self._lose(kind, planned.rng(self.sim.world.seed))
            raise Killed
        action = self._action(kind)
        if action is not None:
            action(process, planned.rng(self.sim.world.seed))
        if kind in (SimulatedFaultKind.CRASH, SimulatedFaultKind.CRASH_TWO):
            process.die("killed")
            raise Killed

    def _action(self, kind: SimulatedFaultKind) -> Action | None:
        """The deed of a kind; None if it is the death of the process at the point alone."""
        tracker, network, kinds = self.sim.tracker, self.sim.network, SimulatedFaultKind
        actions: dict[SimulatedFaultKind, Action] = {
            kinds.CRASH_OTHER: self._crash_other,
            kinds.CRASH_TWO: self._crash_other,
            kinds.CRASH_ALL_BUT_ONE: self._crash_all_but_one,
            kinds.CUT_DATA: lambda _, rng: self._hurt_a_link(network.cut, rng),
            kinds.SILENCE: lambda _, rng: self._hurt_a_link(network.silence, rng),
            kinds.BARRIER: partial(self._put_up, PathLoss.REFUSED),
            kinds.SILENT_BARRIER: partial(self._put_up, PathLoss.SILENT),
            kinds.ONE_WAY_BARRIER: partial(self._put_up, PathLoss.ONE_WAY),
            kinds.HOLE: partial(self._put_up, PathLoss.LARGE),
            kinds.HOST_HOLE: self._put_up_hole,
            kinds.CUT_CONTROL: lambda process, _: self._cut_control(process),
            kinds.CUT_SHORT: lambda process, _: self._cut_short(process),
            kinds.PAUSE: lambda process, rng: self._stop(process, rng.uniform(0.05, 0.95)),
            kinds.LONG_PAUSE: lambda process, rng: self._stop(process, rng.uniform(1.0, 4.0)),
            kinds.DUPLICATE: lambda process, _: self._start_again(process),
            kinds.PAUSE_AND_REPLACE: self._pause_and_replace,
            kinds.TRACKER_CRASH: lambda *_: tracker.crash(),
            kinds.TRACKER_TORN: self._tracker_torn,
            kinds.TRACKER_STALL: lambda _, rng: tracker.stall(rng.uniform(0.3, 3.0)),
            kinds.TRACKER_DISK_LOST: lambda *_: tracker.lose_disk(),
            # Another tracker leads meanwhile, and this one wakes up.
            kinds.TRACKER_LONG_STALL: lambda _, rng: tracker.stall(rng.uniform(5.0, 60.0)),
            kinds.TRACKER_CUT_OFF: lambda _, rng: tracker.cut_off(rng.uniform(2.0, 35.0)),
            kinds.TRACKER_WITHOUT_STORE: self._tracker_without_store,
            kinds.REFUSAL: self._refusal,
        }
        if kind in OF_BYTES - {kinds.ONE_WAY_BARRIER}:
            return lambda _, rng: self._hurt_a_pipe(kind, rng)
        return actions.get(kind)

    def _crash_other(self, process: "SimulatedProcess", rng: random.Random) -> None:
        others = [x for x in self.sim.current_processes() if x is not process]
        if others:
            rng.choice(others).die("killed")

    def _crash_all_but_one(self, process: "SimulatedProcess", rng: random.Random) -> None:
        members = self.sim.current_processes()
        if not members:
            return
        left = rng.choice(members)
        for other in members:
            if other not in (process, left):
                other.die("killed")
        if process in members and process is not left:
            process.die("killed")
            raise Killed

    def _lose(self, kind: SimulatedFaultKind, rng: random.Random) -> None:
        sim = self.sim
        sim.counters["total losses"] += 1
        if kind is SimulatedFaultKind.LOSE_WORKERS:
            sim.on_all_lost()
            for process in [x for x in sim.network.processes.values() if x.alive]:
                process.die("killed")
            return
        if kind is SimulatedFaultKind.LOSE_ALL_DAMAGED and sim.store is not None:
            sim.store.damage_newest(rng)
        sim.lose_everything(journal=kind is SimulatedFaultKind.LOSE_ALL_AND_DISK)

    def _hurt_a_link(self, hurt: Callable[[FrameStream], None], rng: random.Random) -> None:
        streams = self.sim.network.open_streams()
        if streams:
            hurt(rng.choice(streams))

    def _put_up(self, hurdle: PathLoss, process: "SimulatedProcess", rng: random.Random) -> None:
        """Between this worker and another: one pair for good, any other for a while.

        One at a time: with more, a group of three falls apart, and no relay helps.
        """
        others = [name for name in self.sim.worker_ids if name != process.worker_id]
        if not others:
            return
        network, names = self.sim.network, frozenset((process.worker_id, rng.choice(others)))
        if network.barriers.standing:
            return
        network.put_up(names, hurdle)
        if self.barred is None and rng.random() < LASTING:
            self.barred = names
        else:
            self.sim.world.after(rng.uniform(0.1, 8.0), network.barriers.take_down, names)

    def _put_up_hole(self, process: "SimulatedProcess", rng: random.Random) -> None:
        """Between this worker and all others, for a while: the ends are told apart by it alone."""
        barriers = self.sim.network.barriers
        others = [name for name in self.sim.worker_ids if name != process.worker_id]
        if barriers.standing:
            return
        lasting_s = rng.uniform(0.1, 30.0)
        for names in (frozenset((process.worker_id, other)) for other in others):
            self.sim.network.put_up(names, PathLoss.LARGE)
            self.sim.world.after(lasting_s, barriers.take_down, names)

    @staticmethod
    def _cut_control(process: "SimulatedProcess") -> None:
        if process.conn is not None:
            process.conn.cut()

    @staticmethod
    def _cut_short(process: "SimulatedProcess") -> None:
        """The next time that the user's thread runs in a call."""
        process.cut_next = True
        process.poke()

    def _stop(self, process: "SimulatedProcess", deadlines: float) -> None:
        if process.paused_until is None:
            process.pause(deadlines * self.sim.settings.detect_within)

    def _start_again(self, process: "SimulatedProcess") -> None:
        if process.worker_id in self.sim.worker_ids:
            self.sim.start_process(process.worker_id)

    def _pause_and_replace(self, process: "SimulatedProcess", rng: random.Random) -> None:
        self._stop(process, rng.uniform(0.6, 5.0))
        self.replacing += 1
        self.sim.world.after(rng.uniform(0.0, 2.0), self._replace, process, self._losses)

    @property
    def _losses(self) -> int:
        return self.sim.counters["total losses"]

    def _replace(self, process: "SimulatedProcess", losses: int) -> None:
        self.replacing -= 1
        if losses == self._losses:  # else all were lost, and started again
            self._start_again(process)

    def _tracker_torn(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        self.sim.tracker.crash_after = rng.randrange(1, 9)

    def _tracker_without_store(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        looks = self.sim.tracker.looks
        if looks is not None:
            looks.away_until = self.sim.world.now + rng.uniform(2.0, 60.0)

    def _refusal(self, process: "SimulatedProcess", rng: random.Random) -> None:
        """Cut like a changed firewall: the connection goes, for a while no other comes."""
        self.sim.tracker.refuse(process.worker_id, self._deadlines(rng, 0.1, 3.0))
        if process.conn is not None:
            process.conn.cut()

    def _deadlines(self, rng: random.Random, lo: float, hi: float) -> float:
        """Seconds, in multiples of `detect_within`."""
        return rng.uniform(lo, hi) * self.sim.settings.detect_within

    def _end_of_a_pipe(self, rng: random.Random) -> End | None:
        """One end of some connection: to the tracker, or between two workers."""
        control = [conn.pipe for conn in self.sim.tracker.conns.values() if conn.pipe is not None]
        control = [pipe for pipe in control if pipe.is_open]
        between = self.sim.network.open_pipes()
        pipes = rng.choice([pool for pool in (control, between) if pool] or [[]])
        return rng.choice(rng.choice(pipes).ends) if pipes else None

    def _hurt_a_pipe(self, kind: SimulatedFaultKind, rng: random.Random) -> None:
        end = self._end_of_a_pipe(rng)
        if end is None:
            return
        if kind is SimulatedFaultKind.CUT_INSIDE:
            end.pipe.cut_after(end, rng.randrange(SOON_BYTES))
        elif kind is SimulatedFaultKind.STALL:
            end.pipe.stall(end, self._deadlines(rng, 0.1, 2.5))
        elif kind is SimulatedFaultKind.HALF_OPEN:
            end.pipe.forget(end, audible=rng.random() < HEARD)
        else:
            end.pipe.silence(end)
