"""Binomial-tree broadcast: ceil(log2 n) rounds, the far half of the tree first.

A broadcast proves nothing to its root, which hears nobody; it is the one kind here that does not
synchronise (rule R3).
"""

from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step
from ftcomm.protocol.signature import Algorithm, Kind


def binomial_broadcast(world_size: int, rank: int, count: int, root: int) -> Schedule:
    """The schedule of `rank`; the root's sendbuf goes to everyone's recvbuf."""
    place = (rank - root) % world_size  # the tree is drawn with the root at place 0
    rounds = (world_size - 1).bit_length()
    steps = []
    # the lowest set bit of a place names the round in which it receives
    first = rounds if place == 0 else (place & -place).bit_length() - 1
    if place:
        parent = (place - (1 << first) + root) % world_size
        steps.append(Step(tag=rounds - 1 - first, recv_from=parent, recv_hi=count))
    for bit in range(first - 1, -1, -1):
        child = place + (1 << bit)
        if child < world_size:
            peer = (child + root) % world_size
            tag = rounds - 1 - bit
            steps.append(Step(tag=tag, send_to=peer, send_hi=count, send_from_sendbuf=place == 0))
    copies = (Copy(0, 0, count),) if place == 0 else ()
    sendbuf_count = count if place == 0 else 0
    return Schedule(
        Kind.BROADCAST,
        Algorithm.TREE,
        world_size,
        rank,
        sendbuf_count,
        count,
        tuple(steps),
        copies,
    )
