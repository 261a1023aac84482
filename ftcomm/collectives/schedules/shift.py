"""Shift: every rank's block goes to the rank some places further in a given order; one step.

Checkpoints send local states to their replica holders with it.  Blocks may have any lengths.
"""

from collections.abc import Sequence

from ftcomm.collectives.schedules.schedule import Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind


def shift(
    order: Sequence[int], rank: int, distance: int, counts: Sequence[int], tag: int = 0
) -> Schedule:
    """The schedule of `rank`: its sendbuf to one rank, its recvbuf from another.

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
