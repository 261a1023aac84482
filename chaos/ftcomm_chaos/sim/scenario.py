"""Under which conditions a seed's job runs: each seed draws its own (a swarm)."""

import random
from dataclasses import dataclass, replace

from ftcomm.config.job_settings import JobSettings
from ftcomm.recovery.archive.results import ENTRY_BYTES

WIRED = 0.25  # share of the seeds whose connections are bytes
CROWDED = 0.05  # share with more ranks than usual
GENTLE = 0.6  # share in which one process dies at a time
# Seconds for which nothing may come farther: so long that only links without a way round take it.
NO_PROGRESS = 50.0
STORED = 0.15  # share of the jobs that have a store
LAZY = 0.4  # share whose checkpoints are lazy
# Bytes of small results that every member keeps: none, a few, all of a script.
KEPT_BY_ALL = (0, 0, 3 * (ENTRY_BYTES + 16), 1 << 28, 1 << 28)
SLOW_LAUNCHERS = 0.06  # share in which nobody may be started in place of who has died


@dataclass(frozen=True)
class Conditions:
    """Constants of a job's run.

    Attributes:
        world_size: places.
        gentle: the next death waits until everything is repaired, so no result may be lost.
        wire: connections are bytes.
        think_s: the longest that a rank computes between two calls.
        transit_s: the longest that a message is on its way.
        restart_s: the longest until a dead process is started again.
        hosts: how many machines there are.
        spares: workers without a place.
        keeps_locals: checkpoints have local states.
        durable: the job has a store, and everything may be lost at once.
        lazy: checkpoints are lazy, and what one holds is overwritten when the next has returned.
        faults: how many are planned.
        settings: of the job.
    """

    world_size: int
    gentle: bool
    wire: bool
    think_s: float
    transit_s: float
    restart_s: float
    hosts: int
    spares: int
    keeps_locals: bool
    lazy: bool
    faults: int
    settings: JobSettings
    durable: bool = False

    @property
    def quiet_s(self) -> float:
        """Virtual seconds after the last fault within which everything must have ended.

        A place may stay empty, or a record of the store be missing, for `NO_PROGRESS`. A worker
        that was turned away meanwhile gives up after another `tracker_timeout`. A lost attempt may
        await its last checkpoint for `replace_within`, before the next one begins.
        """
        will_s = self.settings.replace_within if self.durable else 0.0
        return (NO_PROGRESS + 40.0) * max(self.settings.detect_within, 1.0) + will_s

    @property
    def tracker_timeout(self) -> float:
        """Seconds; longer than any tracker is away or refuses."""
        return 20.0 * max(self.settings.detect_within, 1.0)

    @property
    def may_stay_empty(self) -> bool:
        """A place may be empty for `replace_within`."""
        return self.restart_s > self.settings.replace_within / 2


def draw_conditions(
    seed: int, *, faulty: bool, durable: bool | None = None, spares: int | None = None
) -> Conditions:
    """Those of a seed; without faults nothing is so slow that it could pass for one."""
    rng = random.Random(f"conditions of {seed}")  # noqa: S311 - drawn from the seed
    size = rng.choice((1, 2, 2, 3, 3, 4, 5))
    if rng.random() < CROWDED:
        size = rng.choice((6, 7, 8))
    gentle = rng.random() < GENTLE
    wire = rng.random() < WIRED
    settings = _draw_settings(rng, gentle=gentle)
    transit_s = rng.choice((0.002, 0.02, 0.02, 0.02, 0.1))
    if not faulty:
        settings, transit_s = replace(settings, detect_within=1.0), 0.02
    restart_s = rng.choice((0.2, 2.0, 2.0, 6.0))
    if rng.random() < SLOW_LAUNCHERS and not gentle:
        settings = replace(settings, replace_within=4.0 * max(settings.detect_within, 1.0))
        restart_s = settings.replace_within * 1.5
    # Drawn by itself, so that all other seeds' jobs are what they were before this was thought of.
    later = random.Random(f"replay of {seed}")  # noqa: S311 - drawn from the seed
    later.random()  # nothing's any more; the jobs of known seeds stay what they are
    alone = random.Random(f"keep by all of {seed}")  # noqa: S311 - likewise
    settings = replace(settings, keep_by_all=alone.choice(KEPT_BY_ALL))
    drawn = random.Random(f"store of {seed}").random() < STORED  # noqa: S311 - likewise
    stored = drawn if durable is None else durable
    count = rng.randint(6, 18) if gentle else rng.randint(8, 30)
    conditions = Conditions(
        world_size=size,
        gentle=gentle,
        wire=wire,
        think_s=rng.choice((0.002, 0.002, 0.02, 0.2)),
        transit_s=transit_s,
        restart_s=restart_s,
        hosts=rng.randint(1, 3),
        # A spare takes a place at once, also that of a process which had only lost its connection.
        spares=rng.choice((0, 0, 0, 0, 0, 0, 1, 2)) if faulty and not gentle else 0,
        keeps_locals=rng.random() < 0.5,
        lazy=later.random() < LAZY,
        # A group of one has nobody who could keep anything.
        faults=0 if not faulty or (gentle and size == 1) else count,
        settings=settings,
        durable=stored,
    )
    wanted = conditions.spares if spares is None or gentle else spares
    return replace(conditions, spares=wanted)


def _draw_settings(rng: random.Random, *, gentle: bool) -> JobSettings:
    detect_within = rng.choice((0.5, 1.0, 1.0, 1.0, 2.0, 5.0))
    return JobSettings(
        detect_within=detect_within,
        reattach_within=rng.choice((0.3, 1.0, 3.0, 3.0, 8.0)),
        replace_within=NO_PROGRESS * max(detect_within, 1.0),
        replicas=rng.choice((2, 2, 3) if gentle else (1, 2, 2, 2, 3)),
        local_replicas=rng.choice((1, 1, 2, 3) if gentle else (0, 1, 2, 2)),
    )
