"""The simulated tracker: the real roster, a journal that survives, control connections."""

from typing import TYPE_CHECKING, Any, assert_never

from ftcomm.protocol.codec import Decoder, encode
from ftcomm.protocol.messages import Hello, Plan
from ftcomm_tracker.durable import Durable
from ftcomm_tracker.events import (
    Disconnect,
    Effect,
    Ended,
    Event,
    IncidentClosed,
    Joined,
    Lost,
    Note,
    Persist,
    Said,
    Send,
    Stalled,
    Tick,
)
from ftcomm_tracker.roster import Roster

if TYPE_CHECKING:
    from ftcomm_chaos.sim.process import Life
    from ftcomm_chaos.sim.simulation import Simulation


class ControlConn:
    """One control connection: two ordered directions, both ends told of its end on their own."""

    def __init__(self, tracker: "Tracker", life: "Life", number: int) -> None:
        self.tracker, self.life, self.number = tracker, life, number
        self.world = tracker.world
        self.open = True
        self.joined = False
        self._arrives = {"up": 0.0, "down": 0.0}

    def _when(self, direction: str) -> float:
        when = max(self.world.now + self.world.between(0.0005, 0.02), self._arrives[direction])
        self._arrives[direction] = when
        return when

    def to_tracker(self, message: Any) -> None:
        """The worker sends."""
        self.world.at(self._when("up"), self.tracker.deliver, self._read, _wired(self, message))

    def _read(self, message: Any) -> None:
        if not self.open or self.tracker.conns.get(self.number) is not self:
            return
        if isinstance(message, Hello):
            self.joined = True
            self.tracker.hear(Joined(self.number, message))
        else:
            self.tracker.hear(Said(self.number, message))

    def to_worker(self, message: Any) -> None:
        """The tracker sends."""
        if self.open:
            self.world.at(self._when("down"), self._write, _wired(self, message), self.world.now)

    def _write(self, message: Any, sent_at: float) -> None:
        if self.open:
            self.life.deliver(self.life.on_control, self, message, sent_at)

    def cut(self) -> None:
        """The connection breaks: what is under way is lost; each end learns it in its time."""
        if not self.open:
            return
        self.open = False
        late = self.tracker.sim.settings.detect_within * 0.3
        self.world.after(self.world.between(0.001, late), self.tracker.deliver, self._tracker_sees)
        self.world.after(
            self.world.between(0.001, late), self.life.deliver, self.life.on_detached, self, "cut"
        )

    def _tracker_sees(self) -> None:
        if self.tracker.conns.pop(self.number, None) is not None:
            self.tracker.hear(Lost(self.number, "connection reset"))

    def worker_gone(self) -> None:
        """The worker's process has ended: its kernel says so, after what it had sent."""
        self.world.at(self._when("up"), self.tracker.deliver, self._tracker_sees)

    hang_up = worker_gone

    def close(self) -> None:
        """The tracker closes: the worker sees the end after what was sent."""
        self.tracker.conns.pop(self.number, None)
        when = self._when("down")
        self.world.at(when, self.life.deliver, self.life.on_detached, self, "closed by the tracker")


def _wired(conn: ControlConn, message: Any) -> Any:
    """Through the codec and back, as between real processes."""
    if not conn.tracker.sim.wire:
        return message
    (copy,) = Decoder().feed(encode(message))
    assert copy == message, (copy, message)
    return copy


class Tracker:
    """The tracker's process and its journal."""

    def __init__(self, sim: "Simulation") -> None:
        self.sim, self.world = sim, sim.world
        self.journal = Durable.fresh("sim", sim.world_size, sim.settings.to_wire())
        self.conns: dict[int, ControlConn] = {}
        self.up = False
        self.ended = False
        self.generation = 0
        self.crash_after: int | None = None  # effects that are still carried out
        self._next_conn = 0
        self._stalled = False
        self._held: list[tuple[Any, tuple[Any, ...]]] = []
        self.start()

    def start(self) -> None:
        """Start, or start again on the journal."""
        self.generation += 1
        self.up = True
        durable = Durable.from_wire(self.journal.to_wire())
        self.roster = Roster(
            self.sim.settings, durable, generation=self.generation, now=self.world.now
        )
        self._set_alarm()

    def accept(self, life: "Life") -> bool:
        """A worker dials; False while nobody listens."""
        if not self.up:
            return False
        self._next_conn += 1
        conn = ControlConn(self, life, self._next_conn)
        self.conns[conn.number] = conn
        life.conn = conn
        self.world.after(self.world.between(0.0005, 0.01), life.deliver, life.on_attached, conn)
        return True

    # --- faults -------------------------------------------------------------------------------

    def crash(self) -> None:
        """SIGKILL: everything but the journal is gone, every connection ends."""
        if not self.up:
            return
        self.world.trace(f"tracker {self.generation} is killed")
        self.up = False
        self._stalled, self._held = False, []
        self.crash_after = None
        conns, self.conns = self.conns, {}
        for conn in conns.values():
            conn.open = False
            self.world.after(
                self.world.between(0.001, 0.05),
                conn.life.deliver, conn.life.on_detached, conn, "the tracker has gone",
            )  # fmt: skip
        if not self.ended:
            self.world.after(self.world.between(0.1, 1.5), self.start)

    def stall(self, seconds: float) -> None:
        """SIGSTOP and SIGCONT."""
        if self.up and not self._stalled:
            self._stalled = True
            self.world.after(seconds, self._go_on, self.generation)

    def _go_on(self, generation: int) -> None:
        if not self._stalled or generation != self.generation or not self.up:
            return
        self._stalled = False
        held, self._held = self._held, []
        self.hear(Stalled())
        for action, args in held:
            self.deliver(action, *args)

    # --- the roster ---------------------------------------------------------------------------

    def deliver(self, action: Any, *args: Any) -> None:
        """Something reaches the tracker's process."""
        if not self.up:
            return
        if self._stalled:
            self._held.append((action, args))
        else:
            action(*args)

    def hear(self, event: Event) -> None:
        """Feed the roster and carry out what it decides."""
        if not self.up or self.ended:
            return
        generation = self.generation
        effects = self.roster.handle(event, now=self.world.now)
        for effect in effects:
            if self.crash_after is not None:
                self.crash_after -= 1
                if self.crash_after < 0:
                    self.crash()
            if self._has_died(generation):
                return
            self._carry_out(effect)
        self._set_alarm()

    def _has_died(self, generation: int) -> bool:
        return not self.up or self.generation != generation

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(number, message):
                if isinstance(message, Plan):
                    self.sim.monitor.on_decided(message)
                conn = self.conns.get(number)
                if conn is not None:
                    conn.to_worker(message)
            case Disconnect(number, _reason):
                conn = self.conns.get(number)
                if conn is not None:
                    conn.close()
            case Persist(durable):
                before, self.journal = self.journal, durable
                self.sim.monitor.on_journal(before, durable)
            case Note(level, text):
                self.world.trace(f"tracker {level}: {text}")
            case IncidentClosed():
                self.sim.counters["incidents"] += 1
            case Ended():
                self.world.trace("tracker ends")
                self.ended = True
                self.up = False
                for conn in list(self.conns.values()):
                    conn.close()
            case _:
                assert_never(effect)

    def _set_alarm(self) -> None:
        deadline = self.roster.next_deadline()
        if deadline is not None:
            self.world.at(deadline, self.deliver, self._alarm, self.generation, deadline)

    def _alarm(self, generation: int, deadline: float) -> None:
        if generation == self.generation and self.roster.next_deadline() == deadline:
            self.hear(Tick())
