"""Results of collectives from their written definition, and the flow of data through schedules.

The ``expected_*`` functions share no code with the schedules; the two are compared bit for bit.
"""

from collections.abc import Sequence

import numpy as np

from ftcomm.collectives.reductions import Array, Reducer
from ftcomm.collectives.schedules.schedule import Schedule, Step
from ftcomm.testing.in_memory import _Network, _Rank, combine_segments


def knowledge(schedules: Sequence[Schedule]) -> list[set[int]]:
    """For each rank, the ranks from which its result has a dataflow path (rule R3)."""
    network = _Network([], None, rendezvous=True)
    for schedule in schedules:
        silent = _without_payload(schedule)
        empty = np.zeros(0, np.uint8)
        network.ranks.append(_Rank(silent, empty, empty, {schedule.rank}))
    network.run()
    return [rank.known for rank in network.ranks]


def _without_payload(schedule: Schedule) -> Schedule:
    steps = tuple(
        Step(tag=step.tag, send_to=step.send_to, recv_from=step.recv_from)
        for step in schedule.all_steps
    )
    return Schedule(
        schedule.kind, schedule.algorithm, schedule.world_size, schedule.rank, 0, 0, steps
    )


def expected_fold(
    sources: Sequence[Array], reducer: Reducer, groups: Sequence[Sequence[int]] = ()
) -> Array:
    """``(((x_0 + x_1) + x_2) + ...)``, element by element; with groups of ranks in each of them,
    and then of what they have.
    """
    operands = [_left_fold([sources[rank] for rank in group], reducer) for group in groups]
    total = _left_fold(operands or sources, reducer)
    reducer.finish(total, len(sources))
    return total


def _left_fold(operands: Sequence[Array], reducer: Reducer) -> Array:
    total = operands[0].copy()
    for operand in operands[1:]:
        total = _combined(reducer, total, operand)
    return total


def expected_ring(sources: Sequence[Array], reducer: Reducer) -> Array:
    """Block b is ``(((x_b + x_b+1) + x_b+2) + ...)``, the ranks taken modulo n."""
    world_size, result = len(sources), np.empty_like(sources[0])
    lo = 0
    for block in range(world_size):
        length = result.size // world_size + (block < result.size % world_size)
        part = slice(lo, lo + length)
        total = sources[block][part].copy()
        for hop in range(1, world_size):
            operand = sources[(block + hop) % world_size][part]
            total = _combined(reducer, total, operand)
        result[part] = total
        lo += length
    reducer.finish(result, world_size)
    return result


def expected_doubling(sources: Sequence[Array], reducer: Reducer) -> Array:
    """A tree over neighbours in rank order, lower operand first; see the module of doubling."""
    values = _power_of_two_values(sources, reducer)
    while len(values) > 1:
        values = _paired(values, reducer)
    reducer.finish(values[0], len(sources))
    return values[0]


def expected_ring_blocks(
    sources: Sequence[Array], bounds: Sequence[int], reducer: Reducer
) -> list[Array]:
    """Block b is ``(((x_b+1 + x_b+2) + ...) + x_b)``, the ranks taken modulo n."""
    world_size, blocks = len(sources), []
    for block in range(world_size):
        part = slice(bounds[block], bounds[block + 1])
        total = sources[(block + 1) % world_size][part].copy()
        for hop in range(2, world_size + 1):
            total = _combined(reducer, total, sources[(block + hop) % world_size][part])
        reducer.finish(total, world_size)
        blocks.append(total)
    return blocks


def _power_of_two_values(sources: Sequence[Array], reducer: Reducer) -> list[Array]:
    """Combine the first operands in pairs, until their number is a power of two."""
    world_size, power = len(sources), 1
    while power * 2 <= world_size:
        power *= 2
    extra = world_size - power
    values = [_combined(reducer, sources[2 * pair], sources[2 * pair + 1]) for pair in range(extra)]
    return values + [sendbuf.copy() for sendbuf in sources[2 * extra :]]


def _paired(values: Sequence[Array], reducer: Reducer) -> list[Array]:
    return [_combined(reducer, values[at], values[at + 1]) for at in range(0, len(values), 2)]


def _combined(reducer: Reducer, left: Array, right: Array) -> Array:
    out = np.empty_like(right)
    combine_segments(reducer, left, right, out)
    return out
