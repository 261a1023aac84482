"""Random plans of deaths and stops that no job may be lost to: a pure function of the seed.

The job is ``model_recover`` with four ranks.  A plan is a row of *bursts*, each at one collective.
In a burst as many ranks die as the copies of each result allow, some of them again in the first
steps of their next incarnation.  A burst comes only when all have executed a collective together
with those who died in the one before, so that every copy has been made again.  Between them ranks
are stopped for a moment.

Every fault must fire, so a fault is planned only where an incarnation is sure to come: ``enter``
and ``done`` at any collective (a checkpoint has no ``done``), inside one only where nobody else
dies, since a rank that is served a result does not transfer it.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.conformance.plans import Plan
from tests.conformance.scenario import model

RANKS = 4
VERSIONS = 3
BROADCASTS = range(1, 9)  # seqnos; a length and its bytes from each of the four ranks
CHECKPOINT = 11  # seqno
LONGEST_GAP = 5  # collectives between two bursts beyond the fewest
AGAIN = 0.3  # share of the dead whose next incarnation dies too
STOPS = 5


@dataclass(frozen=True, slots=True, order=True)
class Call:
    """One collective of the program."""

    version: int
    seqno: int

    @property
    def synchronising(self) -> bool:
        """True if every rank that executed it knows that all ranks have come so far."""
        return self.seqno not in BROADCASTS

    @property
    def ends(self) -> list[str]:
        """Points to which every incarnation comes, whether it executes this or is served."""
        return ["enter"] if self.seqno == CHECKPOINT else ["enter", "done"]

    def points(self, rank: int) -> list[str]:
        """Points to which `rank` comes if nobody else dies."""
        points = self.ends
        root = (self.seqno - 1) // 2
        if self.synchronising or rank == root:
            points.append("half_sent")
        if self.synchronising or rank != root:
            points.append("half_received")
        return [*points, "saved", "committed"] if self.seqno == CHECKPOINT else points


CALLS = [Call(v, s) for v in range(VERSIONS) for s in range(CHECKPOINT + 1)]


def random_plan(seed: int) -> Plan:
    """The plan of a seed."""
    dice = random.Random(f"schedule {seed}")
    replicas = dice.choice((2, 4))
    deaths = sorted(_deaths(dice, replicas))
    faults = [death.fault for death in deaths]
    faults += _stops(dice, deaths)
    return Plan(RANKS, model(100), tuple(faults), {"replicas": replicas}, resume=True)


@dataclass(frozen=True, slots=True, order=True)
class Death:
    """A death in a burst; `where` is the call of the burst, also if it dies in a prelude then."""

    where: Call
    rank: int
    fault: str


def _deaths(dice: random.Random, replicas: int) -> Iterator[Death]:
    processes: Counter[int] = Counter()
    index = dice.randrange(LONGEST_GAP)
    while index < len(CALLS):
        call = CALLS[index]
        victims = dice.sample(range(RANKS), dice.randint(1, replicas - 1))
        for rank in victims:
            points = call.points(rank) if len(victims) == 1 else call.ends
            yield _death(call, rank, f"{call.version}.{call.seqno}.{processes[rank]}", points, dice)
            processes[rank] += 1
            if dice.random() < AGAIN:
                points = ["enter", "done", "loading"]
                yield _death(call, rank, f"-1.0.{processes[rank]}", points, dice)
                processes[rank] += 1
        index = _next_undisturbed(index) + dice.randrange(LONGEST_GAP)


def _death(call: Call, rank: int, place: str, points: list[str], dice: random.Random) -> Death:
    return Death(call, rank, f"{rank}.{place}@{dice.choice(points)}")


def _next_undisturbed(index: int) -> int:
    """The first call before which all have executed one with whoever died at `index`."""
    later = range(index + 1, len(CALLS))
    return next((i + 1 for i in later if CALLS[i].synchronising), len(CALLS))


def _stops(dice: random.Random, deaths: list[Death]) -> list[str]:
    """Stops of incarnations that are sure to come to their place: the first one that gets there."""
    places = [(call, rank) for call in CALLS for rank in range(RANKS)]
    # a checkpoint may be committed without a new incarnation that has yet to load
    for death in deaths:
        passed_over = Call(death.where.version, CHECKPOINT)
        places = [
            p for p in places if p not in ((death.where, death.rank), (passed_over, death.rank))
        ]
    faults = []
    for call, rank in dice.sample(places, STOPS):
        process = sum(death.rank == rank and death.where < call for death in deaths)
        point = dice.choice(call.ends)
        faults.append(f"{rank}.{call.version}.{call.seqno}.{process}@{point}=stop")
    return faults
