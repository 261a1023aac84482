"""Time of a collective by the alpha-beta model: the steps of all ranks, really followed. Pure.

A message of b bytes takes alpha + b beta from the moment its sender comes to the step, and
combining b received bytes takes b gamma.  A step is over when its own message has left, the awaited
one has come and has been combined; a rank's steps follow one another.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ftcomm.collectives.schedules.schedule import NOBODY, Reduce, Schedule, Step

MOST_STEPS = 300_000  # of all ranks together: a second; above, ranks have to be alike


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: for each message, for each byte of one, for each byte that is combined."""

    alpha: float
    beta: float
    gamma: float


def finish(schedules: Sequence[Schedule], itemsize: int, costs: Costs) -> float:
    """Return the time at which the last rank is done, all having begun at 0.

    Raises:
        ValueError: the schedules wait for each other.
    """
    clocks = [0.0] * len(schedules)
    at = [0] * len(schedules)
    arrivals: dict[tuple[int, int, int], float] = {}
    waiting: dict[tuple[int, int, int], int] = {}
    ready = list(range(len(schedules)))
    while ready:
        rank = ready.pop()
        steps = schedules[rank].steps
        while at[rank] < len(steps):
            step = steps[at[rank]]
            sent = (rank, step.send_to, step.tag)
            if step.send_to != NOBODY and sent not in arrivals:
                arrivals[sent] = clocks[rank] + _message(
                    step.send_hi - step.send_lo, itemsize, costs
                )
                if sent in waiting:
                    ready.append(waiting.pop(sent))
            awaited = (step.recv_from, rank, step.tag)
            if step.recv_from != NOBODY and awaited not in arrivals:
                waiting[awaited] = rank
                break
            clocks[rank] = _end(step, clocks[rank], arrivals.get(awaited, 0.0), itemsize, costs)
            at[rank] += 1
    if waiting:
        raise ValueError(f"{len(waiting)} ranks wait for messages that nobody sends")
    return max(clocks)


def finish_alike(schedule: Schedule, itemsize: int, costs: Costs) -> float:
    """The same where all ranks do the same at the same time, so that one clock is all clocks."""
    clock = 0.0
    for step in schedule.steps:
        arrival = clock + _message(step.recv_hi - step.recv_lo, itemsize, costs)
        clock = _end(step, clock, arrival, itemsize, costs)
    return clock


def predict(
    schedule_of: Callable[[int], Schedule], world_size: int, itemsize: int, costs: Costs
) -> float:
    """The time of `world_size` ranks, of which rank r follows ``schedule_of(r)``.

    Raises:
        ValueError: too many steps for following each, and the ranks are not alike.
    """
    first = schedule_of(0)
    if len(first.steps) * world_size <= MOST_STEPS:
        return finish([schedule_of(rank) for rank in range(world_size)], itemsize, costs)
    some = {1, 2, world_size // 3, world_size // 2, world_size - 1}
    if not all(are_alike(first, schedule_of(rank)) for rank in some):
        raise ValueError(f"{world_size} ranks take {len(first.steps)} different steps each")
    return finish_alike(first, itemsize, costs)


def are_alike(first: Schedule, other: Schedule) -> bool:
    """Tell whether `other` is `first` seen from its own rank: same steps, neighbours and sizes."""
    return list(_seen_from(first)) == list(_seen_from(other))


def _seen_from(schedule: Schedule) -> Iterator[tuple[object, ...]]:
    for step in schedule.steps:
        yield (
            step.tag,
            _distance(schedule, step.send_to),
            _distance(schedule, step.recv_from),
            step.send_hi - step.send_lo,
            step.recv_hi - step.recv_lo,
            step.reduce,
        )


def _distance(schedule: Schedule, rank: int) -> int:
    return NOBODY if rank == NOBODY else (rank - schedule.rank) % schedule.world_size


def _message(elements: int, itemsize: int, costs: Costs) -> float:
    return costs.alpha + elements * itemsize * costs.beta


def _end(step: Step, clock: float, arrival: float, itemsize: int, costs: Costs) -> float:
    if step.send_to != NOBODY:
        clock += _message(step.send_hi - step.send_lo, itemsize, costs)
    if step.recv_from == NOBODY:
        return clock
    clock = max(clock, arrival)
    if step.reduce is Reduce.NONE:
        return clock
    return clock + (step.recv_hi - step.recv_lo) * itemsize * costs.gamma
