"""Pairwise exchange: block j of every rank goes straight to rank j; n-1 steps, each byte sent once.

In step k a rank sends to the rank k places further and receives from the one k places before, so
that no rank is the target of two others at a time.  Source: Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005, for long messages.
"""

from collections.abc import Sequence
from itertools import accumulate

from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind


def pairwise_exchange(world_size: int, rank: int, count: int) -> Schedule:
    """`count` elements of each rank for each other; recvbuf has the blocks in rank order."""
    counts = (count,) * world_size
    return _schedule(Kind.ALLTOALL, world_size, rank, counts, counts)


def pairwise_exchange_v(
    world_size: int, rank: int, sent: Sequence[int], received: Sequence[int]
) -> Schedule:
    """``sent[r]`` elements for rank r and ``received[r]`` of it, both in rank order."""
    return _schedule(Kind.ALLTOALLV, world_size, rank, sent, received)


def _schedule(
    kind: Kind, world_size: int, rank: int, sent: Sequence[int], received: Sequence[int]
) -> Schedule:
    out, into = (0, *accumulate(sent)), (0, *accumulate(received))
    steps = tuple(_step(world_size, rank, distance, out, into) for distance in range(1, world_size))
    own = Copy(into[rank], out[rank], out[rank + 1])
    return Schedule(kind, Algorithm.PAIRWISE, world_size, rank, out[-1], into[-1], steps, (own,))


def _step(
    world_size: int, rank: int, distance: int, out: Sequence[int], into: Sequence[int]
) -> Step:
    receiver, sender = (rank + distance) % world_size, (rank - distance) % world_size
    return Step(
        tag=distance - 1,
        send_to=receiver,
        send_lo=out[receiver],
        send_hi=out[receiver + 1],
        send_from_sendbuf=True,
        recv_from=sender,
        recv_lo=into[sender],
        recv_hi=into[sender + 1],
    )
