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
    return _exchange(Kind.ALLTOALL, world_size, rank, counts, counts)


def pairwise_exchange_v(
    world_size: int, rank: int, sent: Sequence[int], received: Sequence[int]
) -> Schedule:
    """Blocks of any lengths; sendbuf and recvbuf have them one after the other in rank order.

    Args:
        world_size: number of ranks.
        rank: whose schedule it is.
        sent: elements for each rank, the own one too.
        received: elements from each rank, what that rank's `sent` has for this one.
    """
    return _exchange(Kind.ALLTOALLV, world_size, rank, sent, received)


def _exchange(
    kind: Kind, world_size: int, rank: int, sent: Sequence[int], received: Sequence[int]
) -> Schedule:
    source, work = (0, *accumulate(sent)), (0, *accumulate(received))
    steps = tuple(_step(world_size, rank, source, work, k) for k in range(1, world_size))
    own = Copy(work[rank], source[rank], source[rank + 1])
    return Schedule(kind, Algorithm.PAIRWISE, world_size, rank, source[-1], work[-1], steps, (own,))


def _step(
    world_size: int, rank: int, source: Sequence[int], work: Sequence[int], distance: int
) -> Step:
    receiver, sender = (rank + distance) % world_size, (rank - distance) % world_size
    return Step(
        tag=distance - 1,
        send_to=receiver,
        send_lo=source[receiver],
        send_hi=source[receiver + 1],
        send_from_sendbuf=True,
        recv_from=sender,
        recv_lo=work[sender],
        recv_hi=work[sender + 1],
    )


def shift(
    order: Sequence[int], rank: int, distance: int, counts: Sequence[int], tag: int = 0
) -> Schedule:
    """One step: every rank's block, of any length, to the rank some places further in an order.

    Checkpoints send local states to their replica holders with it.

    Args:
        order: every rank once.
        rank: whose schedule it is.
        distance: places from sender to receiver, 1 to n - 1.
        counts: elements of each rank's block, by rank.
        tag: number of the step, where several shifts follow each other.
    """
    size, index = len(order), order.index(rank)
    receiver, sender = order[(index + distance) % size], order[(index - distance) % size]
    step = Step(
        tag=tag,
        send_to=receiver,
        send_hi=counts[rank],
        send_from_sendbuf=True,
        recv_from=sender,
        recv_hi=counts[sender],
    )
    return Schedule(
        Kind.CHECKPOINT, Algorithm.RING, size, rank, counts[rank], counts[sender], (step,)
    )
