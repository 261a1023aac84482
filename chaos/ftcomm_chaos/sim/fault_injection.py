"""Planned trouble, carried out.

A fault happens when a process comes to a named point: just before it completes, just after it has
reported, while it serves, and so on; that is where rules break.
"""

import random
from typing import TYPE_CHECKING

from ftcomm_chaos.sim.fault_plan import DEADLY, HOT, TOTAL, SimulatedFault, SimulatedFaultKind
from ftcomm_chaos.sim.network.byte_pipe import End
from ftcomm_chaos.sim.partitions import PathLoss

if TYPE_CHECKING:
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.worker.process import SimulatedProcess

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
        apply = {
            SimulatedFaultKind.CRASH_OTHER: self._crash_other,
            SimulatedFaultKind.CRASH_TWO: self._crash_other,
            SimulatedFaultKind.CRASH_ALL_BUT_ONE: self._crash_all_but_one,
            SimulatedFaultKind.CUT_DATA: self._cut_data,
            SimulatedFaultKind.SILENCE: self._silence,
            SimulatedFaultKind.BARRIER: self._barrier,
            SimulatedFaultKind.SILENT_BARRIER: self._silent_barrier,
            SimulatedFaultKind.CUT_CONTROL: self._cut_control,
            SimulatedFaultKind.CUT_SHORT: self._cut_short,
            SimulatedFaultKind.PAUSE: self._pause,
            SimulatedFaultKind.LONG_PAUSE: self._long_pause,
            SimulatedFaultKind.DUPLICATE: self._duplicate,
            SimulatedFaultKind.PAUSE_AND_REPLACE: self._pause_and_replace,
            SimulatedFaultKind.TRACKER_CRASH: self._tracker_crash,
            SimulatedFaultKind.TRACKER_TORN: self._tracker_torn,
            SimulatedFaultKind.TRACKER_STALL: self._tracker_stall,
            SimulatedFaultKind.TRACKER_DISK_LOST: self._tracker_disk_lost,
            SimulatedFaultKind.TRACKER_LONG_STALL: self._tracker_long_stall,
            SimulatedFaultKind.TRACKER_CUT_OFF: self._tracker_cut_off,
            SimulatedFaultKind.TRACKER_WITHOUT_STORE: self._tracker_without_store,
            SimulatedFaultKind.REFUSAL: self._refusal,
            SimulatedFaultKind.CUT_INSIDE: self._cut_inside,
            SimulatedFaultKind.STALL: self._hold_up,
            SimulatedFaultKind.HALF_OPEN: self._half_open,
            SimulatedFaultKind.ONE_WAY: self._one_way,
            SimulatedFaultKind.ONE_WAY_BARRIER: self._one_way_barrier,
        }
        if kind in TOTAL:
            self._lose(kind, planned.rng(self.sim.world.seed))
            raise Killed
        if kind in apply:
            apply[kind](process, planned.rng(self.sim.world.seed))
        if kind in (SimulatedFaultKind.CRASH, SimulatedFaultKind.CRASH_TWO):
            process.die("killed")
            raise Killed

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

    def _cut_data(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        streams = self.sim.network.open_streams()
        if streams:
            self.sim.network.cut(rng.choice(streams))

    def _silence(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        streams = self.sim.network.open_streams()
        if streams:
            self.sim.network.silence(rng.choice(streams))

    def _barrier(self, process: "SimulatedProcess", rng: random.Random) -> None:
        self._put_up(process, PathLoss.REFUSED, rng)

    def _silent_barrier(self, process: "SimulatedProcess", rng: random.Random) -> None:
        self._put_up(process, PathLoss.SILENT, rng)

    def _one_way_barrier(self, process: "SimulatedProcess", rng: random.Random) -> None:
        self._put_up(process, PathLoss.ONE_WAY, rng)

    def _put_up(self, process: "SimulatedProcess", hurdle: PathLoss, rng: random.Random) -> None:
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

    @staticmethod
    def _cut_control(process: "SimulatedProcess", _rng: random.Random) -> None:
        if process.conn is not None:
            process.conn.cut()

    @staticmethod
    def _cut_short(process: "SimulatedProcess", _rng: random.Random) -> None:
        """The next time that the user's thread runs in a call."""
        process.cut_next = True
        process.poke()

    def _pause(self, process: "SimulatedProcess", rng: random.Random) -> None:
        self._stop(process, rng.uniform(0.05, 0.95))

    def _long_pause(self, process: "SimulatedProcess", rng: random.Random) -> None:
        self._stop(process, rng.uniform(1.0, 4.0))

    def _stop(self, process: "SimulatedProcess", deadlines: float) -> None:
        if process.paused_until is None:
            process.pause(deadlines * self.sim.settings.detect_within)

    def _duplicate(self, process: "SimulatedProcess", _rng: random.Random) -> None:
        self._start_again(process)

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

    def _tracker_crash(self, _process: "SimulatedProcess", _rng: random.Random) -> None:
        self.sim.tracker.crash()

    def _tracker_torn(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        self.sim.tracker.crash_after = rng.randrange(1, 9)

    def _tracker_stall(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        self.sim.tracker.stall(rng.uniform(0.3, 3.0))

    def _tracker_long_stall(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        """Another tracker leads meanwhile, and this one wakes up."""
        self.sim.tracker.stall(rng.uniform(5.0, 60.0))

    def _tracker_cut_off(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        self.sim.tracker.cut_off(rng.uniform(2.0, 35.0))

    def _tracker_without_store(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        looks = self.sim.tracker.looks
        if looks is not None:
            looks.away_until = self.sim.world.now + rng.uniform(2.0, 60.0)

    def _tracker_disk_lost(self, _process: "SimulatedProcess", _rng: random.Random) -> None:
        self.sim.tracker.lose_disk()

    def _refusal(self, process: "SimulatedProcess", rng: random.Random) -> None:
        """Cut like a changed firewall: the connection goes, for a while no other comes."""
        self.sim.tracker.refuse(process.worker_id, self._deadlines(rng, 0.1, 3.0))
        if process.conn is not None:
            process.conn.cut()

    # --- of bytes -----------------------------------------------------------------------------

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

    def _cut_inside(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        end = self._end_of_a_pipe(rng)
        if end is not None:
            end.pipe.cut_after(end, rng.randrange(SOON_BYTES))

    def _hold_up(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        end = self._end_of_a_pipe(rng)
        if end is not None:
            end.pipe.stall(end, self._deadlines(rng, 0.1, 2.5))

    def _half_open(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        end = self._end_of_a_pipe(rng)
        if end is not None:
            end.pipe.forget(end, audible=rng.random() < HEARD)

    def _one_way(self, _process: "SimulatedProcess", rng: random.Random) -> None:
        end = self._end_of_a_pipe(rng)
        if end is not None:
            end.pipe.silence(end)
