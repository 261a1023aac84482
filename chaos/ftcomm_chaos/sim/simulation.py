"""One simulated job from its seed to its end."""

import random
from collections import Counter
from dataclasses import dataclass, replace

from ftcomm.recovery.worker import State
from ftcomm.settings import JobSettings
from ftcomm_chaos.sim.faults import Faults, Killed
from ftcomm_chaos.sim.network import Network
from ftcomm_chaos.sim.plan import draw_plan
from ftcomm_chaos.sim.process import Life
from ftcomm_chaos.sim.program import Program
from ftcomm_chaos.sim.recording import RecordingMonitor
from ftcomm_chaos.sim.tracker import Tracker
from ftcomm_chaos.sim.wire_network import WireNetwork
from ftcomm_chaos.sim.world import Violation, World
from ftcomm_tracker.roster import State as JobState

QUIET_S = 60.0  # virtual seconds after the last fault within which everything must have ended
WIRED = 0.25  # share of the seeds whose connections are bytes
POINTS_PER_CALL = 3  # places at which a fault may happen, on each rank
MAX_STEPS = 400_000  # events of one run; the longest honest one had a tenth
SETTINGS = JobSettings(detect_within=1.0, reattach_within=3.0, replace_within=50.0)


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    seed: int
    verdict: str  # "finished", or the verdict's error
    faults: tuple[str, ...]
    steps: int
    virtual_s: float
    epochs: int
    counters: Counter[str]


class Simulation:
    """All processes of one job, and the world around them.

    Args:
        seed: everything follows from it.
        tracing: keep a line for all that happens.
        faulty: plan faults.
        only: numbers of the planned faults that shall happen, None for all.
    """

    def __init__(
        self,
        seed: int,
        *,
        tracing: bool = False,
        faulty: bool = True,
        only: tuple[int, ...] | None = None,
    ) -> None:
        self.world = World(seed, tracing=tracing)
        rng = self.world.rng
        self.world_size = rng.choice((1, 2, 2, 3, 3, 4, 5)) if faulty else rng.randint(1, 5)
        self.gentle = rng.random() < 0.6
        self.wire = rng.random() < WIRED
        self.think_s = rng.choice((0.002, 0.002, 0.02, 0.2))
        copies = (2, 2, 3) if self.gentle else (1, 2, 2, 2, 3)
        shadow = random.Random(f"local states of {seed}")  # noqa: S311 - drawn from the seed
        self.settings = replace(
            SETTINGS,
            replicas=rng.choice(copies),
            local_replicas=shadow.choice((1, 1, 2, 3) if self.gentle else (0, 1, 2, 2)),
        )
        self.program = Program(rng, self.world_size, keeps_locals=shadow.random() < 0.5)
        # A spare takes a place at once, also that of a life which had only lost its connection.
        self.spares = ["s0"] if faulty and not self.gentle and rng.random() < 0.25 else []
        self.odd_one = self._draw_odd_one() if faulty else None
        self.counters: Counter[str] = Counter()
        self.network = WireNetwork(self.world) if self.wire else Network(self.world)
        self.monitor = RecordingMonitor(self)
        self.worker_ids = [f"w{rank}" for rank in range(self.world_size)]
        self.worker_ids += self.spares
        # A group of one has nobody who could keep anything.
        deadly = faulty and not (self.gentle and self.world_size == 1)
        self.plan = draw_plan(
            seed,
            count=rng.randint(4, 13) if deadly else 0,
            span=POINTS_PER_CALL * self.world_size * len(self.program.calls),
            gentle=self.gentle,
            wire=self.wire,
        )
        kept = [p for p in self.plan if only is None or p.number in only]
        self.faults = Faults(self, tuple(kept))
        self.tracker = Tracker(self)
        self.restarting: Counter[str] = Counter()
        self._ports = 0
        self._hosts = rng.randint(1, 3)
        for worker_id in self.worker_ids:
            self.restarting[worker_id] += 1
            self.world.after(rng.uniform(0.0, 0.3), self._restart, worker_id)

    def _draw_odd_one(self) -> tuple[int, object] | None:
        rng = self.world.rng
        if rng.random() > 0.08 or self.world_size == 1:
            return None
        ordinary = [p for p, call in self.program.calls.items() if call.salt]
        return (rng.randrange(self.world_size), rng.choice(ordinary)) if ordinary else None

    # --- lives --------------------------------------------------------------------------------

    def host_of(self, worker_id: str) -> str:
        """Where a worker runs."""
        return f"host{int(worker_id[1:]) % self._hosts}"

    def _restart(self, worker_id: str) -> None:
        self.restarting[worker_id] -= 1
        if not self.tracker.ended:
            self.start_life(worker_id)

    def start_life(self, worker_id: str) -> None:
        """A new process of `worker_id`."""
        self._ports += 1
        life = Life(self, worker_id, self._ports)
        self.world.trace(f"{life} starts")

    def on_death(self, life: Life) -> None:
        """A launcher starts again what was killed, not what has ended."""
        others = [
            x.port for x in self.network.lives.values() if x.alive and x.worker_id == life.worker_id
        ]
        # Two lives at once are a planned fault: the launcher keeps at least one of them.
        killed = life.ended is None and not any(port > life.port for port in others)
        lost = ("FencedError", "EvictedError")
        displaced = life.ended is not None and life.ended.startswith(lost) and not others
        if killed or (displaced and not self.restarting[life.worker_id]):
            self.restarting[life.worker_id] += 1
            self.world.after(self.world.between(0.02, 2.0), self._restart, life.worker_id)

    def current_lives(self) -> list[Life]:
        """Processes that own a place and are alive."""
        owners = {place.nonce for place in self.tracker.journal.places}
        return [
            life
            for life in self.network.lives.values()
            if life.alive and life.core.identity.nonce in owners
        ]

    def settled_lives(self) -> list[Life]:
        """All members, if nothing at all is being repaired; else none."""
        roster = self.tracker.roster
        if not self.tracker.up or roster.state is not JobState.RUNNING or roster.awaiting_fetch:
            return []
        lives = self.current_lives()
        calm = all(
            life.core.state is State.RUNNING and life.core.epoch == roster.epoch for life in lives
        )
        newest = {life.worker_id: life for life in self.network.lives.values() if life.alive}
        calm = calm and all(newest[life.worker_id] is life for life in lives)
        return lives if calm and len(lives) == self.world_size else []

    # --- running ------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Nobody is left who could do anything."""
        return not any(self.restarting.values()) and not any(
            life.alive for life in self.network.lives.values()
        )

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            Violation: a rule is broken, or the job does not end.
        """
        while not self.is_over:
            try:
                going = self.world.run_one()
            except Killed:
                continue
            last = self.faults.fired[-1][0] if self.faults.fired else 0.0
            long = self.world.now > last + QUIET_S or self.world.steps > MAX_STEPS
            if long or not going:
                raise Violation(f"the job does not end; {self.pending()}")
        self.monitor.check_end()
        journal = self.tracker.journal
        return Outcome(
            seed=self.world.seed,
            verdict="finished" if journal.verdict is None else journal.verdict.error,
            faults=tuple(planned.kind.value for _, planned in self.faults.fired),
            steps=self.world.steps,
            virtual_s=self.world.now,
            epochs=journal.epoch,
            counters=self.counters,
        )

    def pending(self) -> str:
        """Why the job does not end."""
        roster = self.tracker.roster
        parts = [f"the tracker is {roster.state.name if self.tracker.up else 'down'}"]
        parts += [f"waits for {roster.snapshot(self.world.now)['waiting_for']}"]
        for life in self.network.lives.values():
            if life.alive:
                core = life.core
                parts.append(
                    f"{life} is {core.state.name} at {core.position} of {core.frontier} in "
                    f"epoch {core.epoch}/{core.revoke_epoch}, suspects {core.suspects}, fetching "
                    f"{sorted(core.pending_fetches)}, blocked on {life.blocked_on}, "
                    f"attached {core.attached}, log {core.log.runs()}"
                )
        return "\n  ".join(parts)


def run_seed(seed: int, *, tracing: bool = False, faulty: bool = True) -> Outcome:
    """Run one seed; the same seed is the same run."""
    return Simulation(seed, tracing=tracing, faulty=faulty).run()
