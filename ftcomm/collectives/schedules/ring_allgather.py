"""Ring allgather: every block travels once around; n-1 steps, (n-1)/n of the result sent."""

from collections.abc import Sequence

from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind


def ring_allgather(world_size: int, rank: int, count: int) -> Schedule:
    """`count` elements of each rank, one after the other in rank order."""
    return ring_allgatherv(world_size, rank, (count,) * world_size)


def ring_allgatherv(world_size: int, rank: int, counts: Sequence[int]) -> Schedule:
    """`counts[r]` elements of rank r, one after the other in rank order."""
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    own = counts[rank]
    steps = tuple(_step(world_size, rank, bounds, tag) for tag in range(world_size - 1))
    copies = (Copy(bounds[rank], 0, own),)
    return Schedule(
        Kind.ALLGATHER, Algorithm.RING, world_size, rank, own, bounds[-1], steps, copies
    )


def _step(world_size: int, rank: int, bounds: Sequence[int], tag: int) -> Step:
    leaving, coming = (rank - tag) % world_size, (rank - tag - 1) % world_size
    first = tag == 0  # the own block leaves straight from sendbuf
    return Step(
        tag=tag,
        send_to=(rank + 1) % world_size,
        send_lo=0 if first else bounds[leaving],
        send_hi=bounds[leaving + 1] - bounds[leaving] if first else bounds[leaving + 1],
        send_from_sendbuf=first,
        recv_from=(rank - 1) % world_size,
        recv_lo=bounds[coming],
        recv_hi=bounds[coming + 1],
    )
