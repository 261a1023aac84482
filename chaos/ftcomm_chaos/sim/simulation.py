"""One simulated job from its seed to its end."""

import random
from collections import Counter
from dataclasses import dataclass, replace

from ftcomm.protocol.signature import Kind
from ftcomm.recovery.machine import WorkerState
from ftcomm_chaos.sim.fault_injection import Faults, Killed
from ftcomm_chaos.sim.fault_plan import SimulatedFault, SimulatedFaultKind, draw_plan
from ftcomm_chaos.sim.history import RecordingMonitor
from ftcomm_chaos.sim.network.data_links import Network
from ftcomm_chaos.sim.network.wire_network import WireNetwork
from ftcomm_chaos.sim.scenario import KEPT_BY_ALL, draw_conditions
from ftcomm_chaos.sim.standby.leader_checks import LeaderChecks
from ftcomm_chaos.sim.store import STATE_BYTES, SimulatedStore
from ftcomm_chaos.sim.tracker import SimulatedTracker
from ftcomm_chaos.sim.worker.process import SimulatedProcess
from ftcomm_chaos.sim.workload import LONG, SHORT, Program
from ftcomm_chaos.sim.world import Violation, World
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.rebuild.decision import attempt_of
from ftcomm_tracker.core.roster import JobState

ODD = 0.08  # share of the scripts with a rank that calls something else
ODD_STATE = 0.4  # share of those in which it gives another state to a checkpoint instead
DURABLE = 0.4  # share of the checkpoints that scripts make with durable=True
STORE_URL = "/store"  # as workers name it where that counts
POINTS_PER_CALL = 3  # places at which a fault may happen, on each rank
MAX_STEPS = 400_000  # events of one run; the longest honest one had a tenth


@dataclass(frozen=True)
class SimulationOutcome:
    """Outcome of one run."""

    seed: int
    fatal_decision: str  # "finished", or the verdict's error
    faults: tuple[str, ...]
    steps: int
    virtual_s: float
    epochs: int
    counters: Counter[str]


class Standstill:
    """Watches that a rank goes on, or that one raises: no wait of a whole group is without end.

    What keeps a group from going on otherwise has limits of its own, and is left to `quiet_s`: an
    empty place, a tracker that is away, a store.
    """

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._seen: object = None
        self._since = self._due = 0.0

    def check(self) -> None:
        """Look, a few times in `detect_within`.

        Raises:
            Violation: all are there, and nothing has moved for too long.
        """
        sim, now = self._sim, self._sim.world.now
        if now < self._due:
            return
        self._due = now + sim.settings.detect_within / 4
        processes, tracker = sim.current_processes(), sim.tracker
        seen = (
            [process.core.progress.position for process in processes],
            [process.port for process in processes],
            [process.paused_until for process in processes],
            sim.counters["messages"],
            len(sim.faults.fired),
        )
        is_here = tracker.up and not tracker.roster.members.empty_since
        if seen != self._seen or not is_here or sim.store is not None:
            self._seen, self._since = seen, now
        limit_s = sim.settings.replace_within + 2 * sim.settings.detect_within
        if now > self._since + limit_s:
            raise Violation(f"no rank goes on or raises for {limit_s:g} s; {sim.pending()}")


class Simulation:
    """All processes of one job, and the world around them.

    Args:
        seed: everything follows from it.
        tracing: keep a line for all that happens.
        faulty: plan faults.
        only: numbers of the planned faults that shall happen, None for all.
        durable: the job has a store, and everything may be lost at once; None: the seed says.
        spares: workers without a place where more than one may die at a time; None: likewise.
        standby: a second tracker waits beside the first; for a job with a store.
        contributed: half of the calls keep each rank's input in its log (R20).
        copied: half of the calls keep each rank's result at other ranks (R20).
        messages: ranks send each other messages (R21).
        disks: the tracker of a job with a store loses its journal, and the members live.
        lossy: the network loses packets, or large ones, between workers.

    Attributes:
        dial_s: seconds after which a dial has failed on which nothing comes.
    """

    def __init__(
        self,
        seed: int,
        *,
        tracing: bool = False,
        faulty: bool = True,
        only: tuple[int, ...] | None = None,
        durable: bool | None = None,
        spares: int | None = None,
        standby: bool = False,
        contributed: bool = False,
        copied: bool = False,
        messages: bool = False,
        disks: bool = False,
        lossy: bool = False,
    ) -> None:
        self.world = World(seed, tracing=tracing)
        script = random.Random(f"script of {seed}")  # noqa: S311 - drawn from the seed
        self.conditions = draw_conditions(seed, faulty=faulty, durable=durable, spares=spares)
        self.world_size, self.settings = self.conditions.world_size, self.conditions.settings
        self.dial_s = self.settings.detect_within
        self.program = Program(
            script,
            self.world_size,
            keeps_locals=self.conditions.keeps_locals,
            versions=LONG if self.conditions.durable else SHORT,
            contributing=random.Random(f"contributed of {seed}") if contributed else None,  # noqa: S311 - drawn from the seed
            copying=random.Random(f"copied of {seed}") if copied else None,  # noqa: S311 - likewise
            messaging=random.Random(f"messages of {seed}") if messages else None,  # noqa: S311 - likewise
        )
        self.odd_one = self._draw_odd_one(script) if faulty else None
        self.world.transit_s = self.conditions.transit_s
        self.counters: Counter[str] = Counter()
        stored = random.Random(f"store of {seed}")  # noqa: S311 - likewise
        self.store: SimulatedStore | None = None
        self.durable_versions: frozenset[int] = frozenset()
        if self.conditions.durable:
            self.store = SimulatedStore(self, stored.choice(STATE_BYTES))
            versions = range(1, len(self.program.versions))
            self.durable_versions = frozenset(v for v in versions if stored.random() < DURABLE)
        # A spare takes a rank, and members do not know every worker's newest incarnation then.
        self.disks = disks and self.store is not None and not self.conditions.spares
        if self.disks:  # the workers name their store
            self.settings = replace(self.settings, checkpoint=STORE_URL)
        self.network = WireNetwork(self.world) if self.conditions.wire else Network(self.world)
        self.monitor = RecordingMonitor(self)
        self.monitors: dict[str, RecordingMonitor] = {}  # of attempts, by the id of their jobs
        self.worker_ids = [f"w{rank}" for rank in range(self.world_size)]
        self.spare_ids = [f"s{number}" for number in range(self.conditions.spares)]
        self.worker_ids += self.spare_ids
        self.plan = self._draw_plan(seed, standby=standby, lossy=lossy)
        self.faults = Faults(self, tuple(p for p in self.plan if only is None or p.number in only))
        self.standby = standby and self.store is not None
        self.leader_checks = LeaderChecks(self)
        self.leading = 0  # which tracker leads, by the chain
        self.trackers: list[SimulatedTracker] = []
        self.forgotten_series: set[str] = set()  # of state directories that are lost
        self.restarting: Counter[str] = Counter()
        self.living = self._ports = 0
        self._start()

    def _draw_plan(self, seed: int, *, standby: bool, lossy: bool) -> tuple[SimulatedFault, ...]:
        return draw_plan(
            seed,
            count=self.conditions.faults,
            span=POINTS_PER_CALL * self.world_size * len(self.program.calls),
            gentle=self.conditions.gentle,
            wire=self.conditions.wire,
            one_is_enough=self.one_is_enough,
            keeps_numbers=not self.conditions.spares and not self.conditions.durable,
            durable=self.conditions.durable,
            standby=standby and self.conditions.durable,
            disks=self.disks,
            lossy=lossy,
        )

    def _start(self) -> None:
        for place in range(1 + self.standby):
            self.trackers.append(SimulatedTracker(self, place))
        for worker_id in self.worker_ids:
            self.restarting[worker_id] += 1
            self.world.after(self.world.rng.uniform(0.0, 0.3), self._restart, worker_id)

    @property
    def tracker(self) -> SimulatedTracker:
        """The tracker that leads."""
        return self.trackers[self.leading]

    @property
    def tracker_timeout(self) -> float:
        """Seconds; longer than a job is without a tracker, which may wait for other members."""
        patience_s = self.conditions.tracker_timeout * (10 if self.standby or self.disks else 1)
        return patience_s + self._lost_journal_s

    @property
    def quiet_s(self) -> float:
        """Virtual seconds after the last fault within which everything must have ended."""
        quiet_s = self.conditions.quiet_s * (5 if self.standby or self.disks else 1)
        return quiet_s + 2 * self._lost_journal_s

    @property
    def _lost_journal_s(self) -> float:
        """Seconds for which a tracker without its journal waits for members (R19)."""
        is_lost = any(p.kind is SimulatedFaultKind.TRACKER_DISK_LOST for p in self.plan)
        return self.settings.replace_within if is_lost else 0.0

    @property
    def one_is_enough(self) -> bool:
        """True if any one member has all that the job needs, while no repair is under way."""
        settings, small = self.settings, not self.program.has_large_results
        kept = settings.keep_by_all == max(KEPT_BY_ALL) and small
        of_few = self.program.keeps_locals or self.program.has_copied_calls
        return kept and self.world_size > 1 and not of_few

    def _draw_odd_one(self, rng: random.Random) -> tuple[int, object] | None:
        """A rank that calls something else at one position, or saves another state there."""
        if rng.random() > ODD or self.world_size == 1:
            return None
        calls = self.program.calls
        places = [p for p, call in calls.items() if call.salt]
        if rng.random() < ODD_STATE and not self.conditions.lazy:  # those are not compared
            places = [p for p, call in calls.items() if call.kind is Kind.CHECKPOINT] or places
        return (rng.randrange(self.world_size), rng.choice(places)) if places else None

    # --- processes --------------------------------------------------------------------------------

    def host_of(self, worker_id: str) -> str:
        """Return the host of a worker."""
        return f"host{int(worker_id[1:]) % self.conditions.hosts}"

    def zone_of(self, worker_id: str) -> str:
        """Return the zone of a worker: every other host's."""
        return f"zone{int(worker_id[1:]) % self.conditions.hosts % 2}"

    def _restart(self, worker_id: str) -> None:
        self.restarting[worker_id] -= 1
        if not self.tracker.ended:
            self.start_process(worker_id)

    def replace_lost(self, worker_id: str) -> None:
        """Start a worker again whose process is gone, unless its launcher does."""
        here = any(x.alive and x.worker_id == worker_id for x in self.network.processes.values())
        if not here and not self.restarting[worker_id]:
            self.restarting[worker_id] += 1
            self.world.after(0.1, self._restart, worker_id)

    def start_process(self, worker_id: str) -> None:
        """A new process of `worker_id`."""
        self._ports += 1
        self.living += 1
        process = SimulatedProcess(self, worker_id, self._ports)
        self.world.trace(f"{process} starts")

    def on_death(self, process: SimulatedProcess) -> None:
        """A launcher starts again what was killed, not what has ended."""
        self.living -= 1
        others = [
            x.port
            for x in self.network.processes.values()
            if x.alive and x.worker_id == process.worker_id
        ]
        # Two incarnations at once are a planned fault: the launcher keeps at least one of them.
        killed = process.ended is None and not any(port > process.port for port in others)
        lost = ("FencedError", "EvictedError", "RolledBackError", "TrackerLostError")
        displaced = process.ended is not None and process.ended.startswith(lost) and not others
        # An older one, stopped since it was replaced, may die while the next is being started.
        if (killed or displaced) and not self.restarting[process.worker_id]:
            self.restarting[process.worker_id] += 1
            self.world.after(
                self.world.between(0.02, self.conditions.restart_s),
                self._restart,
                process.worker_id,
            )

    def on_attempt(self, durable: Durable) -> None:
        """Everything was lost: a new attempt begins, whose invariants count from its parent."""
        self.counters["attempts"] += 1
        self.monitor = RecordingMonitor(self)
        self.monitor.resume(durable)
        self.monitors[durable.job_id] = self.monitor

    def on_taken_up(self, durable: Durable) -> None:
        """A job is rebuilt from its workers: the attempt that they are of goes on."""
        self.monitor = self.monitor_of(durable.job_id)

    def monitor_of(self, job_id: str) -> RecordingMonitor:
        """The checkers of that attempt; of the newest one where `job_id` is none's yet."""
        return self.monitors.get(job_id, self.monitor)

    def on_all_lost(self) -> None:
        """Everything is lost, or all workers, of whichever attempt they are."""
        for monitor in (self.monitor, *self.monitors.values()):
            monitor.lost_all = True

    def lose_everything(self, *, journal: bool) -> None:
        """Kill all workers and the tracker at one moment; the state directory may go with them."""
        self.on_all_lost()
        for process in [x for x in self.network.processes.values() if x.alive]:
            process.die("killed")
        for tracker in self.trackers:
            if journal:
                before = tracker.journal
                own = {attempt_of(before.job_id)[0]} if before.attempt else set()
                self.forgotten_series |= {*own, *before.former}
                tracker.journal = self.fresh_journal()
            tracker.crash()
        if journal:  # the command is given again, also for who had heard an end that is forgotten
            for worker_id in self.worker_ids:
                self.replace_lost(worker_id)

    def fresh_journal(self) -> Durable:
        """Return the journal of a new state directory."""
        return Durable.fresh("sim", self.world_size, self.settings.to_wire())

    def current_processes(self) -> list[SimulatedProcess]:
        """Processes that own a place and are alive."""
        owners = {place.nonce for place in self.tracker.journal.places}
        return [
            process
            for process in self.network.processes.values()
            if process.alive and process.core.contact.identity.nonce in owners
        ]

    def settled_processes(self) -> list[SimulatedProcess]:
        """All members, if nothing at all is being repaired; else none."""
        roster = self.tracker.roster
        if (
            not self.tracker.up
            or roster.state is not JobState.RUNNING
            or roster.epochs.awaiting_fetch
        ):
            return []
        processes = self.current_processes()
        is_quiescent = all(
            process.core.view.state is WorkerState.RUNNING
            and process.core.view.epoch == roster.epochs.in_force
            for process in processes
        )
        newest = {
            process.worker_id: process
            for process in self.network.processes.values()
            if process.alive
        }
        is_quiescent = is_quiescent and all(
            newest[process.worker_id] is process for process in processes
        )
        return processes if is_quiescent and len(processes) == self.world_size else []

    # --- running ------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Nobody is left who could do anything."""
        return not self.living and not any(self.restarting.values())

    def run(self) -> SimulationOutcome:
        """Run to the end.

        Raises:
            Violation: a rule is broken, or the job does not end.
        """
        standstill = Standstill(self)
        while not self.is_over:
            try:
                going = self.world.run_one()
            except Killed:
                continue
            standstill.check()
            last = self.faults.fired[-1][0] if self.faults.fired else 0.0
            long = self.world.now > last + self.quiet_s or self.world.steps > MAX_STEPS
            if long or not going:
                raise Violation(f"the job does not end; {self.pending()}")
        self.tracker.monitor.check_end()
        decision = self.tracker.fatal_decision
        end = "TrackerLostError" if self.tracker.has_given_up else "finished"
        return SimulationOutcome(
            seed=self.world.seed,
            fatal_decision=end if decision is None else decision.error,
            faults=tuple(planned.kind.value for _, planned in self.faults.fired),
            steps=self.world.steps,
            virtual_s=self.world.now,
            epochs=self.tracker.journal.epoch,
            counters=self.counters,
        )

    def pending(self) -> str:
        """Explain why the job does not end."""
        roster = self.tracker.roster
        parts = [f"the tracker is {roster.state.name if self.tracker.up else 'down'}"]
        parts += [f"waits for {roster.snapshot(self.world.now)['waiting_for']}"]
        for process in self.network.processes.values():
            if process.alive:
                core = process.core
                view = core.view
                parts.append(
                    f"{process} is {view.state.name} at {core.progress.position} of "
                    f"{view.frontier} in epoch {view.epoch}/{view.revoke_epoch}, "
                    f"suspects {view.suspects}, fetching "
                    f"{sorted(view.pending_fetches)}, blocked on {process.blocked_on}, "
                    f"attached {core.contact.attached}, log {core.log.runs()}"
                )
        return "\n  ".join(parts)
