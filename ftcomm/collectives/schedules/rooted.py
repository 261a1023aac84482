"""Collectives with a root: parts that go straight to the root, or straight from it.

A part has one receiver, so a tree would only send it more often.  The root has n-1 steps, in which
it meets the ranks in the order root+1, root+2, ... (modulo n); every other rank has one.

Reduce is a reduce-scatter, then a gather of the reduced blocks (Rabenseifner, "Optimization of
Collective Reduction Operations", 2004; there with recursive halving, here with the ring for every
number of ranks).  So the result has the ring reduce-scatter's order of operands.  2(n-1) steps; a
rank sends all the bytes at most, in n parts.

None of them alone brings word from every rank to every rank but the reduce (rule R3).
"""

from collections.abc import Sequence
from itertools import accumulate

from ftcomm.collectives.schedules.reduce_scatter import ring_reduce_scatter
from ftcomm.collectives.schedules.schedule import Copy, Schedule, Step, block_bounds
from ftcomm.protocol.signature import Algorithm, Kind


def direct_gather(world_size: int, rank: int, counts: Sequence[int], root: int) -> Schedule:
    """The schedule of `rank`, whose sendbuf of ``counts[rank]`` elements goes to the root.

    The root's recvbuf has the parts one after the other in rank order; that of others is empty.
    """
    bounds, own = (0, *accumulate(counts)), counts[rank]
    if rank != root:
        steps = (_to_root(world_size, rank, root, (0, own), from_sendbuf=True),)
        return _direct(Kind.GATHERV, world_size, rank, own, 0, steps, ())
    copies = (Copy(bounds[rank], 0, own),)
    received = _at_root(world_size, root, bounds)
    return _direct(Kind.GATHERV, world_size, rank, own, bounds[-1], received, copies)


def direct_scatter(world_size: int, rank: int, counts: Sequence[int], root: int) -> Schedule:
    """The schedule of `rank`, which gets ``counts[rank]`` elements of the root's sendbuf.

    That has the parts one after the other in rank order; the sendbuf of others is not read.
    """
    bounds, own = (0, *accumulate(counts)), counts[rank]
    if rank != root:
        tag = (rank - root) % world_size - 1
        step = Step(tag=tag, recv_from=root, recv_hi=own)
        return _direct(Kind.SCATTERV, world_size, rank, 0, own, (step,), ())
    steps = tuple(_from_root(world_size, root, bounds, tag) for tag in range(world_size - 1))
    copies = (Copy(0, bounds[rank], bounds[rank + 1]),)
    return _direct(Kind.SCATTERV, world_size, rank, bounds[-1], own, steps, copies)


def reduce_to_root(world_size: int, rank: int, count: int, root: int) -> Schedule:
    """The schedule of `rank`; the root's recvbuf has the result, that of others is scratch.

    Recvbuf has `count` elements on every rank.
    """
    bounds = block_bounds(count, world_size)
    first = ring_reduce_scatter(world_size, rank, bounds)
    tag = world_size - 1  # behind the last step of the reduce-scatter
    if rank == root:
        then = _at_root(world_size, root, bounds, tag)
    else:
        then = (_to_root(world_size, rank, root, (bounds[rank], bounds[rank + 1]), tag=tag),)
    steps = (*first.steps, *then)
    return Schedule(
        Kind.REDUCE, Algorithm.RING, world_size, rank, count, count, steps, first.copies
    )


def _direct(
    kind: Kind,
    world_size: int,
    rank: int,
    sendbuf_count: int,
    recvbuf_count: int,
    steps: tuple[Step, ...],
    copies: tuple[Copy, ...],
) -> Schedule:
    return Schedule(
        kind, Algorithm.PAIRWISE, world_size, rank, sendbuf_count, recvbuf_count, steps, copies
    )


def _to_root(
    world_size: int,
    rank: int,
    root: int,
    part: tuple[int, int],
    *,
    tag: int = 0,
    from_sendbuf: bool = False,
) -> Step:
    return Step(
        tag=tag + (rank - root) % world_size - 1,
        send_to=root,
        send_lo=part[0],
        send_hi=part[1],
        send_from_sendbuf=from_sendbuf,
    )


def _at_root(
    world_size: int, root: int, bounds: Sequence[int], first_tag: int = 0
) -> tuple[Step, ...]:
    steps = []
    for distance in range(1, world_size):
        sender = (root + distance) % world_size
        lo, hi = bounds[sender], bounds[sender + 1]
        steps.append(Step(tag=first_tag + distance - 1, recv_from=sender, recv_lo=lo, recv_hi=hi))
    return tuple(steps)


def _from_root(world_size: int, root: int, bounds: Sequence[int], tag: int) -> Step:
    receiver = (root + tag + 1) % world_size
    return Step(
        tag=tag,
        send_to=receiver,
        send_lo=bounds[receiver],
        send_hi=bounds[receiver + 1],
        send_from_sendbuf=True,
    )
