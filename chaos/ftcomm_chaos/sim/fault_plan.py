"""Fault plan of a seed: a list of independent faults.

Each seed draws a few kinds out of all (a swarm), so that runs differ in more than their timing.
A plan is drawn by a source of randomness of its own, and each fault has another one for what it
decides when it happens.  So one fault can be left out, and the others stay what and where they are.
"""

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class SimulatedFaultKind(enum.Enum):
    """Kinds of faults in the simulation."""

    CRASH = "crash"
    CRASH_OTHER = "crash of another"
    CRASH_TWO = "crash of two"
    CRASH_ALL_BUT_ONE = "crash of all but one"
    CUT_DATA = "data link cut"
    SILENCE = "data link silent"
    BARRIER = "pair cannot connect"
    SILENT_BARRIER = "pair silent"
    CUT_CONTROL = "control link cut"
    CUT_SHORT = "call cut short"
    PAUSE = "short stop"
    LONG_PAUSE = "long stop"
    DUPLICATE = "second process"
    PAUSE_AND_REPLACE = "stop and replace"
    TRACKER_CRASH = "tracker crash"
    TRACKER_TORN = "tracker crash between two effects"
    TRACKER_STALL = "tracker stop"
    TRACKER_DISK_LOST = "tracker crash with its journal"
    TRACKER_LONG_STALL = "long tracker stop"
    TRACKER_CUT_OFF = "tracker cut off from the workers"
    TRACKER_WITHOUT_STORE = "tracker cut off from its store"
    REFUSAL = "tracker refuses"
    CUT_INSIDE = "cut at a byte"
    STALL = "bytes held up"
    HALF_OPEN = "half-open connection"
    ONE_WAY = "one way silent"
    ONE_WAY_BARRIER = "pair silent one way"
    HOLE = "pair loses large packets"
    HOST_HOLE = "worker loses large packets"
    LOSE_WORKERS = "loss of all workers"
    LOSE_ALL = "loss of everything"
    LOSE_ALL_AND_DISK = "loss of everything and the state directory"
    LOSE_ALL_DAMAGED = "loss of everything, and a damaged object"


DEADLY = frozenset(
    {
        *(
            SimulatedFaultKind.CRASH,
            SimulatedFaultKind.CRASH_OTHER,
            SimulatedFaultKind.CRASH_TWO,
            SimulatedFaultKind.CRASH_ALL_BUT_ONE,
        ),
        *(SimulatedFaultKind.DUPLICATE, SimulatedFaultKind.PAUSE_AND_REPLACE),
        SimulatedFaultKind.TRACKER_DISK_LOST,
    }
)
OF_BYTES = frozenset(
    {
        SimulatedFaultKind.CUT_INSIDE,
        SimulatedFaultKind.STALL,
        SimulatedFaultKind.HALF_OPEN,
        SimulatedFaultKind.ONE_WAY,
        SimulatedFaultKind.ONE_WAY_BARRIER,
    }
)
OF_STANDBY = frozenset(  # a tracker beside which no other one waits has them not
    {
        SimulatedFaultKind.TRACKER_LONG_STALL,
        SimulatedFaultKind.TRACKER_CUT_OFF,
        SimulatedFaultKind.TRACKER_WITHOUT_STORE,
    }
)
OF_TWO_TRACKERS = (
    SimulatedFaultKind.TRACKER_CRASH,
    SimulatedFaultKind.TRACKER_TORN,
    SimulatedFaultKind.TRACKER_LONG_STALL,
    SimulatedFaultKind.TRACKER_CUT_OFF,
    SimulatedFaultKind.TRACKER_WITHOUT_STORE,
)
TOTAL = (
    SimulatedFaultKind.LOSE_WORKERS,
    SimulatedFaultKind.LOSE_ALL,
    SimulatedFaultKind.LOSE_ALL_AND_DISK,
    SimulatedFaultKind.LOSE_ALL_DAMAGED,
)
LOSSY = (SimulatedFaultKind.SILENT_BARRIER, SimulatedFaultKind.HOLE, SimulatedFaultKind.HOST_HOLE)
DRAWN_ALONE = frozenset(
    {
        SimulatedFaultKind.HOLE,
        SimulatedFaultKind.HOST_HOLE,
        SimulatedFaultKind.CUT_SHORT,
        SimulatedFaultKind.CRASH_ALL_BUT_ONE,
        SimulatedFaultKind.TRACKER_DISK_LOST,
        *OF_STANDBY,
        *TOTAL,
    }
)
# Points that are worth more faults than their number in a run would give them.
HOT = frozenset(
    {
        *("planned", "reported", "fetching", "serving"),
        *("completing", "offered", "copied", "closed", "joined"),
    }
)
AIMED = 0.3  # share of faults that wait for one of these
RECOVERING = ("reported", "planned", "fetching", "serving", "joined")
BURSTS = 0.12  # share of faults that others follow, in the recovery from the first
LONGEST_BURST = 3  # further faults
INTERRUPTED = 0.3  # share of the seeds in which users cut calls short
DISK = (SimulatedFaultKind.TRACKER_DISK_LOST,)
# Points for which what is drawn alone waits.
ANY: tuple[str, ...] = ("", "")
ENDING = ("completing", "reported", "planned", "closed")
LEADING = ("reported", "planned", "completing", "closed", "fetching", "joined", "wrote")
RECORDING = (*ENDING, "wrote", "writing", "joined")
STORED = ("completing", "offered", "copied", "planned")
STORING = ("writing", "wrote", "restoring", "completing", "offered", "planned", "joined")
DISKS_LOST = 0.15  # share of the seeds in which the tracker loses its journal
DEADLIEST = 0.4  # share of the seeds, where it may be, in which all members but one die at once


@dataclass(frozen=True, slots=True)
class SimulatedFault:
    """One fault that waits for its point.

    Attributes:
        number: its place in the seed's whole plan.
        at_point: how many points the job must have come to.
        name: the kind of point that it then waits for, empty for any.
    """

    number: int
    kind: SimulatedFaultKind
    at_point: int
    name: str = ""

    def rng(self, seed: int) -> random.Random:
        """Return the generator from which this fault draws when it happens."""
        return random.Random(f"fault {self.number} of {seed}")  # noqa: S311 - drawn from the seed

    def __str__(self) -> str:
        return f"{self.number}: {self.kind.value}, {self.name or 'any point'} from {self.at_point}"


def draw_plan(
    seed: int,
    *,
    count: int,
    span: int,
    gentle: bool,
    wire: bool,
    one_is_enough: bool,
    keeps_numbers: bool,
    durable: bool = False,
    standby: bool = False,
    disks: bool = False,
    lossy: bool = False,
) -> tuple[SimulatedFault, ...]:
    """The faults of a seed in the order in which they wait.

    Args:
        seed: the run's.
        count: how many, beside calls that users cut short; with 0 there are none of these.
        span: the last point at which one may begin to wait.
        gentle: at most one process dies at a time.
        wire: connections are bytes, and can be hurt at any one.
        durable: the job has a store, and goes on when everything is lost.
        standby: a second tracker waits beside the first.
        disks: the tracker of a job with a store loses its journal.
        lossy: the network loses packets between workers, or large ones.
        one_is_enough: whoever is left has all that a job needs, though all others die at once.
        keeps_numbers: no spare takes a rank, so members know every worker's newest incarnation.
    """
    drawn = _usual_faults(seed, count, span, gentle=gentle, wire=wire)
    if count:
        # Calls that the user cuts short hurt nobody else, and are no reason to be gentle.
        cut_short = (SimulatedFaultKind.CUT_SHORT,)
        drawn += _moments(seed, "interrupts", span, cut_short, ("",), share=INTERRUPTED)
        if one_is_enough or not gentle:
            deaths = (SimulatedFaultKind.CRASH_ALL_BUT_ONE,)
            drawn += _moments(seed, "massacres", span, deaths, ANY + STORED, share=DEADLIEST)
        if lossy:
            drawn += _moments(seed, "lossy networks", span, LOSSY, (*ANY, "receiving"))
        if keeps_numbers:
            drawn += _moments(seed, "lost disks", span, DISK, ANY + ENDING, share=DISKS_LOST)
        if durable:
            drawn += _moments(seed, "losses", 2 * span, TOTAL, ANY + STORING, most=4)
        if standby:
            drawn += _moments(seed, "lost trackers", span, OF_TWO_TRACKERS, ANY + LEADING, most=5)
        if disks:
            drawn += _moments(seed, "stored disks", span, DISK, ANY + RECORDING)
    drawn.sort(key=lambda fault: fault[0])
    return tuple(
        SimulatedFault(number, kind, at_point, name)
        for number, (at_point, kind, name) in enumerate(drawn)
    )


def _usual_faults(
    seed: int, count: int, span: int, *, gentle: bool, wire: bool
) -> list[tuple[int, SimulatedFaultKind, str]]:
    """The faults of which a seed draws a few kinds, with those that follow them."""
    rng = random.Random(f"faults of {seed}")  # noqa: S311 - drawn from the seed
    excluded = {SimulatedFaultKind.CRASH_TWO} if gentle else set()
    usual = [kind for kind in SimulatedFaultKind if kind not in excluded | OF_BYTES | DRAWN_ALONE]
    kinds = [*rng.sample(usual, rng.randint(1, 5)), SimulatedFaultKind.CRASH]
    if wire:
        kinds += rng.sample(sorted(OF_BYTES, key=lambda kind: kind.value), rng.randint(1, 4))
    drawn: list[tuple[int, SimulatedFaultKind, str]] = []
    while len(drawn) < count:
        kind = rng.choice(kinds)
        name = rng.choice(sorted(HOT)) if rng.random() < AIMED else ""
        drawn.append((rng.randrange(span), kind, name))
        if rng.random() < BURSTS:
            drawn += _burst(rng, drawn[-1][0], kinds)
    return drawn


def _moments(
    seed: int,
    stream: str,
    span: int,
    kinds: Sequence[SimulatedFaultKind],
    names: Sequence[str],
    *,
    most: int = 3,
    share: float = 1.0,
) -> list[tuple[int, SimulatedFaultKind, str]]:
    """Faults of a few kinds in a share of the seeds, drawn from a generator of their own."""
    rng = random.Random(f"{stream} of {seed}")  # noqa: S311 - drawn from the seed
    if share < 1.0 and rng.random() >= share:
        return []
    return [
        (rng.randrange(span), _one_of(rng, kinds), _one_of(rng, names))
        for _ in range(rng.randint(1, most))
    ]


def _one_of(rng: random.Random, choice: Sequence[T]) -> T:
    return rng.choice(choice) if len(choice) > 1 else choice[0]


def _burst(
    rng: random.Random, first: int, kinds: list[SimulatedFaultKind]
) -> list[tuple[int, SimulatedFaultKind, str]]:
    """Faults while the job recovers from the one at the point `first`: the double and triple."""
    return [
        (first + rng.randint(1, 8), rng.choice(kinds), rng.choice(RECOVERING))
        for _ in range(rng.randint(1, LONGEST_BURST))
    ]
