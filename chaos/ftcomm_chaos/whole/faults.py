"""Faults of a whole job: a plan drawn from the seed, and what each kind does.

A fault is due when the job's trace has so many events.  One more kind is one more method, named in
`KINDS`: `docs/testing.md` says how.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from ftcomm_chaos.whole.network import ConnectionEnd
from ftcomm_chaos.whole.world import Dead, VirtualProcess

if TYPE_CHECKING:
    from ftcomm_chaos.whole.job import WholeJob

# Of the product's own points, at which `hub.faults` is told: those that each job passes.
POINTS = (
    *("enter", "half_sent", "half_received", "done", "saved", "committed"),
    *("connected", "authenticated", "ranked", "linking", "loading", "serving"),
    *("sending", "sent", "receiving", "received"),
)
EFFECTS = 12  # of the tracker, within which it dies
SPREAD = (1, 5, 20)  # faults at the beginning, and all over the job
MOST_FAULTS = 6
BARRIER_S = 8.0
NEVER = 10**9  # events


@dataclass(frozen=True)
class DueFault:
    """One fault: its kind, and the number of events in the trace after which it happens."""

    after: int
    kind: str


def draw_plan(rng: Random) -> list[DueFault]:
    """The faults of a seed, in order."""
    count = rng.randrange(1, MOST_FAULTS + 1)
    kinds = sorted(KINDS)
    drawn = ((rng.randrange(60) * rng.choice(SPREAD), rng.choice(kinds)) for _ in range(count))
    return [DueFault(after, kind) for after, kind in sorted(drawn)]


class ProductPoints:
    """Stands for the product's fault injector in one process: it dies at a point."""

    needs_links = True

    def __init__(self, faults: "WholeFaults", process: VirtualProcess) -> None:
        self._faults, self._process = faults, process

    def at(self, point: str, *_: object) -> None:
        """The process has come to `point`."""
        if point in self._faults.armed:
            self._faults.armed.remove(point)
            self._faults.note("crash at point", f"{self._process} {point}")
            self._process.kill()
            raise Dead

    def of_link(self, _rank: int, _other: int) -> None:
        """Links have no faults of their own."""


class TrackerEffects:
    """Stands for the tracker's fault injector: it dies between two effects."""

    def __init__(self, faults: "WholeFaults", process: VirtualProcess) -> None:
        self._faults, self._process = faults, process

    def performed(self, _effect: object) -> None:
        """An effect has been carried out: journalled, or given to a connection."""
        self._faults.effects_left -= 1
        if not self._faults.effects_left:
            self._faults.note("tracker crash between effects", self._process)
            self._process.kill()
            raise Dead

    def accepted(self) -> None:
        """A connection has come, which is no effect."""


class WholeFaults:
    """Fires the plan of a job.

    Attributes:
        armed: points of the product, at each of which the next process dies.
        effects_left: of the tracker until it dies.
        fired: kinds of what has happened.
    """

    def __init__(self, job: "WholeJob", plan: list[DueFault]) -> None:
        self.job, self.world, self.rng = job, job.world, job.world.rng
        self.armed: list[str] = []
        self.effects_left = NEVER
        self.fired: list[str] = []
        self._plan = list(plan)
        self._due = plan[0].after if plan else NEVER

    def on_event(self, events: int) -> None:
        """The trace has so many events: something may be due."""
        if events >= self._due:
            fault = self._plan.pop(0)
            self._due = self._plan[0].after if self._plan else NEVER
            # Between the turns of tasks, so that whoever it hits is at no special place.
            self.world.after(self.world.between(0.0, 0.02), KINDS[fault.kind], self)

    def note(self, kind: str, what: object, lasts_s: float = 0.0) -> None:
        """A fault happens: what must end in time has time again."""
        self.fired.append(kind)
        self.job.allow_time(lasts_s)
        self.world.note("FAULT", kind, what)

    # --- the kinds ----------------------------------------------------------------------------

    def crash(self) -> None:
        """A worker dies at any instant."""
        for process in self._any(self._living()):
            self.note("crash", process)
            process.kill()

    def crash_at_point(self) -> None:
        """The next worker that comes to a point of the product dies there."""
        self.armed.append(self.rng.choice(POINTS))

    def crash_of_all_but_one(self) -> None:
        """Everything that the dead alone had is lost."""
        living = self._living()
        self.rng.shuffle(living)
        self.note("crash of all but one", living[1:])
        for process in living[1:]:
            process.kill()

    def stop(self) -> None:
        """SIGSTOP, from a moment to longer than the job waits."""
        self._stop("stop", self._living())

    def tracker_stop(self) -> None:
        """SIGSTOP of the tracker."""
        self._stop("tracker stop", [self.job.tracker])

    def tracker_crash(self) -> None:
        """The tracker dies, and is started again on its journal."""
        self.note("tracker crash", self.job.tracker)
        self.job.tracker.kill()

    def tracker_crash_between_effects(self) -> None:
        """The tracker dies when it has done some of what it has decided."""
        self.effects_left = self.rng.randrange(1, EFFECTS)

    def cut(self) -> None:
        """A connection ends by RST, at both ends."""
        for end in self._any(self._open()):
            self.note("cut", end.name)
            end.cut()

    def cut_at_byte(self) -> None:
        """A connection ends within what one end sends next."""
        for end in self._any(self._open()):
            self.note("cut at byte", end.name)
            self.rng.choice((end, end.peer)).left = self.rng.randrange(1, 300)

    def silence(self) -> None:
        """Both ends of a connection seem open, and no byte arrives any more."""
        for end in self._any(self._open()):
            self.note("silence", end.name)
            end.silence()

    def one_way(self) -> None:
        """A connection goes on in one direction alone."""
        for end in self._any(self._open()):
            end = self.rng.choice((end, end.peer))
            self.note("one way", end.name)
            end.is_silent = True

    def half_open(self) -> None:
        """One end has lost the connection, and the other never hears of it."""
        for end in self._any(self._open()):
            self.note("half-open", end.name)
            end.silence()
            end.learn(errno.ECONNRESET)

    def held_up(self) -> None:
        """All that one end sends is late."""
        for end in self._any(self._open()):
            delay = self.rng.uniform(0.1, 2.5) * self._detect_s
            self.note("held up", end.name, delay)
            end.arrives_at = max(end.arrives_at, self.world.now) + delay

    def pair_cannot_connect(self) -> None:
        """For a while two hosts cannot open connections."""
        self._barrier("dropped")

    def pair_silent(self) -> None:
        """For a while nothing arrives between two hosts, and what was open stays silent."""
        for one, other in self._barrier("silent"):
            for end in self._open():
                if {end.owner.host, end.peer.owner.host} == {one, other}:
                    end.silence()

    def second_process(self) -> None:
        """A worker is started while its last process lives."""
        for process in self._any(self._living()):
            self.note("second process", process)
            self.job.start_worker(process.name)

    # --- their objects ------------------------------------------------------------------------

    @property
    def _detect_s(self) -> float:
        return self.job.conditions.settings.detect_within

    def _any(self, things: list[Any]) -> list[Any]:
        return [self.rng.choice(things)] if things else []

    def _living(self) -> list[VirtualProcess]:
        return [process for process in self.job.workers.values() if not process.is_dead]

    def _open(self) -> list[ConnectionEnd]:
        return [end for end in self.job.kernel.connections if end.is_open]

    def _stop(self, kind: str, processes: list[VirtualProcess]) -> None:
        for process in self._any(processes):
            seconds = self.rng.choice((0.5, 4.0)) * self.rng.uniform(0.1, 1.0) * self._detect_s
            self.note(kind, process, seconds)
            process.stop(seconds)

    def _barrier(self, kind: str) -> list[tuple[str, str]]:
        hosts = sorted({process.host for process in self._living()})
        if len(hosts) < 2:
            return []
        one, other = self.rng.sample(hosts, 2)
        seconds, pair = self.rng.uniform(0.1, BARRIER_S), frozenset((one, other))
        self.note(f"pair {kind}", f"{one} {other}", seconds)
        self.job.kernel.barriers[pair] = kind
        self.world.after(seconds, self.job.kernel.barriers.pop, pair, None)
        return [(one, other)]


KINDS: dict[str, Callable[[WholeFaults], None]] = {
    "crash": WholeFaults.crash,
    "crash at point": WholeFaults.crash_at_point,
    "crash of all but one": WholeFaults.crash_of_all_but_one,
    "stop": WholeFaults.stop,
    "tracker stop": WholeFaults.tracker_stop,
    "tracker crash": WholeFaults.tracker_crash,
    "tracker crash between effects": WholeFaults.tracker_crash_between_effects,
    "cut": WholeFaults.cut,
    "cut at byte": WholeFaults.cut_at_byte,
    "silence": WholeFaults.silence,
    "one way": WholeFaults.one_way,
    "half-open": WholeFaults.half_open,
    "held up": WholeFaults.held_up,
    "pair dropped": WholeFaults.pair_cannot_connect,
    "pair silent": WholeFaults.pair_silent,
    "second process": WholeFaults.second_process,
}
