"""Pairwise exchange: block j of every rank goes straight to rank j; n-1 steps, each byte sent once.

In step k a rank sends to the rank k places further and receives from the one k places before, so
that no rank is the target of two others at a time.  Source: Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005, for long messages.
"""

from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind


def pairwise_exchange(world_size: int, rank: int, count: int) -> Schedule:
    """`count` elements of each rank for each other; recvbuf has the blocks in rank order."""
    steps = tuple(_step(world_size, rank, count, distance) for distance in range(1, world_size))
    total = world_size * count
    own = Copy(rank * count, rank * count, (rank + 1) * count)
    return Schedule(
        Kind.ALLTOALL, Algorithm.PAIRWISE, world_size, rank, total, total, steps, (own,)
    )


def _step(world_size: int, rank: int, count: int, distance: int) -> Step:
    receiver, sender = (rank + distance) % world_size, (rank - distance) % world_size
    return Step(
        tag=distance - 1,
        send_to=receiver,
        send_lo=receiver * count,
        send_hi=(receiver + 1) * count,
        send_from_sendbuf=True,
        recv_from=sender,
        recv_lo=sender * count,
        recv_hi=(sender + 1) * count,
    )
