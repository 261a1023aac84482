"""The simulated tracker: the real roster, a journal that survives, control connections."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from ftcomm.config.job_settings import SILENT_WINDOWS
from ftcomm.errors import FencedError, FtcommError, RolledBackError, TrackerLostError
from ftcomm.protocol.messages import AllClosed, FatalDecision, Plan, Refused
from ftcomm_chaos.sim.network.control_connection import ControlConn
from ftcomm_chaos.sim.network.wire_control import WiredControl
from ftcomm_chaos.sim.standby.waiting_tracker import StoreLooks
from ftcomm_chaos.sim.store import series_of
from ftcomm_chaos.sim.store_access import ChainAccess
from ftcomm_chaos.sim.world import Violation
from ftcomm_tracker.core.durable.attempts import OVERTAKEN, AttemptStart
from ftcomm_tracker.core.durable.store_facts import NO_STORE, StoreFacts
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import (
    Disconnect,
    Effect,
    Event,
    IncidentClosed,
    JobEnded,
    Note,
    Persist,
    PutClaim,
    PutEnded,
    PutEpoch,
    PutFinished,
    PutNextDigest,
    PutSeries,
    PutVersion,
    ReadStore,
    RefuseRebuild,
    Send,
    Stalled,
    StartAttempt,
    StepDown,
    TakeGeneration,
    Tick,
)
from ftcomm_tracker.core.rebuild.decision import KnownStore, Rebuild
from ftcomm_tracker.core.rebuild.stored_job import attempt_to_hear
from ftcomm_tracker.core.roster import Roster
from ftcomm_tracker.core.standby.watch import Standby

if TYPE_CHECKING:
    from ftcomm_chaos.sim.history import RecordingMonitor
    from ftcomm_chaos.sim.simulation import Simulation
    from ftcomm_chaos.sim.worker.process import SimulatedProcess


BY_REBUILD = 0.5  # share of the lost journals after which the operator asks for --rebuild


class SimulatedTracker:
    """The tracker's process and its journal.

    Args:
        sim: the job.
        place: its number, of two that take over from each other.
    """

    def __init__(self, sim: "Simulation", place: int = 0) -> None:
        self.sim, self.world, self.place = sim, sim.world, place
        self.process = 0  # starts of it
        self.has_claimed = 0  # generation in which it leads while it waits for a worker's word
        self.waits = False  # beside another one, which leads
        self.looks: StoreLooks | None = None
        if sim.store is not None and sim.standby:
            self.looks = StoreLooks(self, sim.store)
        self.journal = sim.fresh_journal()
        self.conns: dict[int, ControlConn] = {}
        self.turned_away: set[int] = set()  # processes of which it has ended a connection
        self.up = False
        self.ended = False
        self.generation = 0  # of the process: one more at each start
        self.number = 0  # of the journal, as workers hear it
        self.disk_lost = False  # since then no journal of the job is here
        self.rebuilds = False  # the operator has asked for it; else the store is given again
        self.hears = ""  # the attempt whose members are heard before the next one begins
        self.has_heard = False  # all that came: the next one begins
        self.has_given_up = False  # it ended without its journal, and has told those that waited
        self.given_up: set[int] = set()  # processes that were told so
        self.final_version = -1  # the highest that any journal of the job had
        self.closed_at = (
            0.0  # when it heard that all have closed, or began with a journal that says so
        )
        self._lost_decision: FatalDecision | None = None  # of a journal that is gone
        self.lost_decisions: list[FatalDecision] = []  # those of all such journals
        self.crash_after: int | None = None  # effects that are still carried out
        self._refuses_until: dict[str, float] = {}
        self._next_conn = 0
        self._stalled = False
        self._held: list[tuple[Any, tuple[Any, ...]]] = []
        self.chain: ChainAccess | None = None  # of the process that runs now
        self._open(self.journal, NO_STORE)
        if sim.store is not None:  # another roster follows before anyone is welcome
            self.up = False
            self.start()

    def start(self) -> None:
        """Start, or start again on the journal."""
        durable = Durable.from_wire(self.journal.to_wire())
        if self.sim.store is None:
            self._open(durable, NO_STORE)
            return
        self.generation += 1
        self.process += 1
        self.has_claimed = 0
        self.waits = False
        self.chain = ChainAccess(self, self.sim.store)
        nonce = f"{self._name}".encode()
        if self.looks is not None and self.looks.is_over:
            self.ended = True  # who looks after the trackers starts none of a job that has ended
            return
        if self.looks is not None and self.looks.must_wait(durable):
            self._wait()
            return
        hears = self.sim.disks and not self.has_heard and not self.rebuilds
        self.hears = attempt_to_hear(durable, self.sim.store.facts()) if hears else ""
        if self.rebuilds or self.hears:
            self._open(durable, NO_STORE)
            return
        yields = self.looks is not None
        self.chain.start(AttemptStart(durable, series_of(nonce), nonce, yields=yields))

    def _wait(self) -> None:
        """Wait beside a tracker that leads."""
        self.waits = True
        fresh = Durable.fresh("waiting", self.sim.world_size, self.sim.settings.to_wire())
        self._open(fresh, NO_STORE)

    def begin_attempt(self, durable: Durable, facts: StoreFacts) -> None:
        """An attempt is recorded, or goes on: serve it."""
        self.disk_lost = self.disk_lost and not facts.is_begun
        self.rebuilds = False
        if durable.attempt_nonce != self.journal.attempt_nonce:
            self.world.trace(f"attempt {durable.attempt} begins from record {durable.restore}")
            self.sim.on_attempt(durable)
            if self.journal.fatal_decision is not None:
                self._start_who_was_told()
            self.journal = durable
        self._open(durable, facts)

    def _start_who_was_told(self) -> None:
        """The operator sees that the job goes on after all, and whose workers are missing.

        A tracker that dies while it tells an end has told it to some.
        """
        for worker_id in self.sim.worker_ids:
            self.sim.replace_lost(worker_id)

    def refuse_attempt(self, error: str, cause: str) -> None:
        """There is nothing to go on with."""
        self.world.trace(f"no attempt: {error}: {cause}")
        assert self.sim.store is not None
        if self.looks is not None and error == OVERTAKEN:
            self._exit_overtaken(cause)
            return
        stored = self.sim.store.facts()
        # A command that is given again after a loss hears that the job has finished.
        if stored.finished < 0:
            if stored.series in self.sim.forgotten_series:
                self._give_empty_directory()
                return
            self.sim.monitor.on_refused(error, cause)
        self.ended = True

    def _give_empty_directory(self) -> None:
        """The operator gives the command again for the job that the store has.

        A record of a tracker that was lost with its directory has landed late, over which another
        directory had begun a job.
        """
        self.sim.counters["late records of a lost directory"] += 1
        self.journal = self.sim.fresh_journal()
        self.crash()
        for worker_id in self.sim.worker_ids:
            self.sim.replace_lost(worker_id)

    def _open(self, durable: Durable, facts: StoreFacts) -> None:
        self.generation += 1
        self.number += 1
        self.up = True
        self.closed_at = self.world.now
        self._alarm_at: float | None = None
        self.roster = Roster(
            self.sim.settings,
            durable,
            generation=self.number,
            now=self.world.now,
            tracker=self._nonce,
            rebuild=self._begin_rebuild(),
            store=replace(facts, has_standby=self.looks is not None),
        )
        if self.looks is not None:
            self.looks.run(self.generation)
        self._set_alarm()

    @property
    def monitor(self) -> "RecordingMonitor":
        """The checkers of the attempt that this tracker leads, or would begin."""
        return self.sim.monitor_of(self.journal.job_id)

    @property
    def _name(self) -> str:
        return f"{self.place}.{self.generation}" if self.place else f"{self.generation}"

    @property
    def _nonce(self) -> bytes:
        return f"tracker {self._name}".encode()

    @property
    def fatal_decision(self) -> FatalDecision | None:
        """The journal's, or that of a journal which is lost and not rebuilt.

        Of two trackers one may tell what the other has recorded, and does not know yet to be there.
        """
        lost = self._lost_decision if self.disk_lost else None
        store = None if self.looks is None else self.sim.store
        recorded = None if store is None else store.facts().fatal_decision
        return self.journal.fatal_decision or lost or recorded

    def _begin_rebuild(self) -> Rebuild | None:
        size = self.sim.world_size
        if self.waits:
            return Rebuild(self._nonce, size, standby=Standby(self.world.now, floor=self.number))
        if self.hears:
            until = self.world.now + self.sim.settings.reattach_within
            store = KnownStore(self.hears, until)
            return Rebuild(self._nonce, size, store=store)
        if not self.rebuilds:
            return None
        return Rebuild(self._nonce, size, is_asked=True)

    def accept(self, process: "SimulatedProcess") -> bool:
        """A worker dials; False while nobody listens, or something refuses it."""
        refused = self.world.now < self._refuses_until.get(process.worker_id, 0.0)
        hangs = self._stalled and self.looks is not None
        if not self.up or refused or hangs:
            return False
        self._next_conn += 1
        kind = WiredControl if self.sim.conditions.wire else ControlConn
        conn = kind(self, process, self._next_conn)
        self.conns[conn.number] = conn
        process.conn = conn
        conn.begin()
        return True

    def forget(self, conn: ControlConn) -> bool:
        """The connection has ended here; False if that was known."""
        conn.process.lost_at = self.world.now
        return self.conns.pop(conn.number, None) is not None

    def refuse(self, worker_id: str, seconds: float) -> None:
        """Refuse the connections of this worker for a while."""
        self._refuses_until[worker_id] = self.world.now + seconds

    # --- faults -------------------------------------------------------------------------------

    def crash(self) -> None:
        """SIGKILL: everything but the journal is gone, every connection ends."""
        if not self.up and self.chain is None:
            return
        self.world.trace(f"tracker {self.generation} is killed")
        self.up = False
        if self.chain is not None:
            self.chain.die()
            self.chain = None
        self._stalled, self._held = False, []
        self.has_heard = False
        self.crash_after = None
        conns, self.conns = self.conns, {}
        for conn in conns.values():
            conn.process.lost_at = self.world.now
            conn.tracker_gone()
        if not self.ended:
            self.world.after(self._restart_s(), self.start)

    def _restart_s(self) -> float:
        """Seconds until the process is there again; another tracker may lead meanwhile."""
        late = self.looks is not None and self.world.chance(0.6)
        return self.world.between(10.0, 60.0) if late else self.world.between(0.1, 1.5)

    def _exit_overtaken(self, reason: str) -> None:
        """It has lost to another tracker, and ends; it is started again, and waits."""
        self.world.trace(f"tracker {self._name} ends: {reason}")
        self.sim.counters["trackers that have lost"] += 1
        self.up = True  # of a process that had not opened its address yet
        self.crash()

    def cut_off(self, seconds: float) -> None:
        """Cut all workers' connections; none comes for a while."""
        for worker_id in self.sim.worker_ids:
            self.refuse(worker_id, seconds)
        for conn in list(self.conns.values()):
            conn.cut()

    def lose_disk(self) -> None:
        """SIGKILL, and the journal is gone too; an operator has the job rebuilt."""
        if not self.up or not self.journal.first_nonces:
            return
        self.world.trace("the tracker's journal is lost")
        self.sim.counters["journals lost"] += 1
        self.crash()
        self._lost_decision = self.fatal_decision
        if self._lost_decision is not None:
            self.lost_decisions.append(self._lost_decision)
        self.journal = Durable.fresh("unknown", self.sim.world_size, self.sim.settings.to_wire())
        self.number, self.disk_lost = 0, True
        # Without a store there is one way; with one it can be given again on an empty directory.
        self.rebuilds = not self.sim.disks or self.world.chance(BY_REBUILD)

    def give_store_again(self) -> None:
        """The operator starts the tracker with its store, and without --rebuild."""
        self.rebuilds = False
        self.crash()

    def stall(self, seconds: float) -> None:
        """SIGSTOP and SIGCONT."""
        if self.up and not self._stalled:
            self._stalled = True
            self.world.after(seconds, self._go_on, self.generation, seconds)
            if self.looks is not None:
                silent_s = SILENT_WINDOWS * self.sim.settings.detect_within
                self.world.after(silent_s, self._leave_silent, self.generation)

    def _leave_silent(self, generation: int) -> None:
        """Workers end a connection on which nothing answers, and try another tracker."""
        if self._stalled and generation == self.generation:
            for conn in list(self.conns.values()):
                conn.cut()

    def _go_on(self, generation: int, stalled_s: float) -> None:
        if not self._stalled or generation != self.generation or not self.up:
            return
        self._stalled = False
        held, self._held = self._held, []
        self.hear(Stalled(stalled_s))
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
        self._check_deadline()
        self._set_alarm()

    def _has_died(self, generation: int) -> bool:
        return not self.up or self.generation != generation

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(number, message):
                self._send(number, message)
            case Disconnect(number, _reason):
                conn = self.conns.get(number)
                if conn is not None:
                    self.turned_away.add(conn.process.port)
                    conn.close()
            case Persist(durable):
                self._persist(durable)
            case PutSeries() | PutVersion() | PutFinished():
                assert self.chain is not None
                self.chain.put(effect)
            case PutNextDigest():
                assert self.sim.store is not None
                self.sim.store.keep_next(effect)
            case PutEpoch(record) | PutEnded(record):
                assert self.chain is not None
                self.chain.put(record)
            case PutClaim():
                assert self.chain is not None
                self.chain.claim(effect)
            case _:
                self._carry_out_own(effect)

    def _send(self, number: int, message: Any) -> None:
        if isinstance(message, Plan):
            self.monitor.on_decided(message)
        if isinstance(message, AllClosed):
            self.monitor.ends.on_all_closed(self)
        if self.looks is not None:
            self.sim.leader_checks.on_sent(message, self)
        conn = self.conns.get(number)
        if conn is not None:
            if isinstance(message, Refused) and message.error == TrackerLostError.__name__:
                self.given_up.add(conn.process.port)
            conn.to_worker(message)

    def _persist(self, durable: Durable) -> None:
        before, self.journal = self.journal, durable
        if self.sim.disks and durable.places and durable.job_id != before.job_id:
            on_taken_up(self, durable)
        is_known = bool(durable.places) or durable.fatal_decision is not None
        self.disk_lost = self.disk_lost and not is_known
        self.rebuilds = self.rebuilds and self.disk_lost
        self.final_version = max(self.final_version, durable.final_version)
        if before.final_version < 0 <= durable.final_version:
            self.closed_at = self.world.now
        told = durable.fatal_decision
        if told is None or not self.waits:  # else another one has told it before
            self.monitor.on_journal(before, durable)
        self.waits = False

    def _carry_out_own(
        self,
        effect: TakeGeneration
        | StepDown
        | Note
        | IncidentClosed
        | JobEnded
        | ReadStore
        | RefuseRebuild
        | StartAttempt,
    ) -> None:
        """Effects that reach no worker and no journal's document."""
        match effect:
            case TakeGeneration(generation):
                self.number = generation
            case StepDown(reason) if self.looks is not None:
                self._exit_overtaken(reason)
            case StepDown(reason):
                raise Violation(f"the only tracker steps down: {reason}")
            case Note(level, text):
                self.world.trace(f"tracker {level}: {text}")
            case IncidentClosed():
                self.sim.counters["incidents"] += 1
            case ReadStore():
                assert self.chain is not None
                self.chain.facts_for(effect)
            case RefuseRebuild(error):
                self._refuse_rebuild(error)
            case StartAttempt():
                if self.looks is None:
                    self.has_heard = True
                    self.sim.counters["attempts after hearing"] += 1
                    check_who_lives(self)
                self._end(JobEnded(False, RolledBackError.__name__))
            case JobEnded():
                self._end(effect)
            case _:
                assert_never(effect)

    def _refuse_rebuild(self, error: FtcommError) -> None:
        """It ends without its journal: the operator gives the store, or has to begin anew."""
        self.world.trace(f"the job is not rebuilt: {error}")
        if isinstance(error, TrackerLostError):
            self.sim.counters["given up"] += 1
            check_who_lives(self)
        else:
            self.sim.counters["rebuilds refused"] += 1
        if self.sim.disks:
            self.give_store_again()
        else:
            self.has_given_up = True
            self._end(JobEnded(False, TrackerLostError.__name__, error.cause))

    def _end(self, end: JobEnded) -> None:
        """The job is over, or its attempt: then the next one begins."""
        follows = end.error == RolledBackError.__name__
        if end.error == FencedError.__name__:  # the operator gives the same command again
            self.sim.counters["overtaken"] += 1
            self.journal = self.sim.fresh_journal()
            follows = True
        self.world.trace("tracker ends" if not follows else "the attempt ends")
        self.ended = not follows
        self.up = False
        self._stalled, self._held = False, []  # it is the process that stood still
        for conn in list(self.conns.values()):
            conn.close()
        if self.chain is not None:
            self.chain.die()
            self.chain = None
        if follows:
            self.start()

    def _set_alarm(self) -> None:
        """One alarm at a time; one that rings too early is set anew."""
        deadline = self.roster.next_deadline()
        if deadline is not None and (self._alarm_at is None or deadline < self._alarm_at):
            self._alarm_at = deadline
            self.world.at(deadline, self.deliver, self._alarm, self.generation, deadline)

    def _alarm(self, generation: int, deadline: float) -> None:
        if generation != self.generation or deadline != self._alarm_at:
            return
        self._alarm_at = None
        due = self.roster.next_deadline()
        if due is not None and due <= self.world.now:
            self.hear(Tick())
        self._set_alarm()

    def _check_deadline(self) -> None:
        """Check that no deadline is left in the past, which would make the tracker spin."""
        due = self.roster.next_deadline()
        if self.up and due is not None and due <= self.world.now:
            raise Violation(f"the tracker has nothing to do at {due:.4f}, and is due at once again")


def on_taken_up(tracker: SimulatedTracker, durable: Durable) -> None:
    """Members were heard, and the store was read: it has no later attempt, and the same end."""
    sim = tracker.sim
    assert sim.store is not None
    chain = sim.store.facts()
    recorded = chain.newest_attempt
    if recorded > durable.attempt or (recorded < durable.attempt and durable.attempt > 1):
        raise Violation(f"attempt {durable.attempt} is taken up, {recorded} has begun (R19)")
    if chain.finished != durable.final_version:
        raise Violation(f"taken up, though the job has finished at {chain.finished} (R19)")
    sim.counters["taken up beside a store"] += 1
    sim.on_taken_up(durable)


def check_who_lives(tracker: SimulatedTracker) -> None:
    """The next attempt begins, or none: not if all members of the newest plan are here."""
    sim, rebuild = tracker.sim, tracker.roster.rebuild
    assert rebuild is not None
    job_id = rebuild.store.job_id or rebuild.job_id
    members = [
        process
        for process in sim.network.processes.values()
        if process.alive and process.core.view.epoch and process.core.contact.job_id == job_id
    ]
    if not members:
        return
    newest = max(members, key=lambda process: process.core.view.epoch)
    here = {conn.process.port for conn in tracker.conns.values() if conn.joined}
    if {member.port for member in newest.core.view.members if member.present} <= here:
        raise Violation(f"all members of {job_id} are here, and it does not go on (R16, R19)")
